#!/bin/sh
# Builds the explorer page python/ucall/static/explorer.html from explorer/, with npm.
#
#     build-explorer.sh            writes the page
#     build-explorer.sh --check    fails if the page does not match its source; without npm or its
#                                  registry it prints a line instead
set -eu
cd "$(dirname "$0")/../explorer"
page=../python/ucall/static/explorer.html

install() {
    # Exactly what package-lock.json lists, if this Node is new enough for it.
    npm ci --engine-strict --prefer-offline --silent --no-audit --no-fund >/dev/null 2>&1
}

if [ "${1:-}" != --check ]; then
    if ! install; then
        echo "explorer: needs npm with Node 20.19 or newer, and its registry" >&2
        exit 1
    fi
    npm run --silent build
    exit
fi
if ! install; then
    echo "explorer: not checked; needs npm with Node 20.19 or newer, and its registry"
    exit
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
EXPLORER_FOLDER=$folder npm run --silent build >/dev/null
if ! cmp "$folder/explorer.html" "$page"; then
    echo "explorer: the page does not match its source: make explorer" >&2
    exit 1
fi
bytes=$(gzip -9 -c "$page" | wc -c)
if [ "$bytes" -gt 100000 ]; then
    echo "explorer: $bytes bytes compressed, more than 100,000" >&2
    exit 1
fi
echo "explorer: matches its source; $bytes bytes compressed"
