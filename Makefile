# Two commands on a bare machine with python3 (3.11 or newer), pip and make:
#   make run    sets up and plays the smoke study on embedded data
#   make test   sets up and passes the tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.DEFAULT_GOAL := help
DATA ?= data
.PHONY: help run test unit check format data-figures fault-campaign deploy-campaign clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

run: $(VENV)/installed  ## set up, then play the smoke study (about a minute) and write its report
	$(BIN)/pmfl run smoke

test: $(VENV)/installed-dev check  ## set up, then everything that must hold: style, types, layers, all tests
	$(BIN)/python -m pytest --numprocesses=2 --cov --cov-report=term
	$(BIN)/python tests/coverage_floor.py

unit: $(VENV)/installed-dev  ## the quick tests only
	$(BIN)/python -m pytest --numprocesses=2 -m "not slow"

check: $(VENV)/installed-dev  ## style, types and import layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

.PHONY: bench
bench: $(VENV)/installed  ## measure everything that is said about speed: ten idle minutes (PEERS=FILE.toml)
	$(BIN)/pmfl bench all $(if $(PEERS),--peers $(PEERS))

format: $(VENV)/installed-dev  ## put the code in its form
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

data-figures: $(VENV)/installed  ## measure what data cost (DATA=DIR) and write docs/results/data.md
	$(BIN)/python benchmarks/data.py --data $(DATA) --to docs/results/data.md

fault-campaign: $(VENV)/installed-dev  ## kill a study 60 times at random moments; writes docs/results/faults.md
	$(BIN)/python -m tests.faults.campaign

deploy-campaign: $(VENV)/installed-dev  ## break real deployments, INJECTIONS=20 of each kind; hours; docs/results/deployment.md
	$(BIN)/python -m tests.deploy.campaign results/deploy-campaign --injections $(or $(INJECTIONS),20)
	for part in same_bits storm siege walk; do $(BIN)/python -m tests.deploy.$$part results/deploy-campaign || exit 1; done
	$(BIN)/python -m tests.deploy.overhead --nodes 3 10 --out results/deploy-campaign
	$(BIN)/python -m tests.deploy.campaign_report results/deploy-campaign docs/results --injections $(or $(INJECTIONS),20)

clean:  ## remove what `make` made; results stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# Where python3 comes without its venv module, virtualenv from pip does the same.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than 3.11; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { \
	  rm -rf $(VENV) && $(PYTHON) -m pip install --quiet --target $(VENV)-maker virtualenv && \
	  PYTHONPATH=$(VENV)-maker $(PYTHON) -m virtualenv --quiet $(VENV) && rm -rf $(VENV)-maker; }

$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	@echo "installing pmfl into $(VENV) …"
	@$(PIP) --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "installing what the tests need …"
	@$(PIP) --editable '.[dev]'
	@touch $@
