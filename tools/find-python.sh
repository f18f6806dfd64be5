#!/bin/sh
# Prints the path of a CPython that is new enough (3.11), the plain `python3` first. Prints nothing,
# and fails, where there is none. A command in PATH is run before it is believed: version managers
# leave commands there that only say that nothing is behind them.
set -eu

is_new_enough='
import sys
sys.exit(not (sys.version_info >= (3, 11) and sys.implementation.name == "cpython"))
'

for name in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$name" -c "$is_new_enough" >/dev/null 2>&1; then
        "$name" -c 'import sys; print(sys.executable)'
        exit 0
    fi
done
exit 1
