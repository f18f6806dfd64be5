#!/usr/bin/env bash
# Installs the wheel of dist/ in a fresh Debian made by debootstrap, and serves and calls there.
#
#     test-wheel-in-debian.sh SUITE PYTHON    such as: forky python3.15
#
# A suite that is too old for this Python gets it from the source of Debian 12, which takes minutes.
# Needs root on Debian.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/debian-root.sh
enter_namespaces "$@"

readonly suite=$1 python=$2
readonly made=$PWD/.bench/debian/$suite-$python
readonly tag=cp${python/python3./3}
wheel=$(ls dist/*-"$tag-$tag"-manylinux*_"$(uname -m)".whl)

# The source of Debian 12, whose keys the older suites know.
build_python() {
    install_packages "$made" gcc make libc6-dev libffi-dev libssl-dev zlib1g-dev xz-utils
    echo 'deb-src http://deb.debian.org/debian bookworm main' >>"$made/etc/apt/sources.list"
    in_root "$made" root "
        cd /usr/src
        apt-get update -qq
        apt-get source -qq --download-only $python
        tar -xf ${python}_*.orig.tar.* --strip-components 1
        ./configure --quiet --disable-test-modules CFLAGS=-O1
        make --silent --jobs=$(nproc)
        make --silent install" >"$made.log" 2>&1 || { tail -n 20 "$made.log" >&2; exit 1; }
}

make_debian "$suite" "$made"
if in_root "$made" root "apt-cache show $python" >/dev/null 2>&1; then
    install_packages "$made" "$python" "$python-venv"
else
    build_python
fi
cp tools/test-wheel.py "$wheel" "$made/srv/"
glibc=$(in_root "$made" root 'ldd --version | sed -n "1s/.* //p"')
echo "Debian $(cat "$made/etc/debian_version"), glibc $glibc:"
in_root "$made" root "$python /srv/test-wheel.py --package /srv/${wheel##*/}"
remove_root "$made"
