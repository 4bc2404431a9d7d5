#!/bin/sh
# Compiles through ccache, with the source folder as base directory, so that a second clone of the repository hits what the
# first compiled: cmake/cached.sh CCACHE SOURCE_FOLDER COMPILER ARGUMENTS...
ccache=$1
# Beyond the folder, what it has to be told where headers are precompiled.
export CCACHE_BASEDIR="$2" CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros
shift 2

# While a header is precompiled anew, the old result must not be there: the preprocessor would take it for the header, so
# that ccache sees no change and hands the old one out again.
case " $* " in
  *" -x c++-header "*)
    previous=
    for word; do
      if [ "$previous" = -o ]; then rm -f "$word"; fi
      previous=$word
    done
    ;;
esac
exec "$ccache" "$@"
