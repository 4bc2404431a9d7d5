# The commands of this repository; the work is done by the scripts in tools/.

.PHONY: help setup build demo test soak bench format lint wheel clean

help:  ## list the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1\t\2/p' Makefile | expand -t 16

setup:  ## install Debian packages and the Python environment .venv
	@tools/setup

build: setup  ## compile the engine and the program `lockstep` (release)
	@tools/build release

demo: build  ## train a small model with one worker and with two
	@tools/demo

test:  ## run all tests, with the time per stage; STAGES="unit python" runs only those
	@tools/test $(STAGES)

soak: build  ## run the long forms of the tests, into docs/soak.md; SUITE=name runs one
	@.venv/bin/python tools/soak.py $(SUITE)

bench:  ## measure all-reduce beside its peers, into docs/performance.md; ARGUMENTS=--full also crowded worlds
	@tools/bench $(ARGUMENTS)

format: setup  ## format the C++ and Python sources
	@tools/format

lint: setup  ## check format, layers and Python, and show the advice of clang-tidy
	@tools/lint

wheel: setup  ## build the wheel for glibc 2.28 and newer into dist/ and check it
	@tools/wheel

clean:  ## remove what was built (.venv stays)
	@rm -rf build dist
