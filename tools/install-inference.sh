#!/usr/bin/env bash
# Installs other projects' clients of the Open Inference Protocol from PyPI into .bench/inference:
# tools/install-inference.sh. With the argument `mlserver` or `models` it installs MLServer or
# servers of models, which benchmarks load, into .bench/mlserver or .bench/models. Does nothing if
# they are there in these versions.
set -euo pipefail
cd "$(dirname "$0")/.."

# Fills a virtual environment, and adds nothing to one of the same packages.
install_into() {
    local out=$1 requirements=$2
    ! cmp --silent "$requirements" "$out/installed" || return 0
    echo "Installing $(grep -v '^#' "$requirements" | tr '\n' ' ')into $out"
    "$(tools/find-python.sh)" -m venv "$out"
    "$out/bin/python" -m pip install --quiet --requirement "$requirements"
    cp "$requirements" "$out/installed"
}

# The last release of tritonclient with a perf_analyzer for the C library of Debian 12. It links two
# libraries: of base64, and of CUDA, which it does not call here.
unpack_perf_analyzer() {
    local wheel
    "$2" -m pip download --quiet --no-deps --only-binary=:all: \
        tritonclient==2.50.0 nvidia-cuda-runtime-cu12==12.9.79 || return 1
    apt-get download -qq libb64-0d && dpkg -x libb64-0d*.deb . || return 1
    for wheel in *.whl; do python3 -m zipfile -e "$wheel" .; done
    find . -name libcudart.so.12 -exec cp {} "$1" \;
    find . -name libb64.so.0d -exec cp -L {} "$1" \;
    find . -name perf_analyzer -type f -exec install {} "$1" \;
}

install_perf_analyzer() {
    local out=$PWD/.bench/perf_analyzer python=$PWD/.bench/inference/bin/python folder
    [ ! -x "$out/perf_analyzer" ] || return 0
    mkdir -p "$out"
    folder=$(mktemp -d)
    if [ "$(uname -sm)" != "Linux x86_64" ] ||
        ! (cd "$folder" && unpack_perf_analyzer "$out" "$python"); then
        echo "perf_analyzer: not installed, so its test is skipped"
    fi
    rm -rf "$folder"
}

case ${1:-} in
mlserver | models) install_into ".bench/$1" "bench/peers/$1.txt" ;;
*)
    install_into .bench/inference tests/inference_clients/requirements.txt
    install_perf_analyzer
    ;;
esac
