#!/usr/bin/env bash
# Runs README's commands on a fresh Debian: `make demo` and `make test` of the last commit, in a
# root made by debootstrap, as root and then as a user without sudo.
#
#     bare-machine.sh [--short]    --short: `make demo`, and only the tests that use other programs
#
# Needs root on Debian. It runs in mount and process namespaces of its own, so its mounts and
# processes end with it. The user's run keeps the first run's cargo builds, and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly folder=$PWD/.bench/bare-machine
readonly fresh=$folder/fresh
readonly used=$folder/used
readonly short=${1:-}

if [ -z "${BARE_MACHINE_IN_NAMESPACE:-}" ]; then
    [ "$(id -u)" -eq 0 ] || { echo "bare-machine: needs root, for chroot" >&2; exit 1; }
    command -v debootstrap >/dev/null ||
        { apt-get update -qq && apt-get install -y -qq debootstrap >/dev/null; }
    BARE_MACHINE_IN_NAMESPACE=1 exec unshare --mount --pid --fork --kill-child "$0" "$@"
fi

# Copies what the host needs to reach its package registries.
copy_registry_settings() {
    local file
    for file in /etc/ssl/certs/ca-certificates.crt /etc/resolv.conf /etc/hosts /etc/pip.conf; do
        [ ! -f "$file" ] || cp -L "$file" "$1$file"
    done
    file=${CARGO_HOME:-$HOME/.cargo}/config.toml
    [ ! -f "$file" ] || cp "$file" "$1/srv/cargo/"
}

# Debian with what README's apt-get line installs, a user, and the last commit. No service starts.
make_root() {
    rm -rf "$fresh" "$used"
    mkdir -p "$folder"
    debootstrap --variant=minbase --include=ca-certificates trixie "$fresh" \
        >"$folder/debootstrap.log"
    mkdir "$fresh/srv/cargo"
    copy_registry_settings "$fresh"
    printf '#!/bin/sh\nexit 101\n' >"$fresh/usr/sbin/policy-rc.d"
    chmod +x "$fresh/usr/sbin/policy-rc.d"
    git clone --quiet --depth 1 "file://$PWD" "$fresh/srv/ucall"
    in_root "$fresh" root "apt-get install -y -qq $(packages_of_readme) >/dev/null 2>&1"
    in_root "$fresh" root "useradd --create-home user"
    umount --recursive "$fresh"
}

packages_of_readme() {
    sed -n 's/^\$ .*apt-get install \([^#]*\).*/\1/p' README.md
}

# The root is a mount point, because `ip netns` needs one.
mount_system() {
    mountpoint --quiet "$1/proc" && return
    mount --bind "$1" "$1"
    mount -t proc proc "$1/proc"
    mount --rbind /sys "$1/sys"
    mount --rbind /dev "$1/dev"
}

# in_root ROOT USER COMMAND: runs it in a clean environment, in which only proxies and cargo's
# profiles are kept.
in_root() {
    local kept home=/root
    [ "$2" = root ] || home=/home/$2
    mapfile -t kept < <(env | grep -iE '^(https?_proxy|no_proxy|CARGO_PROFILE_[A-Z_]*)=' || true)
    mount_system "$1"
    env -i HOME="$home" USER="$2" LOGNAME="$2" LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        CARGO_HOME=/srv/cargo "${kept[@]}" \
        chroot --userspec="$2" "$1" bash -euc "cd /srv/ucall 2>/dev/null || cd /; $3" </dev/null
}

readonly with_programs='tests/python/test_clients.py tests/python/test_docs.py
    tests/python/test_proxies.py tests/python/test_tls_clients.py tests/python/test_unix.py
    tests/python/queue/test_queue_mqtt.py'
whole='make demo && make test'
if [ "$short" = --short ]; then
    # Optimized enough for the tests, and built in less time.
    export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
    whole="make demo test-programs .bench/tls_client
        .venv/bin/pytest -q ${with_programs//$'\n'/}"
fi

# run ROOT USER
run() {
    echo "== $2: $whole"
    in_root "$1" "$2" "$whole" 2>&1 | tee "$folder/$2.log"
    echo "== $2: passed"
}

# Ends what the tests left running, which keeps the file systems of the root busy, and names it.
end_leftovers() {
    local process
    for process in /proc/[0-9]*; do
        if [ "$(readlink "$process/root")" = "$1" ]; then
            echo "left running: $(tr '\0' ' ' <"$process/cmdline")"
            kill -KILL "${process#/proc/}"
        fi
    done
    umount --recursive --lazy "$1"
}

# Gives the sources and cargo's builds to the user, in the root without the tests' programs.
hand_over() {
    rm -rf "$fresh/srv"
    mv "$used/srv" "$fresh/srv"
    find "$fresh/srv/ucall/.bench" -mindepth 1 -maxdepth 1 ! -name target -exec rm -rf {} +
    # Its programs need libraries that the tests have installed for root.
    rm -rf "$fresh/srv/ucall/.venv" "$fresh/srv/ucall/target/c-tests"
    in_root "$fresh" root "chown -R user:user /srv"
}

echo "bare-machine: $(git log -1 --format='%h %s'), log in ${folder#"$PWD"/}"
make_root
echo "Installed by README's line: $(packages_of_readme)"
cp -a --reflink=auto "$fresh" "$used"
run "$used" root
end_leftovers "$used"
hand_over
run "$fresh" user
grep -HE '^Missing|calls a second|^[0-9].* (passed|skipped)|^without|^test result' \
    "$folder/root.log" "$folder/user.log" | sed "s|^$folder/||"
