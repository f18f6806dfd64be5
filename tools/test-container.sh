#!/usr/bin/env bash
# Runs the instructions of deploy/Dockerfile and deploy/device.Dockerfile without Docker: in a
# Debian that debootstrap makes, in place of their base. Then it runs each container's command as
# its user on a free port, waits for /readyz, asks the health check and calls a function. It reports
# what the image adds to its base, and the time to /readyz. Needs root on Debian, and a wheel for
# its Python in dist/.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/debian-root.sh
enter_namespaces "$@"

readonly folder=$PWD/.bench/container
readonly context=$folder/context
root=$folder/root variables=() directory=/ user=root command='' health=''

remove_roots() {
    local each
    for each in "$folder"/*/; do
        remove_root "${each%/}"
    done
    remove_root "$folder"
}

# The image has python and pip in /usr/local, where a virtual environment has them, too.
make_base() {
    remove_roots
    make_debian trixie "$folder/base"
    install_packages "$folder/base" python3-venv
    in_root "$folder/base" root "python3 -m venv /usr/local; apt-get clean"
    umount --recursive "$folder/base"
}

# What Docker's ignore file lets through, and the newest wheel for Debian's Python.
make_context() {
    local pattern
    mkdir "$context"
    while read -r pattern; do
        # shellcheck disable=SC2086 # a pattern
        cp deploy/$pattern "$context/" 2>/dev/null || true
    done < <(sed -n 's/^!//p' deploy/.dockerignore)
    rm -f "$context"/*.whl
    # shellcheck disable=SC2012 # by time
    cp "$(ls -t dist/ucall_rpc-*-cp313-cp313-*linux*_"$(uname -m)".whl | head -n 1)" "$context/"
}

# in_stage COMMAND: as the stage's user, in its folder and with its variables.
in_stage() {
    in_root "$root" "$user" "cd $directory; export ${variables[*]:-_=}; $1"
}

# run_instruction WORD ARGUMENTS
run_instruction() {
    case $1 in
    FROM)
        variables=() directory=/ user=root
        cp -a --reflink=auto "$folder/base" "$root"
        ;;
    RUN) run_command "$2" ;;
    WORKDIR) directory=$2 && mkdir -p "$root$2" ;;
    # shellcheck disable=SC2086 # a pattern
    COPY) cp "$context"/${2% *} "$root$directory/" ;;
    ENV) variables+=("$2") ;;
    USER) user=$2 ;;
    HEALTHCHECK) health=$(words_of "$2") ;;
    CMD) command=$(words_of "$2") ;;
    ARG | EXPOSE) ;;
    *) echo "test-container: no rule for $1" >&2 && exit 1 ;;
    esac
}

run_command() {
    local words=${1#--mount=type=bind,source=.,target=/context }
    [ "$words" = "$1" ] || cp -a "$context" "$root/context"
    in_stage "$words" >>"$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; exit 1; }
    rm -rf "$root/context"
}

# The array at the end of an instruction, as words of the shell.
words_of() {
    python3 -c 'import json, shlex, sys; print(shlex.join(json.loads(sys.argv[1])))' \
        "[${1#*\[}"
}

bytes_of() {
    du --summarize --bytes --one-file-system "$1" | cut -f 1
}

serve_and_call() {
    local port
    port=$(python3 -c 'import socket
print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
    variables+=("UCALL_PORT=$port")
    local started=${EPOCHREALTIME/./}
    in_stage "exec $command" &
    local server=$! ready=''
    until ready=$(curl --silent --fail "http://127.0.0.1:$port/readyz"); do
        kill -0 "$server" || exit 1
        sleep 0.01
    done
    echo "/readyz: $ready, $(((${EPOCHREALTIME/./} - started) / 1000)) ms after the start"
    echo "As user $(in_stage 'id -u'), ucall health: $(in_stage "$health")"
    # shellcheck disable=SC2016 # expanded there
    [ "$(in_stage 'ucall -p "$UCALL_PORT" sum a=2 b=3')" = 5 ]
    # shellcheck disable=SC2046 # a list of processes
    kill -TERM $(processes_of "$root")
    wait "$server"
}

# build_and_serve FILE
build_and_serve() {
    local word arguments
    sed -e '/^#/d' -e ':a' -e '/\\$/N; s/\\\n *//; ta' "$1" >"$folder/instructions"
    while read -r -u 3 word arguments; do
        [ -n "$word" ] || continue
        echo "$word $arguments"
        run_instruction "$word" "$arguments"
    done 3<"$folder/instructions"
    local added=$(($(bytes_of "$root") - $(bytes_of "$folder/base")))
    echo "$1: $((added / 1000000)) MB more than its base"
    serve_and_call
    remove_root "$root"
}

make_base
make_context
build_and_serve deploy/Dockerfile
build_and_serve deploy/device.Dockerfile
echo "container: good"
remove_roots
