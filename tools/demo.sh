#!/usr/bin/env bash
# Starts examples/python/sum.py, calls it over HTTP and over raw TCP, loads it for five seconds, and
# stops it. However this script ends, it ends the server by its pid.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly python=.venv/bin/python
readonly port=8545
readonly url="http://127.0.0.1:$port/"
readonly request='{"jsonrpc":"2.0","method":"sum","params":{"a":55,"b":21},"id":1}'
readonly load_seconds=5
server=''

fail() {
    echo "demo: $*" >&2
    exit 1
}

is_listening() {
    (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null
}

stop_server() {
    [ -n "$server" ] || return 0
    kill -TERM "$server" 2>/dev/null || true
    wait "$server" || true
    server=''
}

start_server() {
    ! is_listening || fail "port $port is taken: stop what listens there, then try again"
    "$python" examples/python/sum.py &
    server=$!
    for _ in $(seq 100); do
        kill -0 "$server" 2>/dev/null || fail "the server ended before it answered (see above)"
        ! is_listening || return 0
        sleep 0.1
    done
    fail "the server did not answer within 10 s"
}

call_over_http() {
    echo "\$ curl $url -d '$request'"
    curl --silent --show-error --fail --max-time 10 "$url" -d "$request"
    echo
}

# The raw reply ends with a newline, so one line is one reply.
call_over_raw_tcp() {
    local reply
    if nc -h 2>&1 | grep -q -- '-N'; then
        echo "\$ echo '$request' | nc -N 127.0.0.1 $port"
        reply=$(echo "$request" | nc -N -w 10 127.0.0.1 "$port") || true
    else
        echo "\$ exec 3<>/dev/tcp/127.0.0.1/$port; echo '$request' >&3; head -n 1 <&3"
        exec 3<>"/dev/tcp/127.0.0.1/$port"
        echo "$request" >&3
        IFS= read -r -t 10 reply <&3 || fail "no reply over raw TCP"
        exec 3>&-
    fi
    [ -n "$reply" ] || fail "no reply over raw TCP"
    echo "$reply"
}

run_load() {
    if command -v wrk >/dev/null; then
        echo "Load: wrk, 32 connections, $load_seconds s"
        wrk -t1 -c32 "-d${load_seconds}s" -s bench/wrk/load.lua "$url" |
            sed -n 's/^Requests\/sec: *\([0-9]*\).*/\1 calls a second/p'
    else
        echo "Load: tools/load.py, 32 connections, $load_seconds s." \
            "Python cannot keep up with the server; with wrk installed, the figure is higher."
        "$python" tools/load.py --port "$port" --seconds "$load_seconds"
    fi
}

command -v curl >/dev/null || fail "curl is missing: apt-get install curl"
trap stop_server EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

start_server
call_over_http
echo
call_over_raw_tcp
echo
run_load
kill -TERM "$server"
wait "$server" || fail "the server ended with status $?"
server=''
echo "Stopped cleanly."
