# What is built for others: wheels, the source distribution, the C library, pages; certificates.

# The C library needs cargo and a C compiler, and no .venv.
PREFIX ?= /usr/local
LIBDIR ?=
.PHONY: install-c uninstall-c
install-c: ## Build and install the C library (PREFIX=/usr/local LIBDIR=lib64 DESTDIR=…)
	@LIBDIR="$(LIBDIR)" DESTDIR="$(DESTDIR)" crates/ucall-capi/install.sh "$(PREFIX)"

uninstall-c: #: Remove the C library that install-c has installed with the same folders
	@LIBDIR="$(LIBDIR)" DESTDIR="$(DESTDIR)" crates/ucall-capi/install.sh "$(PREFIX)" --uninstall

DIST := dist
# Empty: all targets that can be built here, and all versions of Python that pyproject.toml names.
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

sdist: $(STAMPS)/release-tools #: Make the source distribution in dist/, build and call it in a new environment
	@rm -rf $(DIST)/sdist
	$(VENV)/bin/maturin sdist --out $(DIST)/sdist
	$(VENV)/bin/twine check --strict $(DIST)/sdist/*
	"$$(tools/find-python.sh)" tools/test-wheel.py --package $(DIST)/sdist/*

test-wheel: test-programs .bench/tls_client #: Run the Python tests on a wheel of dist/ in a new environment (PYTHON=python3.13)
	"$$(tools/find-python.sh)" tools/test-wheel.py $(if $(WHEEL),--package $(WHEEL)) \
		$(AT_ONCE) --dist=worksteal $(PYTEST_FLAGS)

.PHONY: test-old-system test-new-pythons
test-old-system: #: Install a wheel of dist/ in Debian 11, serve and call there (needs root)
	@tools/test-wheel-in-debian.sh bullseye python3.11

test-new-pythons: #: The same with 3.14 and 3.15 in Debian's next release
	@tools/test-wheel-in-debian.sh forky python3.14
	@tools/test-wheel-in-debian.sh forky python3.15

.PHONY: dist-c test-dist-c sbom
dist-c: $(STAMPS)/release-tools #: Pack the C library in dist/, for any folder and glibc 2.17
	@tools/pack-c-library.sh $(abspath $(PY)) $(DIST)

test-dist-c: $(STAMPS)/test-tools dist-c #: Unpack it elsewhere, and build and call the examples there
	UCALL_C_TARBALL="$$(ls $(abspath $(DIST))/ucall-c-*.tar.gz)" \
		$(PY) -m pytest $(PYTEST_FLAGS) tests/c/test_packaging.py \
		-k "pkg_config or find_package or tarball or exports or installed or major_version"

sbom: #: List the crates that are compiled in, as CycloneDX, in dist/
	@tools/write-sboms.sh $(DIST)

.PHONY: lint-container test-container
# Debian's Python is 3.13.
test-container: #: Run the instructions of deploy/*Dockerfile without Docker, and serve (needs root)
	@[ -n "$(wildcard $(DIST)/ucall_rpc-*-cp313-cp313-*linux*.whl)" ] || \
		$(MAKE) wheels WHEEL_TARGETS=$$(uname -m)-unknown-linux-gnu WHEEL_PYTHONS=3.13
	@tools/test-container.sh

# trustme names the authority client.pem, because clients need it.
.PHONY: certs
certs: $(STAMPS)/test-tools ## Make a test authority and a certificate for this machine in certs/
	@mkdir -p certs
	$(PY) -m trustme --quiet --dir certs --identities localhost 127.0.0.1 ::1
	@echo "certs/: server.pem and server.key for the server, client.pem for its clients"

.PHONY: explorer explorer-screenshots lint-explorer
explorer: ## Build the page at GET / from explorer/ (needs npm)
	@tools/build-explorer.sh

explorer-screenshots: setup #: Write the pictures of docs/explorer.md, after `make test-browser`
	@$(PY) tools/explorer-screenshots.py
