# `make` alone prints this file's targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-gpu sweep campaign axe screenshots lint format docs dist-check clean

help:  ## this list
	@awk -F':.*## ' '/^[a-z.-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Two stamps, because a stranger's demo needs neither the linters nor the optional partitioners.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/installed

$(VENV): $(VENV)/installed-dev  ## the development environment

demo: $(VENV)/installed  ## install, train the built-in graph with four strategies, print one table
	$(BIN)/python benchmarks/demo.py

# Each process begins with half of the tests, in their order: tests that share a module's fixture mostly stay together.
test: $(VENV)/installed-dev  ## install, run every test that needs no GPU
	$(BIN)/python -m pytest -q -n 2 --dist worksteal

# Nearly all of its time is Triton compiling each kernel for each width and type: eight processes compile at once.
test-gpu: $(VENV)/installed-dev  ## the same bodies on a CUDA device
	$(BIN)/python -m pytest -q -m gpu -n 8 --dist worksteal

sweep: $(VENV)/installed-dev  ## every case of the tests of which `make test` runs a sample
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --sweep -m 'sweep and not gpu'

campaign: sweep  ## that, and long trials of faults, which resume; some need root
	$(BIN)/python -m faults

axe:  ## fetch axe-core, with which tests look for what a screen reader cannot read
	mkdir -p build && cd build && npm pack --silent axe-core@4.14.0

screenshots: $(VENV)/installed-dev  ## pictures of the report for the documentation; needs Chromium
	$(BIN)/python benchmarks/screenshots.py

lint: $(VENV)/installed-dev  ## ruff check, ruff format --check, mypy --strict on src
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev  ## let ruff fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/installed-dev  ## build the documentation into site/
	$(BIN)/python docs/pictures.py
	$(BIN)/sphinx-build -q -W --keep-going docs site

dist-check:  ## build wheel and sdist into dist/, install them elsewhere, train there
	PYTHON=$(PYTHON) .ci/dist-check

clean:  ## remove the environment, run folders and caches
	rm -rf $(VENV) runs site build dist .mypy_cache .ruff_cache .pytest_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/*.egg-info
