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
# Its build folder.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
# Of the package: all that is beside calls, a list such as queue,store, or nothing for calls alone.
FEATURES ?= full
CARGO_TEST_FLAGS ?=
PYTEST_FLAGS ?= -q
# Runs what failed once more, alone: see the file.
RUN_TESTS = $(PY) tools/run-tests.py
# Most tests wait for a peer or a time limit, so there are more test processes than processors. 0 runs
# all tests in one process.
TEST_PROCESSES ?= 6
AT_ONCE = --numprocesses=$(TEST_PROCESSES) --max-worker-restart=0
# So the other suites run beside that of Python, whose output then comes whole, at its end.
ifneq ($(filter test test-all,$(MAKECMDGOALS)),)
ifneq ($(TEST_PROCESSES),0)
MAKEFLAGS += --jobs=2 --output-sync=target
# So that of Python, the longest, begins before that of C.
test-c: | setup test-programs .bench/tls_client
endif
endif
BENCH_FLAGS ?=
CFLAGS ?= -O2 -Wall -Wextra
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Otherwise each test process rewrites the assertions of all tests: 10 s of its processor.
unexport PYTHONDONTWRITEBYTECODE
# PyO3 builds for the interpreter of .venv.
export PYO3_PYTHON := $(abspath $(PY))

