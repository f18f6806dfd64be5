#!/bin/sh
# Installs what `make bench-quick` needs and this machine lacks: wrk, and for the deterministic
# figures strace and valgrind. Says what it installs. Without apt-get, or the right to use it, it
# names how to get them; only wrk is needed, the others are missed in the report.
set -eu

wanted=''
for tool in wrk strace valgrind; do
    command -v "$tool" >/dev/null || wanted="$wanted $tool"
done
[ -n "$wanted" ] || exit 0

as_root=''
[ "$(id -u)" -eq 0 ] || as_root='sudo -n'

if command -v apt-get >/dev/null && $as_root true 2>/dev/null; then
    echo "Installing by apt-get:$wanted"
    $as_root apt-get update -qq || echo "apt-get update failed; going on without" >&2
    # shellcheck disable=SC2086 # the list is meant to be split
    $as_root apt-get install -y -qq $wanted >/dev/null || echo "apt-get failed" >&2
else
    echo "Missing:$wanted. Get them with: apt-get install$wanted, or brew install wrk" >&2
fi
command -v wrk >/dev/null
