#!/bin/sh
# Sees to what `make test-python` needs beyond Python's packages: an MQTT broker. On CI, and as
# root, it installs what is missing; elsewhere it names it, with how to get it, and fails.
set -eu

PATH=$PATH:/usr/sbin
look() {
    wanted=''
    command -v mosquitto >/dev/null || wanted="$wanted mosquitto"
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
    echo "Missing for the tests:$wanted. Get them with:" >&2
    echo "    apt-get install$wanted" >&2
    echo "or on macOS: brew install$wanted" >&2
    exit 1
}