# Crates outside the workspace, so that it does not depend on what benchmarks need.
BENCH_RUST := $(wildcard bench/load/src/*.rs bench/peers/rust/src/*.rs bench/peers/rust/src/bin/*.rs)

# Each has the targets of one subject.
INCLUDED := tests/tests.mk tools/nightly.mk tools/release.mk bench/bench.mk

# The description of a target begins with `##` if many people need it, else with `#:`.
LIST = grep -hE '^[a-z0-9.%-]+:.*$(1) ' $(2) | sed -E 's/:.*$(1) /\t/' | expand -t 20
.PHONY: help help-all
help: ## List the targets that people need most
	@$(call LIST,\#\#,$(MAKEFILE_LIST))

help-all: ## List all targets, by subject
	@for file in $(MAKEFILE_LIST); do echo "$$file:"; $(call LIST,\#[\#:],"$$file"); done

# .venv has one of two builds of the package. Cargo keeps both, so a change between them takes seconds.
.PHONY: setup setup-release
setup: $(STAMPS)/package-test-release ## Make .venv with the package, built for tests, and its test extras (FEATURES= for calls alone)

setup-release: $(STAMPS)/package-release ## Put the release build into .venv, which the benchmarks measure

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

# Written anew only when FEATURES is another.
$(STAMPS)/features: $(STAMPS)/venv FORCE
	@echo "$(FEATURES)" | cmp --silent - $@ || echo "$(FEATURES)" >$@
.PHONY: FORCE

# maturin lists every crate that it downloads, also with --quiet, so its output is shown on failure.
$(STAMPS)/wheel-%: $(SOURCES) $(STAMPS)/maturin $(STAMPS)/features
	@tools/check-requirements.sh
	@rm -rf $(WHEELS)/$*
	@echo "Building the package ($*): some minutes the first time"
	@$(VENV)/bin/maturin build --quiet --profile $* --locked --features "$(FEATURES)" \
		--out $(WHEELS)/$* --interpreter $(PY) \
		>$(STAMPS)/build-$*.log 2>&1 || { cat $(STAMPS)/build-$*.log; exit 1; }
	@touch $@

# pip does not replace a package of the same version, so this forces it. A distribution `ucall`, as
# earlier builds of a clone were named, has the same files: removed later, it would take these along.
$(STAMPS)/package-%: $(STAMPS)/wheel-% $(STAMPS)/test-tools
	@echo "Installing the package into $(VENV)"
	@! ls -d $(VENV)/lib/python*/site-packages/ucall-*.dist-info >/dev/null 2>&1 || \
		$(PY) -m pip uninstall --quiet --yes ucall
	@$(PY) -m pip install --quiet --force-reinstall --no-deps $(WHEELS)/$*/*.whl
	@rm -f $(STAMPS)/package-*
	@touch $@
.PRECIOUS: $(STAMPS)/wheel-%

# Not as an extra of the package, so that linting Python builds no Rust.
$(STAMPS)/lint-tools: pyproject.toml $(STAMPS)/venv | $(STAMPS)/test-tools
	@$(PY) -m pip install --quiet $$($(PY) -c 'import tomllib; \
		print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["lint"])')
	@touch $@

.PHONY: demo
demo: setup-release .bench/target/release/load ## Serve the example, call it over HTTP and raw TCP, load it for five seconds
	@tools/demo.sh

.PHONY: test test-all test-rust test-python
test: test-rust test-python ## Build and run the tests, each on one engine (TEST_PROCESSES=0: one at a time)
	@$(RUN_TESTS) flaky

test-all: override PYTEST_FLAGS += --both-engines
test-all: override VARIANTS :=
test-all: test ## Run the tests on both engines, and all variants of the slow ones

# Variants of slow tests that `make test` runs.
VARIANTS := --first-variants

.PHONY: test-programs
test-programs:
	@tools/install-test-programs.sh

# Built before the tests, because a busy machine takes minutes for Go's standard library.
.bench/tls_client: tests/python/go/tls_client.go | test-programs
	@mkdir -p $(@D)
	@if command -v go >/dev/null; then go build -o $@ $<; fi

# ucall-python is an extension module, which the Python tests cover. This includes the fuzz targets
# over their corpus, on stable and without cargo-fuzz.
test-rust: $(STAMPS)/venv ## Run the Rust tests
	RUST_TEST_THREADS=$(or $(filter-out 0,$(TEST_PROCESSES)),1) $(RUN_TESTS) cargo $(TESTED) \
		$(CARGO_TEST_FLAGS)

# One profile and one set of features for all that tests build, so that each crate is compiled once.
TESTED := --profile=test-release --locked --workspace --exclude=ucall-python --features=full

test: test-bench
test-bench: setup #: Run the tests of the benchmark's sections and report
	$(RUN_TESTS) pytest $(PYTEST_FLAGS) tests/bench

test-python: setup test-programs .bench/tls_client ## Run the Python tests against the built package
	$(RUN_TESTS) pytest $(AT_ONCE) --dist=worksteal $(VARIANTS) $(PYTEST_FLAGS) tests/python

.bench/docs/stamp: docs/site/requirements.txt $(STAMPS)/venv
	@mkdir -p $(@D)
	@$(PY) -m venv $(@D)
	@$(@D)/bin/pip install --quiet --requirement $<
	@touch $@

# What the pages are made of, or an archive without git, where they are always made anew. They link to
# any file, so a file that comes or goes counts as well.
DOCS_SOURCES = $(or $(wildcard $(shell git ls-files '*.md' bench docs examples include 2>/dev/null)),FORCE)
.bench/docs/files: .bench/docs/stamp FORCE
	@git ls-files >$@.now 2>/dev/null || true
	@cmp --silent $@.now $@ || cp $@.now $@

# Sphinx has an environment of its own, and reads the docstrings of the package in $(VENV).
.PHONY: docs
test: docs
docs: .site/stamp ## Build the documentation in .site/, and check its links and anchors
.site/stamp: $(DOCS_SOURCES) tools/c-reference.py .bench/docs/files $(STAMPS)/package-test-release
	@$(PY) tools/c-reference.py
	@$(PY) -m bench report --pages
	@UCALL_PACKAGES="$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" \
		.bench/docs/bin/sphinx-build --quiet --fail-on-warning --keep-going --fresh-env \
		-c docs/site -d .site/doctrees . .site/html
	@touch $@
	@echo "docs: .site/html/index.html"

# Once for all targets: two of pip at a time would break the environment.
.PHONY: conformance-programs
conformance-programs: setup
	@tools/install-conformance.sh $(PY)

.PHONY: test-conformance
test: test-conformance
test-conformance: conformance-programs test-programs #: Run conformance suites: JSONTestSuite, h11, httptools, httplint
	$(RUN_TESTS) pytest $(PYTEST_FLAGS) --ignore=tests/conformance/test_tls.py tests/conformance

# Playwright drives Debian's Chromium, and brings a newer Node.
PLAYWRIGHT := playwright==1.65.2
.PHONY: test-javascript
test: test-javascript
test-javascript: docs conformance-programs test-programs #: Test ucall.js in Node, and with the site in Chromium after `make test-browser`
	$(RUN_TESTS) pytest $(PYTEST_FLAGS) tests/javascript

.PHONY: lint-explorer
lint: lint-explorer
lint-explorer: #: Check that the built page matches its source, if npm works
	@tools/build-explorer.sh --check

.PHONY: lint lint-rust lint-python lint-types lint-licences lint-tidy
lint: lint-tidy lint-rust lint-licences lint-advisories lint-python lint-types lint-workflows ## Run every check
lint: lint-container

# With the profile of the tests, so that C libraries are not compiled again.
lint-rust: $(STAMPS)/venv #: Check the format of Rust, and run clippy
	$(CARGO) fmt --all --check
	$(CARGO) clippy --profile=test-release --workspace --features=full --all-targets --locked \
		--quiet -- -D warnings
	rustfmt --check --edition 2024 $(BENCH_RUST)

lint-python: $(STAMPS)/lint-tools #: Check the format of Python, and run ruff
	$(VENV)/bin/ruff check --quiet $(PYTHON_CODE)
	$(VENV)/bin/ruff format --check --quiet $(PYTHON_CODE)

lint-types: $(STAMPS)/lint-tools $(if $(STUBS),setup) #: Check the types of the package and its stubs
	$(if $(TYPED_CODE),$(VENV)/bin/mypy)
	$(if $(STUBS),$(PY) -m mypy.stubtest ucall._core)

.PHONY: lint-advisories
lint-advisories: $(STAMPS)/lint-tools #: Check for known vulnerabilities, if online
	@$(PY) tools/check-advisories.py

lint-licences: $(STAMPS)/venv #: Check the licences of all dependencies
	@$(PY) tools/check-licences.py
	@$(PY) tools/third-party-licences.py --check

.PHONY: licences
licences: $(STAMPS)/venv ## Write LICENSE-THIRD-PARTY, after a change of dependencies
	@$(PY) tools/third-party-licences.py

lint-tidy: $(STAMPS)/venv #: Check the style rules that formatters do not check
	@$(PY) tools/tidy.py
	@$(PY) tools/check-cycles.py
	@$(PY) tools/check-options.py
	@$(PY) tools/check-version.py
	@$(PY) tools/mutants.py --check

.PHONY: format
format: $(STAMPS)/lint-tools ## Format Rust and Python
	$(CARGO) fmt --all
	$(VENV)/bin/ruff check --quiet --fix-only --select I $(PYTHON_CODE)
	$(VENV)/bin/ruff format --quiet $(PYTHON_CODE)

.PHONY: clean
clean: ## Remove all builds, and .venv
	rm -rf $(VENV) .bench .mypy_cache .pytest_cache .ruff_cache
	$(CARGO) clean --quiet

.PHONY: test-c
test: test-c
# Installs pytest without the package, so that testing C builds no Python package. `make --jobs` runs
# one pip at a time, and this one while the package is built.
$(STAMPS)/test-tools: pyproject.toml $(STAMPS)/maturin
	@$(PY) -c 'import tomllib; \
		project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print(*project["optional-dependencies"]["test"], sep="\n")' | \
		$(PY) -m pip install --quiet --requirement /dev/stdin
	@touch $@

test-c: $(STAMPS)/test-tools test-programs ## Run the tests of the C library and its examples
	$(CARGO) build $(TESTED)
	$(TEST_C)

# Its tests wait for little, so more processes would only start more often.
test-c test-c-release: TEST_PROCESSES := $(if $(filter 0,$(TEST_PROCESSES)),0,3)

# Otherwise a busy machine would compile its programs for longer than a test may take.
TEST_C = PYTHONPATH=tests $(PY) tests/c/build.py $(VARIANTS) && \
	$(RUN_TESTS) pytest $(AT_ONCE) --dist=loadfile $(VARIANTS) $(PYTEST_FLAGS) tests/c

ACTIONLINT := github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
.PHONY: lint-workflows
lint-workflows: #: Check the workflows of GitHub, if Go can install actionlint
	@if error=$$(GOBIN=$(abspath .bench/bin) go install $(ACTIONLINT) 2>&1); then \
		.bench/bin/actionlint && echo "workflows: good"; \
	else echo "workflows: not checked; needs Go and its module proxy: $${error##*$$'\n'}"; fi

lint-container: $(STAMPS)/lint-tools #: Check the Dockerfiles
	@$(VENV)/bin/hadolint deploy/*Dockerfile

include $(INCLUDED)
