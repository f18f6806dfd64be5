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
readonly root=$PWD/.bench/debian/$suite-$python
readonly tag=cp${python/python3./3}
wheel=$(ls dist/*-"$tag-$tag"-manylinux*_"$(uname -m)".whl)

# The source of Debian 12, whose keys the older suites know.
build_python() {
    install_packages "$root" gcc make libc6-dev libffi-dev libssl-dev zlib1g-dev xz-utils
    echo 'deb-src http://deb.debian.org/debian bookworm main' >>"$root/etc/apt/sources.list"
    in_root "$root" root "
        cd /usr/src
        apt-get update -qq
        apt-get source -qq --download-only $python
        tar -xf ${python}_*.orig.tar.xz --strip-components 1
        ./configure --quiet --disable-test-modules CFLAGS=-O1
        make --silent --jobs=$(nproc)
        make --silent install" >"$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; exit 1; }
}

make_debian "$suite" "$root"
if in_root "$root" root "apt-cache show $python" >/dev/null 2>&1; then
    install_packages "$root" "$python" "$python-venv"
else
    build_python
fi
cp tools/test-wheel.py "$wheel" "$root/srv/"
glibc=$(in_root "$root" root 'ldd --version | sed -n "1s/.* //p"')
echo "Debian $(cat "$root/etc/debian_version"), glibc $glibc:"
in_root "$root" root "$python /srv/test-wheel.py --package /srv/${wheel##*/}"
rm -rf "$root"
