#!/bin/sh
# Checks the tools that a build needs. Prints missing ones with how to install them, or nothing.
set -eu
cd "$(dirname "$0")/.."

missing=0

need() {
    missing=1
    printf 'Missing: %s\n    %s\n' "$1" "$2" >&2
}

# Whether the first version is at least the second.
at_least() {
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

check_rust() {
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    install="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh
    or on Debian 13: apt-get install rustc-web cargo-web"
    if ! command -v cargo >/dev/null || ! command -v rustc >/dev/null; then
        need "Rust $wanted or newer" "$install"
        return
    fi
    found=$(rustc --version | cut -d ' ' -f 2)
    at_least "$found" "$wanted" ||
        need "Rust $wanted or newer (found $found)" "rustup update stable"
}

check_python() {
    if ! python=$(tools/find-python.sh); then
        need "CPython 3.11 or newer" \
            "apt-get install python3 python3-dev python3-venv, brew install python, or python.org;
    or name one: make PYTHON=/path/to/python3"
        return
    fi
    "$python" -c 'import ensurepip, venv' 2>/dev/null ||
        need "the venv module of $python" "apt-get install python3-venv"
}

check_c_compiler() {
    command -v cc >/dev/null ||
        need "a C compiler (cc)" \
            "apt-get install gcc libc6-dev, or on macOS: xcode-select --install"
}

# For simdutf, on the targets that crates/ucall-python/Cargo.toml names.
check_cxx_compiler() {
    if [ "$(uname -sm)" != "Linux x86_64" ] || ldd --version 2>&1 | grep -q musl; then
        return
    fi
    command -v "${CXX:-c++}" >/dev/null || need "a C++ compiler (c++)" "apt-get install g++"
}

check_rust
check_python
check_c_compiler
check_cxx_compiler
exit $missing
