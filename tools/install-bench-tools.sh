#!/bin/sh
# Installs missing tools of the benchmarks: wrk, and for the deterministic figures strace and
# valgrind. With `peers`, also the tools that load and build other projects' servers; with
# `slow-peers`, slowhttptest; with `store`, Redis; with `udp`, memcached and Knot DNS. Prints the
# packages that it installs. If it cannot use apt-get, it prints how to install them. Only wrk is
# required; the report leaves out figures without their tool.
set -eu

wanted=''
need() {
    command -v "$1" >/dev/null || wanted="$wanted $2"
}

need_header() {
    [ -e "/usr/include/$1" ] || wanted="$wanted $2"
}

need wrk wrk
need strace strace
need valgrind valgrind
if [ "${1:-}" = peers ]; then
    need h2load nghttp2-client
    need ab apache2-utils
    need perf linux-perf
    need pkg-config pkg-config
    need c++ g++
    need protoc protobuf-compiler
    need grpc_cpp_plugin protobuf-compiler-grpc
    need_header google/protobuf/message.h libprotobuf-dev
    need_header grpcpp/grpcpp.h libgrpc++-dev
    need capnp capnproto
    need_header capnp/ez-rpc.h libcapnp-dev
    need_header h2o.h libh2o-evloop-dev
    need_header simdjson.h libsimdjson-dev
    need_header openssl/ssl.h libssl-dev
fi
[ "${1:-}" != store ] || need redis-server redis-server
if [ "${1:-}" = udp ]; then
    need memcached memcached
    need knotd knot
fi
[ "${1:-}" != slow-peers ] || need slowhttptest slowhttptest
[ -n "$wanted" ] || exit 0

as_root=''
[ "$(id -u)" -eq 0 ] || as_root='sudo -n'

if command -v apt-get >/dev/null && $as_root true 2>/dev/null; then
    echo "Installing by apt-get:$wanted"
    $as_root apt-get update -qq || echo "apt-get update failed; going on without" >&2
    # One by one, so that a package that the distribution lacks does not affect the others.
    for package in $wanted; do
        $as_root apt-get install -y -qq --no-install-recommends "$package" >/dev/null ||
            echo "apt-get failed: $package" >&2
    done
else
    echo "Missing:$wanted. Get them with: apt-get install$wanted, or brew install wrk" >&2
fi
command -v wrk >/dev/null
