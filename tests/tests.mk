# Tests that take minutes, or that need more than `make test` does.

# Their tests may take half an hour each. pytest ends others after five minutes.
LONG := --override-ini=faulthandler_timeout=1800

# Otherwise each test runs on one engine, see tests/selection.py. This includes their prerequisites.
conformance leaks security-table test-slow test-udp-flood test-udp-long test-xdp: \
	override PYTEST_FLAGS += --both-engines

# What finds in a night what a change of weeks has broken. The workflow nightly.yml runs it.
.PHONY: test-nightly
test-nightly: export MUTATIONS := 1000000
test-nightly: test-all test-mcp test-inference test-loom test-fuzz conformance sanitize leaks test-many-servers ## Run all tests that need no network, in some hours
test-nightly: test-c-release test-worker-deaths test-store-kills test-batch-kills soak fuzz mutants test-mutations

# Three preemptions reach every step of these protocols, and take seconds rather than hours.
.PHONY: test-loom
test-loom: #: Run the mailbox and the wakeups in every interleaving of their threads
	RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=3 $(CARGO) test --quiet --profile=test-release \
		--locked --package ucall-engine --lib --target-dir target/loom -- wake:: mailbox::

# `make test-c` links the build of the tests, which has checks of its own.
.PHONY: test-c-release
test-c-release: override VARIANTS :=
test-c-release: export UCALL_C_PROFILE := release
test-c-release: $(STAMPS)/test-tools test-programs c-library #: Run the tests of the C library against its release
	$(TEST_C)

# They run in `make test-rust` as well.
.PHONY: test-fuzz
test-fuzz: $(STAMPS)/venv #: Run the fuzz targets over mutations of their corpus, on stable (MUTATIONS=1000000)
	$(RUN_TESTS) cargo $(TESTED) --test=corpus

.PHONY: test-without-programs bare-machine fuzz
test-without-programs: #: Run every test with the programs of tests/programs.txt hidden from PATH
	@tools/test-without-programs.sh

bare-machine: #: Run `make demo` and `make test` in a fresh Debian, as root and as a user (SHORT=1)
	@tools/bare-machine.sh $(if $(SHORT),--short)

SECONDS_EACH ?= 60
TARGETS ?=
fuzz: setup ## Fuzz every parser for a minute, on nightly (SECONDS_EACH=60 TARGETS="http_head")
	@tools/fuzz.sh $(SECONDS_EACH) $(TARGETS)

.PHONY: test-many-servers
test-many-servers: setup #: Kill, drain and restart servers under the load of a client for a minute each
	UCALL_MANY_SERVERS_SECONDS=60 $(PY) -m pytest -q --numprocesses 2 $(LONG) \
		tests/python/test_many_servers.py tests/python/test_nats_many.py \
		tests/python/test_lost_packets.py

.PHONY: test-worker-deaths
test-worker-deaths: setup #: Kill workers for a minute, and report how long new connections wait
	UCALL_WORKER_DEATHS_SECONDS=60 $(PY) -m pytest -q -s --both-engines $(LONG) \
		tests/python/test_worker_connections.py -k all_the_time

NATS_TOOL := github.com/nats-io/natscli/nats@v0.5.1
.bench/bin/nats:
	GOBIN=$(abspath .bench/bin) go install $(NATS_TOOL)

# Debian 12 has 2.9.10, which loses messages of JetStream.
.bench/bin/nats-server:
	GOBIN=$(abspath .bench/bin) go install github.com/nats-io/nats-server/v2@v2.10.27

.PHONY: test-nats-tool
test-nats-tool: setup test-programs .bench/bin/nats #: Let the tool of NATS, built by Go, list, measure and call a server
	$(PY) -m pytest $(PYTEST_FLAGS) tests/python/test_nats_tools.py

# In an environment of their own: their dependencies are many, and one needs Node 22.
.PHONY: test-mcp
test-mcp: setup test-programs #: Install other projects' clients of MCP and its conformance suite, and run them
	@tools/install-mcp.sh
	$(RUN_TESTS) pytest $(AT_ONCE) $(PYTEST_FLAGS) tests/mcp_clients

