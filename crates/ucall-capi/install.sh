#!/bin/sh
# Builds the C library for release and installs it: headers, static and shared library, what
# pkg-config, CMake and ThreadSanitizer look for, and the licences. Needs cargo and a C compiler.
#
#     install.sh PREFIX [--uninstall]
#
# LIBDIR is the folder of libraries in PREFIX: lib, unless it says lib64 or lib/x86_64-linux-gnu.
# DESTDIR is put in front of all paths, and into none of the files, which hold no absolute path.
# CARGO_TARGET_DIR says where to build. --uninstall removes what was installed with these folders.
set -eu
prefix=${1:?usage: install.sh PREFIX [--uninstall]}
action=${2:-install}
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
libdir=${LIBDIR:-lib}
libdir=${libdir#"$prefix"/}
case $libdir in
/* | *..*)
    echo "LIBDIR: expected a folder in $prefix" >&2
    exit 1
    ;;
esac
lib=$root/$libdir
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)

if [ "$action" = --uninstall ]; then
    rm -rf "$root/include/ucall" "$lib"/libucall.* "$lib/pkgconfig/ucall.pc" \
        "$lib/cmake/ucall" "$root/share/doc/ucall"
    echo "Removed ucall from $root"
    exit 0
fi

if ! command -v "${CARGO:-cargo}" >/dev/null; then
    echo "cargo is missing: curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" >&2
    exit 1
fi
# Otherwise the libraries name the folder of the crates. RUSTFLAGS, if it is set, takes precedence.
"${CARGO:-cargo}" build --quiet --release --locked --package ucall-capi --features full \
    --target-dir "$target" \
    --config "build.rustflags=['--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo']"

# Writes a template with the folders, as relative paths from the one that it is installed in.
write_template() {
    up=$(printf '%s' "$libdir/$2" | sed 's|[^/][^/]*|..|g')
    sed -e "s|@UP@|$up|" -e "s|@LIBDIR@|$libdir|" -e "s|@VERSION@|$version|" "$1" \
        >"$lib/$2/$(basename "$1" .in)"
}

mkdir -p "$root/include/ucall" "$lib/pkgconfig" "$lib/cmake/ucall" "$root/share/doc/ucall"
cp LICENSE LICENSE-THIRD-PARTY "$root/share/doc/ucall/"
cp include/ucall/* "$root/include/ucall/"
crates/ucall-capi/localise.sh "$target/release/libucall.a" "$lib/libucall.a"
crates/ucall-capi/link-shared.sh "$target/release/libucall.a" "$lib" "$version"
cp crates/ucall-capi/libucall.tsan.supp "$lib/"
cp cmake/ucallTargets.cmake "$lib/cmake/ucall/"
write_template ucall.pc.in pkgconfig
write_template cmake/ucallConfig.cmake.in cmake/ucall
write_template cmake/ucallConfigVersion.cmake.in cmake/ucall
echo "Installed ucall $version in $root"
