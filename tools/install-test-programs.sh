#!/bin/sh
# Installs the missing programs of tests/programs.txt with apt-get, as root or with a sudo that asks
# for no password. Prints a line for each program that is still missing, and never fails, because
# tests without their program are skipped.
#
#     install-test-programs.sh [TARGET]    the programs of `make TARGET`; of `make test` without it
set -eu
cd "$(dirname "$0")/.."
target=${1:-}
# Debian installs servers in /usr/sbin, which is not in every user's PATH. A PATH without /usr/bin
# was chosen to hide programs.
case :$PATH: in
*:/usr/bin:*) PATH=$PATH:/usr/sbin ;;
esac

is_installed() {
    case $1 in
    *.h) echo "#include <$1>" | "${CC:-cc}" -x c -fsyntax-only - 2>/dev/null ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

# Prints the missing programs, each with its package.
list_missing() {
    grep -v '^#' tests/programs.txt | while read -r program package for_target; do
        [ "$for_target" = "$target" ] || continue
        is_installed "$program" || echo "$program $package"
    done
}

as_root() {
    if [ "$(id -u)" -eq 0 ]; then "$@"; else sudo -n "$@"; fi
}

apt_install() {
    as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}

missing=$(list_missing)
[ -n "$missing" ] || exit 0
if command -v apt-get >/dev/null && as_root true 2>/dev/null; then
    packages=$(echo "$missing" | cut -d ' ' -f 2 | tr '\n' ' ')
    echo "Installing for the tests: $packages"
    as_root apt-get update -qq >/dev/null 2>&1 || echo "apt-get update failed" >&2
    # One by one after a failure, so that an unknown package does not affect the others.
    # shellcheck disable=SC2086 # the list is meant to be split
    apt_install $packages || for package in $packages; do apt_install "$package" || true; done
fi
list_missing | while read -r program package; do
    echo "Missing: $program; its tests are skipped (apt-get install $package)"
done
