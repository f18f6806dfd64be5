#!/usr/bin/env bash
# Runs `make test`, or the targets given, with a PATH that has no program of tests/programs.txt and
# nothing that could install one.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly folder=.bench/path
readonly installers=(apt-get brew sudo testssl.sh)

rm -rf "$folder"
mkdir -p "$folder"
IFS=: read -ra folders <<<"$PATH"
# The first of two programs of one name counts, as in PATH, so no link is replaced.
for from in "${folders[@]}"; do
    find "$from/" -maxdepth 1 ! -type d -executable -exec ln -s -t "$folder" {} + 2>/dev/null ||
        true
done
grep -v '^#' tests/programs.txt | while read -r program _; do
    rm -f "$folder/$program"
done
rm -f "${installers[@]/#/$folder/}"
PATH=$PWD/$folder exec make "${@:-test}"
