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
    if ! command -v curl >/dev/null; then
        echo "Missing: curl; not called over HTTP (apt-get install curl)"
        return
    fi
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

# The load program ends with status 1 if the first reply is no HTTP reply.
run_load() {
    echo "Loading it for $load_seconds s over 32 connections…"
    .bench/target/release/load --body <(echo "$request") --connections 32 \
        --seconds "$load_seconds" "127.0.0.1:$port" |
        "$python" -c '
import json, sys
load = json.load(sys.stdin)
if load["errors"] or json.loads(load["reply"])["result"] != 76:
    sys.exit(f"demo: failed calls: {load}")
rate, p99 = load["requests"] / load["duration"], load["p99"]
print(f"{rate:,.0f} calls a second, 99 % of them within {p99:,.0f} µs")
'
}

say_what_next() {
    cat <<'END'

Try next:
    source .venv/bin/activate           puts the package and the command ucall in the PATH
    python examples/python/sum.py       serves until Ctrl-C
    ucall sum a=2 b=3                   calls it, in another terminal
    ls examples                         more examples, in a folder a use
    make test                           runs every test
END
}

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
say_what_next
