#!/bin/sh
# Writes CycloneDX lists of the crates that are compiled into the extension module and into the C
# library. Run by `make sbom`.
#
#     write-sboms.sh FOLDER
set -eu
folder=$1
cd "$(dirname "$0")/.."

cargo cyclonedx --version >/dev/null 2>&1 || {
    echo "Missing: cargo-cyclonedx. Get it with: cargo install --locked cargo-cyclonedx" >&2
    exit 1
}
mkdir -p "$folder"
# It writes one file beside the manifest of each crate of the workspace.
cargo cyclonedx --quiet --format json --spec-version 1.5 --no-build-deps --all-features
for crate in ucall-python ucall-capi; do
    mv "crates/$crate/$crate.cdx.json" "$folder/"
done
rm -f crates/*/*.cdx.json