# In environments of their own, as those of MCP.
.PHONY: test-inference
test-inference: setup test-programs #: Install other projects' clients of the Open Inference Protocol, and run them
	@tools/install-inference.sh
	$(RUN_TESTS) pytest $(PYTEST_FLAGS) tests/inference_clients

.PHONY: test-pandas
test-pandas: setup #: Install pandas and Arrow, and test queues that carry their values
	$(PY) -m pip install --quiet 'pandas>=2.2,<4' 'pyarrow>=15'
	$(PY) -m pytest $(PYTEST_FLAGS) tests/python/queue/test_queue_tables.py

.PHONY: test-torch
test-torch: setup #: Install PyTorch, some gigabytes, and test queues that carry its tensors
	$(PY) -m pip install --quiet 'torch>=2.3'
	$(PY) -m pytest $(PYTEST_FLAGS) tests/python/queue/test_queue_tensors.py

.PHONY: leaks
leaks: setup #: Make a million calls of every kind on each engine, and count leaks
	UCALL_LEAK_CALLS=1000000 UCALL_ARRAY_CALLS=100 $(PY) -m pytest $(PYTEST_FLAGS) $(LONG) -s \
		tests/python/test_leaks.py tests/python/test_array_memory.py

SANITIZED := --locked --package ucall-buffer --package ucall-engine --package ucall-server \
	--features ucall-engine/xdp
HOST = $(shell rustc -vV | sed -n 's/^host: //p')
.PHONY: sanitize
# Miri cannot run system calls and C. The fuzz targets run under AddressSanitizer, too.
sanitize: #: Run the crates with unsafe code under Miri and AddressSanitizer, on nightly
	@$(CARGO) +nightly miri --version >/dev/null 2>&1 || \
		rustup component add --toolchain nightly miri rust-src
	MIRIFLAGS=-Zmiri-disable-isolation $(CARGO) +nightly miri test --locked \
		--package ucall-buffer --target-dir target/miri
	RUSTFLAGS=-Zsanitizer=address $(CARGO) +nightly test $(SANITIZED) --lib --tests \
		--target $(HOST) --target-dir target/asan

MINUTES ?= 10
.PHONY: soak
soak: setup #: Ten minutes of good and hostile traffic; plots memory and descriptors in docs/soak.svg
	@mkdir -p .bench
	PYTHONPATH=tests:. $(PY) -m soak --minutes $(MINUTES) --json .bench/soak.json --svg docs/soak.svg

.PHONY: test-slow
test-slow: setup test-programs #: Run all variants of the slow Python tests, of which `make test` runs one each
	$(PY) -m pytest $(AT_ONCE) --dist=worksteal -m slow $(PYTEST_FLAGS) tests/python

# In an environment of its own, so that neither build replaces the other.
test-python3.%: #: Run them on another Python (make test-python3.14 PYTHON=/path/to/python3.14)
	$(MAKE) VENV=.bench/python3.$* PYTHON=$(or $(PYTHON),python3.$*) \
		CARGO_TARGET_DIR=$(abspath target/python3.$*) test-python

.PHONY: security-table
security-table: setup #: Test every bad input, and write the tables in docs/bad-input.md
	UCALL_SECURITY_TABLE=$(abspath docs/bad-input.md) $(PY) -m pytest $(PYTEST_FLAGS) \
		tests/python/security

.PHONY: conformance
conformance: test-conformance #: Run these and testssl.sh, which takes minutes
	@tools/install-test-programs.sh conformance
	$(PY) -m pytest $(PYTEST_FLAGS) $(LONG) tests/conformance/test_tls.py

.PHONY: test-xdp
test-xdp: setup #: Run the tests of AF_XDP, by sudo unless as root
	$(if $(filter 0,$(shell id -u)),,sudo) $(PY) -m pytest $(PYTEST_FLAGS) -p no:cacheprovider \
		tests/python/test_xdp.py

