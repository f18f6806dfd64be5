#!/usr/bin/env bash
# Runs README's commands on a fresh Debian: `make demo` and `make test` of the last commit, in a
# root made by debootstrap, as root and then as a user without sudo.
#
#     bare-machine.sh [--short]    --short: as the user alone, `make demo` and a few tests
#
# Needs root on Debian. The user's run keeps the first run's cargo builds, and nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/debian-root.sh
enter_namespaces "$@"

readonly folder=$PWD/.bench/bare-machine
readonly fresh=$folder/fresh
readonly used=$folder/used

# What `make test` needs of other programs: the user has none of them, so their tests are skipped.
readonly few_tests='tests/python/test_engines.py tests/python/test_programs.py
    tests/python/test_clients.py tests/python/test_unix.py tests/python/queue/test_queue_mqtt.py'
whole='make demo && make test'
if [ "${1:-}" = --short ]; then
    # Built in less time; the tests need no fast code.
    export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
    export CARGO_PROFILE_RELEASE_OPT_LEVEL=1
    whole="make demo test-programs
        .venv/bin/pytest -q --numprocesses 4 ${few_tests//$'\n'/}"
fi
readonly whole

# Debian with what README's apt-get line installs, a user, and the last commit.
make_root() {
    remove_root "$used"
    make_debian trixie "$fresh"
    git clone --quiet --depth 1 "file://$PWD" "$fresh/srv/ucall"
    # With recommended packages, as a reader runs README's line.
    in_root "$fresh" root "apt-get install -y -qq $(packages_of_readme)" >>"$fresh.log" 2>&1
    in_root "$fresh" root "useradd --create-home user"
    umount --recursive "$fresh"
}

packages_of_readme() {
    sed -n 's/^\$ .*apt-get install \([^#]*\).*/\1/p' README.md
}

# run ROOT USER
run() {
    echo "== $2: $whole"
    in_root "$1" "$2" "$whole" 2>&1 | tee "$folder/$2.log"
    end_leftovers "$1"
    echo "== $2: passed"
}

# Gives the sources and cargo's builds to the user, in the root without the tests' programs.
hand_over() {
    rm -rf --one-file-system "$fresh/srv"
    mv "$used/srv" "$fresh/srv"
    find "$fresh/srv/ucall/.bench" -mindepth 1 -maxdepth 1 ! -name target -exec rm -rf {} +
    # Its programs need libraries that the tests have installed for root.
    rm -rf "$fresh/srv/ucall/.venv" "$fresh/srv/ucall/target/c-tests"
}

echo "bare-machine: $(git log -1 --format='%h %s'), log in ${folder#"$PWD"/}"
rm -f "$folder"/*.log
make_root
echo "Installed by README's line: $(packages_of_readme)"
if [ "${1:-}" != --short ]; then
    cp -a --reflink=auto "$fresh" "$used"
    run "$used" root
    hand_over
fi
in_root "$fresh" root "chown -R user:user /srv"
run "$fresh" user
grep -HE '^Missing|calls a second|^[0-9].* (passed|skipped)|^without|^test result' \
    "$folder"/*.log | sed "s|^$folder/||"
