#!/bin/sh
# Compiles through ccache, with the source folder as base directory, so that a second clone of the repository hits what the
# first compiled: cmake/cached.sh CCACHE SOURCE_FOLDER COMPILER ARGUMENTS...
ccache=$1
# Beyond the folder, what it has to be told where headers are precompiled.
export CCACHE_BASEDIR="$2" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_PCH_EXTSUM=1
shift 2

# What a compilation reads, without comments and places.
preprocessed() { # COMPILER ARGUMENTS...
  left=$#
  skip=
  while [ "$left" -gt 0 ]; do
    word=$1
    shift
    left=$((left - 1))
    case "$skip$word" in
      -o | -MT | -MF) skip=the_next: ;;
      the_next:*) skip= ;;
      -MD | -c) ;;
      *) set -- "$@" "$word" ;;
    esac
  done
  "$@" -E -P
}

# Precompiled headers themselves are compiled each time: out of the cache came some whose `#pragma once` did not hold any
# more, after a header had changed. What uses them is cached by what was precompiled, which is the same in every clone.
case " $* " in
  *" -x c++-header "*)
    previous=
    for word; do
      if [ "$previous" = -o ]; then result=$word; fi
      previous=$word
    done
    rm -f "$result"  # or the preprocessor would take it for the header
    preprocessed "$@" | sha256sum >"$result.sum"
    exec "$@"
    ;;
esac
exec "$ccache" "$@"
