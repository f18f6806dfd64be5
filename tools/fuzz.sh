#!/usr/bin/env bash
# Runs the fuzz targets under cargo-fuzz, each for SECONDS: tools/fuzz.sh SECONDS [TARGET...]
#
# Inputs with new coverage are stored in .fuzz/corpus and used by the next run; fuzz/corpus is only
# read. `tools/fuzz.sh keep` moves those that add coverage to fuzz/corpus, minimized.
set -euo pipefail
cd "$(dirname "$0")/.."

TOOLS="$PWD/.fuzz"
BYTES_MAX=4096
KEPT_BYTES_MAX=512
export PATH="$TOOLS/bin:$PATH"

fail() {
    echo "fuzz: $1" >&2
    exit 1
}

rustup run nightly rustc --version > /dev/null 2>&1 \
    || fail "needs nightly: rustup toolchain install nightly --profile minimal"
if ! cargo fuzz --version > /dev/null 2>&1; then
    echo "fuzz: installing cargo-fuzz into .fuzz"
    cargo install --quiet --locked --root "$TOOLS" cargo-fuzz
fi

# The decoder of `.npy` is in Python, and its target with it.
run_npy() {
    local python="$PWD/.venv/bin/python"
    "$python" -c "import atheris" 2> /dev/null \
        || "$python" -m pip install --quiet "atheris>=3,<4" \
        || fail "the target npy needs atheris, which is made for Linux"
    mkdir -p "$TOOLS/corpus/npy"
    "$python" fuzz/npy.py "$TOOLS/corpus/npy" fuzz/corpus/npy -dict=fuzz/dictionaries/npy.dict \
        -max_len="$BYTES_MAX" -artifact_prefix="$TOOLS/" "$@" 2>&1 | progress npy
}

dictionary() {
    case "$1" in
        http_head | chunked) echo http ;;
        connection) echo connection ;;
        queue_*) echo queue ;;
        *) echo json ;;
    esac
}

# Prints a line of libFuzzer's every ten seconds or so, and all of a failure.
progress() {
    awk -v target="$1" '
        /^#[0-9]+/ {
            if (systime() >= next_at) { print target ": " $0; next_at = systime() + 10 }
            next
        }
        /^INFO:|^Dictionary|^"|^\t|^$|^######/ { next }
        { print target ": " $0 }'
}

run() {
    local target=$1 bytes_max=$BYTES_MAX
    shift
    if [ "$target" = npy ]; then
        run_npy "$@"
        return
    fi
    mkdir -p "$TOOLS/corpus/$target"
    cargo +nightly fuzz run --features libfuzzer "$target" "$TOOLS/corpus/$target" \
        "fuzz/corpus/$target" -- -dict="fuzz/dictionaries/$(dictionary "$target").dict" \
        -max_len="$bytes_max" -print_final_stats=0 "$@" 2>&1 | progress "$target"
}

keep() {
    local target=$1
    cargo +nightly fuzz run --features libfuzzer "$target" "fuzz/corpus/$target" \
        "$TOOLS/corpus/$target" -- -merge=1 -max_len="$KEPT_BYTES_MAX" 2>&1 \
        | progress "$target"
}

how=${1:-60}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    mapfile -t targets < <(ls fuzz/targets | sed 's/\.rs$//'; [ "$how" = keep ] || echo npy)
fi
for target in "${targets[@]}"; do
    if [ "$how" = keep ]; then
        keep "$target"
    else
        run "$target" -max_total_time="$how"
    fi
done
