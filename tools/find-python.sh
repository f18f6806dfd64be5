#!/bin/sh
# Prints the path of a CPython of at least 3.11, and prefers the plain `python3`. Prints nothing and
# fails if there is none. It runs each candidate, because version managers put commands into the
# PATH that only print that no interpreter is installed.
set -eu

is_new_enough='
import sys
sys.exit(not (sys.version_info >= (3, 11) and sys.implementation.name == "cpython"))
'

for name in ${PYTHON:-python3 python3.15 python3.14 python3.13 python3.12 python3.11}; do
    if "$name" -c "$is_new_enough" >/dev/null 2>&1; then
        "$name" -c 'import sys; print(sys.executable)'
        exit 0
    fi
done
exit 1
