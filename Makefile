# Needs Python >= 3.11 and make; everything else is installed into .venv from requirements.lock, by hash.
# `make demo` and `make test` do all the set-up on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup demo test lint format types check lock clean
.DELETE_ON_ERROR:

help:
	@echo "make demo    set up, then search 16 simulated builds for two planted regressions"
	@echo "make test    set up, then run the tests (container tests run where a Docker engine answers)"
	@echo "make check   lint, types and tests"
	@echo "make setup | lint | format | types | lock | clean"

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "bisect needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ...")'
	@if command -v uv >/dev/null 2>&1; then \
	  set -ex; \
	  uv venv --quiet --allow-existing --python "$$(command -v $(PYTHON))" $(VENV); \
	  uv pip install --quiet --python $(BIN)/python --require-hashes -r requirements.lock; \
	  uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation -e .; \
	else \
	  set -ex; \
	  $(PYTHON) -m venv $(VENV); \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .; \
	fi
	@touch $@

demo: $(READY)
	$(BIN)/bisect demo

# Most tests wait, so they wait side by side; what times real processes has the machine to itself at the end.
test: $(READY)
	@$(BIN)/pytest tests/docker & containers=$$!; \
	$(BIN)/pytest -n 2 tests/unit; units=$$?; \
	$(BIN)/pytest -n 5 --dist worksteal -m "not alone" tests/e2e; processes=$$?; \
	wait $$containers; containers=$$?; \
	$(BIN)/pytest -m "alone or vllm" tests/e2e tests/vllm; timed=$$?; \
	echo "exit codes: unit $$units, containers $$containers, processes $$processes, timed $$timed"; \
	[ $$units = 0 ] && [ $$containers = 0 ] && [ $$processes = 0 ] && [ $$timed = 0 ]

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

check: lint types test

# Needs uv. One lock for all supported Pythons, with hashes and without the address of any index.
lock:
	printf 'hatchling>=1.27\neditables\n' | uv pip compile pyproject.toml - --group dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --no-annotate --quiet --upgrade --output-file requirements.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
