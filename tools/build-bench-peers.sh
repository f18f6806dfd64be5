#!/usr/bin/env bash
# Installs other projects' servers for `make bench` into .bench: from PyPI into virtual
# environments, from crates.io, GitHub and the system's packages. Builds the load programs. A server
# that cannot be installed is named and left out, and the report says so. Only bench/load must
# build. With the argument `python` it installs only those from PyPI.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly out=.bench
readonly target="$PWD/$out/target"
python=$(tools/find-python.sh)

skip() {
    echo "bench: without $1" >&2
}

# Installs all packages together, so that their versions agree; if that fails, each package alone.
install_python_peers() {
    local requirements=bench/peers/requirements.txt
    local stamp=$out/peers/installed
    ! cmp -s "$requirements" "$stamp" || return 0
    echo "bench: installing servers from PyPI into $out/peers"
    "$python" -m venv "$out/peers"
    local pip=("$out/peers/bin/python" -m pip install --quiet)
    if ! "${pip[@]}" --requirement "$requirements"; then
        grep -v '^#' "$requirements" | while read -r package; do
            "${pip[@]}" "$package" || skip "$package, which does not install here"
        done
    fi
    cp "$requirements" "$stamp"
}

generate_python_grpc() {
    mkdir -p "$out/proto"
    [ "$out/proto/sum_pb2.py" -ot bench/peers/sum.proto ] || return 0
    "$out/peers/bin/python" -m grpc_tools.protoc -I bench/peers --python_out="$out/proto" \
        --grpc_python_out="$out/proto" bench/peers/sum.proto || skip "gRPC for Python"
}

cargo_build() {
    cargo build --quiet --release --manifest-path "$1/Cargo.toml" --target-dir "$target" "${@:2}"
}

# For this machine's processor, which simdjson's inline parser needs.
build_h2o() {
    local program=$out/peer-h2o source=bench/peers/cpp/h2o.cpp
    [ "$program" -ot "$source" ] || return 0
    # shellcheck disable=SC2046 # flags are meant to be split
    c++ -O2 -march=native -std=c++17 -o "$program" "$source" \
        $(pkg-config --cflags --libs libh2o-evloop simdjson openssl) ||
        skip "H2O: apt-get install libh2o-evloop-dev libsimdjson-dev libssl-dev"
}

# A release with its uSockets as source, because it has no package.
build_uwebsockets() {
    local program=$out/peer-uwebsockets source=bench/peers/cpp/uwebsockets.cpp
    local checkout=$out/uWebSockets release=v20.79.0
    [ "$program" -ot "$source" ] || return 0
    if [ ! -e "$checkout/uSockets/src" ]; then
        git clone --quiet --depth 1 --branch "$release" --recurse-submodules=uSockets \
            --shallow-submodules https://github.com/uNetworking/uWebSockets "$checkout" || {
            skip "uWebSockets, whose source cannot be fetched here"
            return 0
        }
    fi
    local sockets=$checkout/uSockets/src
    cc -O2 -march=native -DLIBUS_NO_SSL -I"$sockets" -r -o "$out/uSockets.o" "$sockets"/*.c \
        "$sockets"/eventing/epoll_kqueue.c &&
        c++ -O2 -march=native -std=c++20 -DUWS_NO_ZLIB -DLIBUS_NO_SSL -I"$checkout/src" \
            -I"$sockets" -o "$program" "$source" "$out/uSockets.o" -lsimdjson ||
        skip "uWebSockets, which does not build here"
}

build_grpc() {
    local program=$out/peer-grpc source=bench/peers/cpp/grpc.cpp
    [ "$program" -ot "$source" ] || return 0
    # shellcheck disable=SC2046 # flags are meant to be split
    protoc -I bench/peers --cpp_out="$out/proto" --grpc_out="$out/proto" \
        --plugin=protoc-gen-grpc="$(command -v grpc_cpp_plugin)" bench/peers/sum.proto &&
        c++ -O2 -std=c++17 -I"$out/proto" -o "$program" "$source" \
            "$out/proto/sum.pb.cc" "$out/proto/sum.grpc.pb.cc" \
            $(pkg-config --cflags --libs grpc++_unsecure protobuf) ||
        skip "gRPC for C++: apt-get install libgrpc++-dev protobuf-compiler-grpc"
}

build_capnproto() {
    local program source
    capnp compile -oc++:"$out/proto" --src-prefix=bench/peers bench/peers/sum.capnp ||
        { skip "Cap'n Proto: apt-get install capnproto libcapnp-dev" && return; }
    for source in capnproto.cpp capnproto_load.cpp; do
        program=$(basename "$source" .cpp)
        program=$out/peer-${program/_/-}
        [ "$program" -ot "bench/peers/cpp/$source" ] || continue
        # shellcheck disable=SC2046 # flags are meant to be split
        c++ -O2 -std=c++17 -I"$out/proto" -o "$program" "bench/peers/cpp/$source" \
            "$out/proto/sum.capnp.c++" $(pkg-config --cflags --libs capnp-rpc) ||
            skip "Cap'n Proto, which does not build here"
    done
}

mkdir -p "$out"
install_python_peers
[ "${1:-}" != python ] || exit 0
generate_python_grpc
build_h2o
build_uwebsockets
build_grpc
build_capnproto
cargo_build bench/peers/rust --locked ||
    skip "actix-web, ntex and tokio-websockets, which do not build here"
cargo_build bench/load --locked