DATAGRAMS ?= 1000000
.PHONY: test-udp-flood
test-udp-flood: setup #: Compare delays over TCP with those during a flood of forged datagrams
	UDP_FLOOD_DATAGRAMS=$(DATAGRAMS) $(PY) -m pytest $(PYTEST_FLAGS) $(LONG) -s tests/python/test_udp_flood.py

.PHONY: test-udp-long
test-udp-long: setup #: Make 100,000 calls over UDP that lose 5% of the datagrams, on each engine
	UDP_CALLS=100000 $(PY) -m pytest $(PYTEST_FLAGS) $(LONG) tests/python/test_udp.py -k bad_network

.PHONY: test-autobahn
test-autobahn: setup #: Run Autobahn's fuzzing client for WebSocket (PYTHON2=/path/to/python2.7)
	@tools/test-autobahn.sh

.PHONY: test-browser
test-browser: docs conformance-programs test-programs #: Install Chromium and Playwright, and test ucall.js, the chat page and the site in them
	@tools/install-test-programs.sh browser
	$(PY) -m pip install --quiet $(PLAYWRIGHT)
	$(PY) -m pytest $(PYTEST_FLAGS) tests/javascript

.PHONY: test-site
test-site: docs test-programs #: Check all pages of the site in Chromium, after `make test-browser`; pictures in .site/pictures
	@mkdir -p .site/pictures
	SITE_PICTURES=$(abspath .site/pictures) $(PY) -m pytest $(PYTEST_FLAGS) $(LONG) \
		--numprocesses 2 tests/javascript/test_site.py

.PHONY: test-prometheus
test-prometheus: setup #: Install Prometheus, and compare its rates with those of a load for a minute
	@tools/install-test-programs.sh prometheus
	PROMETHEUS_SECONDS=60 $(PY) -m pytest $(PYTEST_FLAGS) tests/python/test_prometheus.py \
		tests/python/test_metrics.py

.PHONY: mutants
KIND ?=
ONLY ?=
mutants: conformance-programs test-programs ## Break the promises of the docs, and see tests fail (KIND=python ONLY=client.md)
	$(PY) tools/mutants.py $(if $(KIND),--kind $(KIND)) --only "$(ONLY)"

.PHONY: walk
walk: $(STAMPS)/venv #: Count the functions and files that one call in C passes (needs valgrind)
	@$(PY) tools/walk.py

.PHONY: test-batch-kills
test-batch-kills: setup #: Kill the processes of batches under load, each two seconds for a minute
	UCALL_BATCH_KILL_SECONDS=60 $(PY) -m pytest --both-engines $(LONG) \
		tests/python/test_batch_process_faults.py -k killed_under_load

.PHONY: test-queue-long test-store-kills
# The outage at the default `expire_s`: OUTAGE_S=60 is the shortest that makes sense.
OUTAGE_S = 300
test-queue-long: setup .bench/bin/nats-server #: Test queues with 100,000 messages through cuts, kills and killed brokers, 4 GiB, 1,000 clients, an outage
	UCALL_QUEUE_AWAY_S=$(OUTAGE_S) UCALL_QUEUE_EXPIRE_S=30 $(PY) -m pytest --verbose \
		$(LONG) -n 8 tests/python/queue/test_queue_outage.py -k accounted_for
	PATH=$(abspath .bench/bin):$$PATH UCALL_QUEUE_MESSAGES=100000 UCALL_QUEUE_LONG=1 \
		$(PY) -m pytest --verbose --capture=no $(LONG) \
		--durations=0 --durations-min=1 $(addprefix tests/python/queue/test_queue_, \
		cuts.py kill.py kill_load.py jetstream_kill.py large.py)

ROUNDS ?= 200
test-store-kills: setup #: Kill the processes of a store in 200 rounds, and check all answers (ROUNDS=50)
	UCALL_STORE_ROUNDS=$(ROUNDS) $(PY) -m pytest --verbose --capture=no $(LONG) \
		tests/python/test_store_kills.py
