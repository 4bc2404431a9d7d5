# Sourced from the repository's root by the scripts that run Python: the release build as if it were installed.
PATH=$PWD/build/release/launcher:$PWD/.venv/bin:$PATH
PYTHONPATH=$PWD/python${PYTHONPATH:+:$PYTHONPATH}
LOCKSTEP_LIBRARY=$PWD/build/release/src/liblockstep.so
export PATH PYTHONPATH LOCKSTEP_LIBRARY
# Python compiles a module when it is first imported (tools/setup leaves that to it), and keeps the result for the next.
unset PYTHONDONTWRITEBYTECODE
