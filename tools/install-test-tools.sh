#!/bin/sh
# Checks the programs that `make test-python` needs beyond Python packages. On CI as root it
# installs missing ones. Elsewhere it prints how to install a missing MQTT broker, and fails; tests
# that need other missing programs are skipped.
set -eu

PATH=$PATH:/usr/sbin
look() {
    wanted=''
    command -v mosquitto >/dev/null || wanted="$wanted mosquitto"
}

# Programs whose tests are skipped without them: the program, then its package.
find_others() {
    others=''
    while read -r program package; do
        command -v "$program" >/dev/null || others="$others $package"
    done <<LIST
curl curl
nc netcat-openbsd
openssl openssl
nginx nginx
haproxy haproxy
strace strace
LIST
}

look
if [ "${CI:-}" = true ] && [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    find_others
    [ -n "$wanted$others" ] || exit 0
    echo "Installing by apt-get:$wanted$others"
    apt-get update -qq || echo "apt-get update failed; going on without" >&2
    # shellcheck disable=SC2086 # the list is meant to be split
    apt-get install -y -qq $wanted $others >/dev/null || echo "apt-get failed" >&2
    look
fi
[ -z "$wanted" ] || {
    echo "Missing for the tests:$wanted. Get them with:" >&2
    echo "    apt-get install$wanted" >&2
    echo "or on macOS: brew install$wanted" >&2
    exit 1
}
