#!/bin/sh
# Checks the tools of `make test-c`: a C++ compiler, CMake, pkg-config, valgrind and LMDB. On CI as
# root it installs missing ones. Elsewhere it prints how to install them, and fails.
set -eu

wanted=''
need() {
    wanted="$wanted $1"
}

compiles() {
    printf '%s\n' "$1" | "${CC:-cc}" -x c -fsyntax-only - 2>/dev/null
}

look() {
    wanted=''
    command -v c++ >/dev/null || need g++
    command -v cmake >/dev/null || need cmake
    command -v pkg-config >/dev/null || need pkg-config
    command -v valgrind >/dev/null || need valgrind
    command -v nm >/dev/null || need binutils
    command -v ps >/dev/null || need procps
    compiles '#include <lmdb.h>' || need liblmdb-dev
}

look
[ -n "$wanted" ] || exit 0
if [ "${CI:-}" = true ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    echo "Installing by apt-get:$wanted"
    apt-get update -qq || echo "apt-get update failed; going on without" >&2
    # shellcheck disable=SC2086 # the list is meant to be split
    apt-get install -y -qq $wanted >/dev/null || echo "apt-get failed" >&2
    look
fi
[ -z "$wanted" ] || {
    echo "Missing for the tests of C:$wanted. Get them with:" >&2
    echo "    apt-get install$wanted" >&2
    echo "or on macOS: brew install cmake pkg-config lmdb (there is no valgrind)" >&2
    exit 1
}
