#!/bin/sh
# Links the shared library from the static one, with the symbols of the header alone, versioned.
#
#     link-shared.sh LIBUCALL.A FOLDER VERSION
#
# LINK_CC says by which compiler; it is not CC, because another CC has cargo build all C code again.
#
# rustc could link it too, but passes a version script of its own, and linkers take only one.
set -eu
archive=$1
folder=$2
version=$3
major=${version%%.*}
here=$(dirname "$0")
compiler=${LINK_CC:-${CC:-cc}}

mkdir -p "$folder"
case $(uname -s) in
Darwin)
    file=libucall.$version.dylib
    soname=libucall.$major.dylib
    plain=libucall.dylib
    "$compiler" -dynamiclib -o "$folder/$file" -Wl,-force_load,"$archive" \
        -Wl,-install_name,"@rpath/$soname" -Wl,-exported_symbol,'_ucall_*' -Wl,-dead_strip
    ;;
*)
    file=libucall.so.$version
    soname=libucall.so.$major
    plain=libucall.so
    "$compiler" -shared -o "$folder/$file" -Wl,-soname,"$soname" \
        -Wl,--version-script="$here/ucall.map" -Wl,--gc-sections -Wl,--strip-all \
        -Wl,-z,relro,-z,now -Wl,--whole-archive "$archive" -Wl,--no-whole-archive \
        -lgcc_s -lm -lpthread -ldl
    ;;
esac
ln -sf "$file" "$folder/$soname"
ln -sf "$soname" "$folder/$plain"
