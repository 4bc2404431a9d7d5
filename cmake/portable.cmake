# A toolchain for binaries that run with glibc 2.28 and every later one, built on any machine: zig is a compiler that brings
# the C library's headers and symbols of the version that is asked for, and libc++, which it links statically.
#
# LOCKSTEP_ZIG      the program zig
# LOCKSTEP_HEADERS  a folder with the headers of the libraries that Lockstep uses, and none of this machine's C library
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES LOCKSTEP_ZIG LOCKSTEP_HEADERS)
set(portable_target -target x86_64-linux-gnu.2.28)
set(CMAKE_C_COMPILER ${LOCKSTEP_ZIG} cc ${portable_target})
set(CMAKE_CXX_COMPILER ${LOCKSTEP_ZIG} c++ ${portable_target})
set(CMAKE_CXX_FLAGS_INIT "-isystem ${LOCKSTEP_HEADERS}")
# zig keeps what it has compiled by itself, and has its own way with precompiled headers.
set(CCACHE OFF CACHE BOOL "" FORCE)
set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)
