#!/usr/bin/env bash
# Runs the instructions of deploy/Dockerfile without Docker: each stage in a Debian that debootstrap
# makes, with Debian's Python in place of the image's. Then it runs the container's command as its
# user on a free port, waits for the health check, and calls a function. Needs root on Debian.
set -euo pipefail
cd "$(dirname "$0")/.."
source tools/debian-root.sh
enter_namespaces "$@"

readonly folder=$PWD/.bench/container
variables=() directory=/ user=root stage=0 root='' command='' health=''

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
    install_packages "$folder/base" python3-dev python3-venv
    in_root "$folder/base" root "python3 -m venv /usr/local"
    umount --recursive "$folder/base"
}

# in_stage COMMAND: as the stage's user, in its folder and with its variables.
in_stage() {
    in_root "$root" "$user" "cd $directory; export ${variables[*]:-_=}; $1"
}

# run_instruction WORD ARGUMENTS
run_instruction() {
    case $1 in
    FROM)
        stage=$((stage + 1)) root=$folder/stage-$stage variables=() directory=/ user=root
        cp -a --reflink=auto "$folder/base" "$root"
        ;;
    RUN) run_command "$2" ;;
    WORKDIR) directory=$2 && mkdir -p "$root$2" ;;
    COPY) copy "${2% *}" ;;
    ENV) read -ra variables <<<"$2" ;;
    USER) user=$2 ;;
    HEALTHCHECK) health=$(words_of "$2") ;;
    CMD) command=$(words_of "$2") ;;
    EXPOSE) ;;
    *) echo "test-container: no rule for $1" >&2 && exit 1 ;;
    esac
}

run_command() {
    local words=$1
    if [[ $words =~ ^--mount=type=bind,from=build,source=([^,]*),target=([^ ]*)\ (.*) ]]; then
        cp -a "$folder/stage-1${BASH_REMATCH[1]}" "$root${BASH_REMATCH[2]}"
        words=${BASH_REMATCH[3]}
    fi
    in_stage "$words" >>"$root.log" 2>&1 || { tail -n 20 "$root.log" >&2; exit 1; }
}

# Copies a file, or for "." what Docker's ignore file lets through, as of the last commit.
copy() {
    local files=("$1")
    if [ "$1" = . ]; then
        mapfile -t files < <(sed -n 's/^!/:(glob)/p' deploy/Dockerfile.dockerignore)
        git archive HEAD -- "${files[@]}" | tar -x -C "$root$directory"
    else
        cp "$1" "$root$directory/"
    fi
}

# The array at the end of an instruction, as words of the shell.
words_of() {
    python3 -c 'import json, shlex, sys; print(shlex.join(json.loads(sys.argv[1])))' \
        "[${1#*\[}"
}

serve_and_call() {
    variables+=("UCALL_PORT=$(python3 -c 'import socket
print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')")
    in_stage "exec $command" &
    local server=$!
    until in_stage "$health" >"$root.log" 2>&1; do
        kill -0 "$server" || exit 1
        sleep 0.1
    done
    echo "As user $(in_stage 'id -u'), ucall health: $(in_stage "$health")"
    # shellcheck disable=SC2016 # expanded there
    [ "$(in_stage 'ucall -p "$UCALL_PORT" sum a=2 b=3')" = 5 ]
    # shellcheck disable=SC2046 # a list of processes
    kill -TERM $(processes_of "$root")
    wait "$server"
}

make_base
sed -e '/^#/d' -e ':a' -e '/\\$/N; s/\\\n *//; ta' deploy/Dockerfile >"$folder/instructions"
while read -r -u 3 word arguments; do
    [ -n "$word" ] || continue
    echo "$word $arguments"
    run_instruction "$word" "$arguments"
done 3<"$folder/instructions"
serve_and_call
echo "container: good"
remove_roots
