# What takes long, and runs each night.

COSMIC_RAY := 8.7.0
CARGO_MUTANTS := 27.1.0
MUTATION := .bench/mutation

# In an environment of its own: it needs other packages than the tests.
$(MUTATION)/cosmic-ray-$(COSMIC_RAY): | $(STAMPS)/venv
	@$(PY) -m venv $(MUTATION)/venv
	@$(MUTATION)/venv/bin/pip install --quiet cosmic-ray==$(COSMIC_RAY)
	@touch $@

$(MUTATION)/bin/cargo-mutants:
	cargo install --quiet --locked --root $(MUTATION) cargo-mutants@$(CARGO_MUTANTS)

.PHONY: test-mutations
test-mutations: setup test-programs $(MUTATION)/cosmic-ray-$(COSMIC_RAY) $(MUTATION)/bin/cargo-mutants
test-mutations: #: Change the modules that decide everywhere, and fail at what no test sees (ONLY=balancer)
	PATH="$(abspath $(MUTATION)/bin):$$PATH" $(PY) tools/mutation_test.py --only "$(ONLY)" \
		--cosmic-ray $(abspath $(MUTATION)/venv/bin/cosmic-ray)

SECONDS_EACH ?= 10
.PHONY: test-fairness
test-fairness: setup-release #: Compare the times of callers beside one attacker of each kind with those alone
	cd tests && $(abspath $(PY)) -m fairness --seconds $(SECONDS_EACH)
