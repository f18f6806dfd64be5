#!/bin/sh
# Builds the C library for release and packs it as a tarball that works in any folder whose path has
# no spaces. Run by `make dist-c`.
#
#     pack-c-library.sh PYTHON FOLDER
#
# On Linux, zig of PYTHON's packages compiles C and links against glibc 2.17, so that the libraries
# run on systems as old as the wheels do.
set -eu
python=$1
folder=$2
cd "$(dirname "$0")/.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
machine=$(uname -m)
system=$(uname -s | tr '[:upper:]' '[:lower:]')
name=ucall-c-$version-$system-$machine
mkdir -p "$CARGO_TARGET_DIR" "$folder"

# The crate `cc` names a target that zig does not know. zig instruments code that is compiled
# without optimisation, such as aws-lc's source of entropy, unless told not to.
if [ "$system" = linux ]; then
    CC=$CARGO_TARGET_DIR/zig-cc
    unwinder=$CARGO_TARGET_DIR/libgcc_s.so.1
    "$python" -m ziglang cc -target "$machine-linux-gnu.2.17" -shared \
        -Wl,-soname,libgcc_s.so.1 -o "$unwinder" tools/libgcc_s.c
    cat >"$CC" <<WRAPPER
#!/bin/sh
for word; do
    shift
    case \$word in
    --target=*) ;;
    -lgcc_s) set -- "\$@" "$unwinder" ;;
    *) set -- "\$@" "\$word" ;;
    esac
done
exec "$python" -m ziglang cc -target $machine-linux-gnu.2.17 -fno-sanitize=undefined "\$@"
WRAPPER
    chmod +x "$CC"
    export CC
fi

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
DESTDIR=$staging crates/ucall-capi/install.sh "/$name"
tar --create --gzip --file "$folder/$name.tar.gz" --directory "$staging" "$name"
echo "$folder/$name.tar.gz"
