#!/bin/sh
# Makes environments in .bench for the other queues of `make bench-queue`. net-queue needs CPython
# 3.13 and is left out without it.
set -eu

python="$1"

if [ ! -x .bench/zeromq/bin/python ]; then
    "$python" -m venv .bench/zeromq
    .bench/zeromq/bin/python -m pip install --quiet "pyzmq>=26,<28"
fi

is_right='import sys; sys.exit(sys.version_info[:2] != (3, 13))'
if [ ! -x .bench/netqueue/bin/python ]; then
    for name in python3.13 "$HOME"/.pyenv/versions/3.13*/bin/python; do
        if "$name" -c "$is_right" >/dev/null 2>&1; then
            "$name" -m venv .bench/netqueue
            .bench/netqueue/bin/python -m pip install --quiet "net-queue==2.6.0"
            exit 0
        fi
    done
    echo "net-queue: not measured; it needs CPython 3.13" >&2
fi
