# The words a newcomer, a contributor and CI type. Each target prepares what it needs in .venv first.

# The interpreter that .venv is created with:  make test PYTHON=python3.13
PYTHON ?= python3
# Minutes of load:  make torture MINUTES=2  make soak MINUTES=60
MINUTES ?= 10
# Flags:  make demo ARGS="--seed 7"  make matrix ARGS="--short 4.3"
ARGS ?=
# Processes that share the tests. Most tests wait, for a broker or a clock: more than processors is quicker, and too many
# make what is timed late.
WORKERS ?= 2

VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test torture soak matrix check bench services docs

help: ## What there is to type (this list)
	@awk -F ':[^#]*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.installed-demo ## A flaky pipeline that loses nothing, live
	@$(BIN)/leveret demo $(ARGS)

test: $(VENV)/.installed-dev ## All tests
	$(BIN)/pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

torture: $(VENV)/.installed-dev ## Processes on a real RabbitMQ, struck every ten seconds: MINUTES=10, ARGS="--cluster"
	@$(BIN)/leveret torture --minutes $(MINUTES) $(ARGS)

soak: MINUTES = 30
soak: $(VENV)/.installed-dev ## The same with few faults, and all that processes use must stay flat: MINUTES=30
	@$(BIN)/leveret torture --minutes $(MINUTES) --every 120 --rate 40 --soak $(ARGS)

matrix: $(VENV)/.installed-dev ## The tests for RabbitMQ on 3.10, 4.0 and 4.3, with classic and with quorum queues
	@$(BIN)/python -m scripts.matrix $(ARGS)

check: $(VENV)/.installed-dev ## Lint, format, types, and which layer may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src $(wildcard tests/typing)
	$(BIN)/lint-imports --no-logo --no-cache

bench: $(VENV)/.installed-dev ## Measure, beside the peers; writes benchmarks/results.json
	$(BIN)/python -m benchmarks

services: ## Start the servers that the tests talk to
	@scripts/services

docs: $(VENV)/.installed-dev ## Write docs/cli.md, docs/configuration.md and the tables of docs/benchmarks.md and docs/record.md anew
	@mkdir -p docs
	$(BIN)/python -m leveret.cli.reference > $(VENV)/cli.md
	mv $(VENV)/cli.md docs/cli.md
	$(BIN)/python -m leveret.runtime.reference > $(VENV)/configuration.md
	mv $(VENV)/configuration.md docs/configuration.md
	$(BIN)/python -m benchmarks.page
	$(BIN)/python -m scripts.record_page

# Stamps, so that a second run starts at once: a changed pyproject.toml installs again, nothing else does.
$(VENV)/.installed-%: pyproject.toml $(VENV)/.created
	@echo "Installing leveret with its \"$*\" extra into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

# The version is asked for first: pip's own words about an old Python name neither the cause nor the way out.
$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "leveret needs Python 3.11 or newer, and there is no \"$(PYTHON)\" here. Name yours: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "leveret needs Python 3.11 or newer, and \"$(PYTHON)\" is $$($(PYTHON) --version 2>&1). Name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "$(PYTHON) could not create $(VENV). On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@touch $@
