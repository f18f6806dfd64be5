#!/usr/bin/env bash
# Runs the fuzz targets under cargo-fuzz, each for a while: tools/fuzz.sh SECONDS [TARGET...]
#
# Inputs with new coverage go to .fuzz/corpus, which the next run uses; fuzz/corpus is only read.
# `tools/fuzz.sh keep` copies short inputs that add coverage from .fuzz/corpus to fuzz/corpus.
set -euo pipefail
cd "$(dirname "$0")/.."

# The instrumented code keeps its checks; optimised as a whole it would build for minutes.
export CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
export CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS=true
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
install_cargo_fuzz() {
    cargo fuzz --version > /dev/null 2>&1 && return
    echo "fuzz: installing cargo-fuzz into .fuzz"
    cargo install --quiet --locked --root "$TOOLS" cargo-fuzz
}

# The decoder of `.npy` and its target are in Python.
run_npy() {
    local python="$PWD/.venv/bin/python"
    "$python" -c "import atheris" 2> /dev/null \
        || "$python" -m pip install --quiet "atheris>=3,<4" \
        || fail "the target npy needs atheris, which is made for Linux"
    mkdir -p "$TOOLS/corpus/npy"
    "$python" fuzz/npy.py "$TOOLS/corpus/npy" fuzz/corpus/npy -dict=fuzz/dictionaries/npy.dict \
        -max_len="$BYTES_MAX" -artifact_prefix="$TOOLS/" "$@" 2>&1 | progress npy
}

# The default loader of queues with all that it makes, in an extension that AddressSanitizer
# instruments. CPython is not instrumented, so its allocator is replaced by malloc.
run_pickles() {
    local python="$PWD/.venv/bin/python" host package="$TOOLS/pickles"
    host=$(rustc -vV | sed -n 's/^host: //p')
    RUSTFLAGS="-Zsanitizer=address -Cforce-frame-pointers=yes" PYO3_PYTHON="$python" \
        cargo +nightly build --quiet --release --locked --package ucall-python --features full \
        --target "$host" --target-dir "$TOOLS/target"
    rm -rf "$package"
    mkdir -p "$package"
    cp -r python/ucall "$package/ucall"
    cp "$TOOLS/target/$host/release/libucall_python.so" "$package/ucall/_core.abi3.so"
    LD_PRELOAD=$(cc -print-file-name=libasan.so) PYTHONMALLOC=malloc PYTHONPATH="$package" \
        ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_odr_violation=0 \
        "$python" -P fuzz/pickles.py "$1" 2>&1 | sed "s/^/pickles: /"
}

dictionary() {
    case "$1" in
        http_head | chunked) echo http ;;
        connection) echo connection ;;
        websocket) echo websocket ;;
        pickle) echo pickle ;;
        queue_*) echo queue ;;
        *) echo json ;;
    esac
}

# Prints a line of libFuzzer about every ten seconds, and all lines of a failure.
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
    local target=$1
    shift
    install_cargo_fuzz
    mkdir -p "$TOOLS/corpus/$target"
    cargo +nightly fuzz run --features libfuzzer "$target" "$TOOLS/corpus/$target" \
        "fuzz/corpus/$target" -- -dict="fuzz/dictionaries/$(dictionary "$target").dict" \
        -max_len="$BYTES_MAX" -print_final_stats=0 "$@" 2>&1 | progress "$target"
}

keep() {
    local target=$1
    install_cargo_fuzz
    cargo +nightly fuzz run --features libfuzzer "$target" "fuzz/corpus/$target" \
        "$TOOLS/corpus/$target" -- -merge=1 -max_len="$KEPT_BYTES_MAX" 2>&1 \
        | progress "$target"
}

how=${1:-60}
shift || true
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
    mapfile -t targets < <(ls fuzz/targets | sed 's/\.rs$//')
    [ "$how" = keep ] || targets+=(npy pickles)
fi
for target in "${targets[@]}"; do
    case "$how $target" in
        keep\ *) keep "$target" ;;
        *\ pickles) run_pickles "$how" ;;
        *\ npy) run_npy -max_total_time="$how" ;;
        *) run "$target" -max_total_time="$how" ;;
    esac
done
