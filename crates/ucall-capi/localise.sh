#!/bin/sh
# Makes the static library that is installed: one object whose only global symbols are those of the
# header, so that it fits beside any other library, also one that is written in Rust or has LMDB.
#
#     localise.sh LIBUCALL.A OUTPUT.A
#
# Needs ld and objcopy of GNU or LLVM. Elsewhere it copies the library.
set -eu
archive=$1
output=$2
if [ "$(uname -s)" != Linux ] || ! command -v "${OBJCOPY:-objcopy}" >/dev/null; then
    cp "$archive" "$output"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${NM:-nm} --defined-only --extern-only "$archive" 2>/dev/null |
    sed -n 's/^[0-9a-f]* T \(ucall_.*\)$/\1/p' | sort -u >"$folder/names"
# Everything that no function of the header needs is left out.
# shellcheck disable=SC2046 # names have no spaces
${LD:-ld} -r --gc-sections $(sed 's/^/-u /' "$folder/names") \
    --whole-archive "$archive" --no-whole-archive -o "$folder/ucall.o"
# Bitcode, of builds without optimisation across crates, confuses other tools.
${OBJCOPY:-objcopy} --strip-debug --remove-section=.llvmbc --remove-section=.llvmcmd \
    --keep-global-symbols="$folder/names" "$folder/ucall.o"
rm -f "$output"
${AR:-ar} rcs "$output" "$folder/ucall.o"
