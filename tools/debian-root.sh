# Sourced by scripts that run commands in a Debian that debootstrap makes. They need root.

# Runs the script again in mount and process namespaces of its own, so that its mounts and processes
# end with it.
enter_namespaces() {
    [ -z "${IN_NAMESPACES:-}" ] || return 0
    [ "$(id -u)" -eq 0 ] || { echo "${0##*/}: needs root, for chroot" >&2; exit 1; }
    command -v debootstrap >/dev/null || {
        apt-get update -qq
        apt-get install -y -qq debootstrap debian-archive-keyring >/dev/null
    }
    IN_NAMESPACES=1 exec unshare --mount --pid --fork --kill-child --mount-proc "$0" "$@"
}

# remove_root ROOT: and nothing that is mounted there, such as the /dev of this machine.
remove_root() {
    ! mountpoint --quiet "$1" || umount --recursive --lazy "$1"
    rm -rf --one-file-system "$1"
}

# make_debian SUITE ROOT: a minimal Debian, in which no service starts.
make_debian() {
    remove_root "$2"
    mkdir -p "$(dirname "$2")"
    local scripts=/usr/share/debootstrap/scripts script=$1
    [ -e "$scripts/$script" ] || script=sid  # A release that is newer than this debootstrap.
    debootstrap --variant=minbase --include=ca-certificates "$1" "$2" http://deb.debian.org/debian \
        "$scripts/$script" >"$2.log" ||
        { tail -n 20 "$2.log" >&2; exit 1; }
    # The root is temporary, so dpkg need not wait for the disk.
    echo force-unsafe-io >"$2/etc/dpkg/dpkg.cfg.d/unsafe-io"
    printf '#!/bin/sh\nexit 101\n' >"$2/usr/sbin/policy-rc.d"
    chmod +x "$2/usr/sbin/policy-rc.d"
    mkdir "$2/srv/cargo"
    copy_registry_settings "$2"
}

# Copies what the host needs to reach its package registries.
copy_registry_settings() {
    local file
    for file in /etc/ssl/certs/ca-certificates.crt /etc/resolv.conf /etc/hosts /etc/pip.conf; do
        [ ! -f "$file" ] || cp -L "$file" "$1$file"
    done
    file=${CARGO_HOME:-$HOME/.cargo}/config.toml
    [ ! -f "$file" ] || cp "$file" "$1/srv/cargo/"
}

# The root is a mount point, because `ip netns` needs one.
mount_system() {
    mountpoint --quiet "$1/proc" && return
    mount --bind "$1" "$1"
    mount -t proc proc "$1/proc"
    mount --rbind --make-rslave /sys "$1/sys"
    mount --rbind --make-rslave /dev "$1/dev"
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

# install_packages ROOT PACKAGE…
install_packages() {
    local root=$1
    shift
    in_root "$root" root "apt-get install -y -qq --no-install-recommends $*" >"$root.log" 2>&1 ||
        { tail -n 20 "$root.log" >&2; exit 1; }
}

# Ends what the commands left running, which keeps the file systems of the root busy, and names it.
end_leftovers() {
    local process
    for process in $(processes_of "$1"); do
        echo "left running: $(tr '\0' ' ' <"/proc/$process/cmdline")"
        kill -KILL "$process"
    done
    umount --recursive --lazy "$1"
}

processes_of() {
    local process
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/root")" != "$1" ] || echo "${process#/proc/}"
    done
}
