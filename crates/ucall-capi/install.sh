#!/bin/sh
# Builds the C library for release and installs it: header, static and shared library, what
# pkg-config and CMake look for, and the licences. Needs cargo and a C compiler.
#
#     install.sh PREFIX
#
# DESTDIR is put in front of all paths, and into none of the files. CARGO_TARGET_DIR says where to
# build.
set -eu
prefix=${1:?usage: install.sh PREFIX}
case $prefix in
/*) ;;
*) prefix=$PWD/$prefix ;;
esac
target=${CARGO_TARGET_DIR:-}
case $target in
'' | /*) ;;
*) target=$PWD/$target ;;
esac
cd "$(dirname "$0")/../.."
target=${target:-$PWD/target}
root=${DESTDIR:-}$prefix
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

if ! command -v "${CARGO:-cargo}" >/dev/null; then
    echo "cargo is missing: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" >&2
    exit 1
fi
"${CARGO:-cargo}" build --quiet --release --locked --package ucall-capi --target-dir "$target"

mkdir -p "$root/include/ucall" "$root/lib/pkgconfig" "$root/lib/cmake/ucall" \
    "$root/share/doc/ucall"
cp LICENSE LICENSE-THIRD-PARTY "$root/share/doc/ucall/"
cp include/ucall/ucall.h "$root/include/ucall/"
cp "$target/release/libucall.a" "$root/lib/"
crates/ucall-capi/link-shared.sh "$target/release/libucall.a" "$root/lib" "$version"
quoted=$(printf '%s' "$prefix" | sed 's/[\\&|]/\\&/g')
sed -e "s|@PREFIX@|$quoted|" -e "s|@VERSION@|$version|" ucall.pc.in >"$root/lib/pkgconfig/ucall.pc"
cp cmake/ucallTargets.cmake cmake/ucallConfig.cmake "$root/lib/cmake/ucall/"
sed "s|@VERSION@|$version|" cmake/ucallConfigVersion.cmake.in \
    >"$root/lib/cmake/ucall/ucallConfigVersion.cmake"
echo "Installed ucall $version in $root"
