# Two commands for a stranger: `make quickstart` and `make test`. Both install what they need into .venv, say what they
# are doing, and do nothing twice: a stamp in .venv remembers which pyproject.toml was installed.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
SOURCES_OF_INSTALL := pyproject.toml setup.py src/rstar2/sandbox/_fork.c

.PHONY: help quickstart test lint types contracts tests format clean

help:
	@echo "make quickstart   install into .venv and show the system at work (about a minute after installation)"
	@echo "make test         install into .venv and run lint, types, import contracts and all tests"
	@echo "make format       format the code"
	@echo "make clean        remove .venv and caches"

# On a machine without a GPU this must not pull gigabytes of CUDA packages; scripts/install.py explains how it does that.
$(VENV)/.core: $(SOURCES_OF_INSTALL) scripts/install.py
	@"$(PYTHON)" scripts/install.py $(VENV) train
	@touch $@

$(VENV)/.dev: $(SOURCES_OF_INSTALL) scripts/install.py
	@"$(PYTHON)" scripts/install.py $(VENV) train dev
	@touch $@ $(VENV)/.core

quickstart: $(VENV)/.core
	@bash scripts/quickstart.sh $(VENV)/bin/rstar2

test: lint types contracts tests

lint: $(VENV)/.dev
	@echo "== lint and format (ruff)"
	@$(VENV)/bin/ruff check
	@$(VENV)/bin/ruff format --check

types: $(VENV)/.dev
	@echo "== types (mypy, strict)"
	@$(VENV)/bin/mypy

contracts: $(VENV)/.dev
	@echo "== import contracts (import-linter)"
	@$(VENV)/bin/lint-imports

tests: $(VENV)/.dev
	@echo "== tests (pytest)"
	@$(VENV)/bin/pytest -n 2 --dist loadfile --cov --cov-report=term:skip-covered -q

format: $(VENV)/.dev
	@$(VENV)/bin/ruff check --fix
	@$(VENV)/bin/ruff format

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
