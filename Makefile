# Two commands for a stranger: `make quickstart` and `make test`. Both install what they need into .venv, say what they
# are doing, and do nothing twice: a stamp in .venv remembers which pyproject.toml was installed.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VLLM_VENV := .venv-vllm
CLIENTS_VENV := .venv-clients
DOCS_VENV := .venv-docs
ENVIRONMENTS_VENV := .venv-environments
TESTS := tests/integration tests/property tests/unit
STARVING := tests/integration/test_sandbox_starvation.py
IN_GVISOR := tests/integration/test_sandbox_gvisor_attacks.py
SOURCES_OF_INSTALL := pyproject.toml setup.py src/rstar2/sandbox/slots/_fork.c

.PHONY: help quickstart test test-gvisor test-cluster test-vllm test-environments test-clients lint types contracts tests coverage docs \
	wheel format clean browser

help:
	@echo "make quickstart   install into .venv and train a tiny agent from nothing (at most ten minutes after installation)"
	@echo "make test         install into .venv and run lint, types, import contracts and all tests"
	@echo "make test-cluster install into .venv and run the tests on a Ray of several machines (under fifteen minutes)"
	@echo "make test-gvisor  install into .venv and let the sandbox's whole attack suite run in gVisor (needs runsc; ten minutes)"
	@echo "make test-vllm    install vLLM for CPUs into .venv-vllm (3.5 GB) and test the vLLM engine with a real one"
	@echo "make test-environments  install verifiers, openenv, TRL and inspect_ai into .venv-environments and test with them"
	@echo "make test-clients install litellm, lm-eval, TRL, verifiers (5 GB) into .venv-clients and let them ask a served model"
	@echo "make docs         install MkDocs into .venv-docs and build the site into site/"
	@echo "make coverage     run the tests once more, and print which lines none of them runs"
	@echo "make wheel        build a manylinux wheel and an sdist into dist/"
	@echo "make format       format the code"
	@echo "make clean        remove every .venv, the site and caches"

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

# The viewer's tests drive a real browser; where none can be installed they are skipped and say so.
browser:
	@command -v chromium google-chrome >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	  echo "== installing Chromium for the viewer's tests" && \
	  { apt-get install -y -qq chromium >/dev/null 2>&1 || \
	    { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }; }; } || \
	  echo "no Chromium: the viewer's browser tests will be skipped"

# Only tests that measure real time (marker `timing`) are tried again on a busy machine: tests/conftest.py. The long
# files come first, so that no core is idle at the end.
# Three workers on two cores, as tests wait as well as compute. What they import is compiled once for the hundreds of
# processes that tests start, whatever the caller's environment says.
tests: $(VENV)/.dev browser
	@echo "== tests (pytest)"
	@env -u PYTHONDONTWRITEBYTECODE $(VENV)/bin/pytest -n 3 --dist loadfile --no-loadscope-reorder -q $(TESTS) --ignore $(STARVING) --ignore $(IN_GVISOR)
	@echo "== programs that are starved of CPU (pytest): alone, because they take the cores from everybody"
	@$(VENV)/bin/pytest -q $(STARVING)

# Apart from `make test`: the tracer of coverage takes a lock that a garbage collection inside it can wait for, forever.
coverage: $(VENV)/.dev browser
	@$(VENV)/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder --cov --cov-report=term:skip-covered -q $(TESTS) --ignore $(STARVING) --ignore $(IN_GVISOR)

# Processes are killed and hung in the middle of steps; each test has a cluster of its own size.
test-cluster: $(VENV)/.dev
	@echo "== runs on a Ray of several machines on this one (pytest)"
	@$(VENV)/bin/pytest -q --durations=12 tests/cluster

# A program in gVisor takes a second of both cores, and there are hundreds.
test-gvisor: $(VENV)/.dev
	@command -v runsc >/dev/null || { echo "there is no runsc on the PATH (Debian: apt install runsc)"; exit 1; }
	@echo "== the sandbox's attacks in gVisor (pytest)"
	@$(VENV)/bin/pytest -q tests/integration/test_sandbox_gvisor.py $(IN_GVISOR)

$(VLLM_VENV)/.vllm: $(SOURCES_OF_INSTALL) scripts/install.py scripts/install_vllm.py
	@"$(PYTHON)" scripts/install_vllm.py $(VLLM_VENV)
	@touch $@

# On CPUs, also where there is a GPU: the same everywhere. Not a part of `make test`: it takes 3.5 GB and ten minutes.
test-vllm: $(VLLM_VENV)/.vllm
	@echo "== getting SmolLM2-135M, if it is not here yet"
	@$(VLLM_VENV)/bin/rstar2 models get smollm2-135m
	@echo "== the vLLM engine: a fake server, a real one, and vLLM in the process (pytest)"
	@CUDA_VISIBLE_DEVICES= $(VLLM_VENV)/bin/python -m pytest -q \
		tests/integration/test_engine_vllm_wire.py tests/integration/test_engine_vllm_real.py tests/integration/test_engine_vllm_transfer.py
	@echo "== a training run on Ray whose tokens come from vLLM (pytest)"
	@CUDA_VISIBLE_DEVICES= VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind OMP_NUM_THREADS=1 \
		VLLM_NO_USAGE_STATS=1 $(VLLM_VENV)/bin/python -m pytest -q tests/cluster/test_cluster_vllm.py

$(ENVIRONMENTS_VENV)/.environments: $(SOURCES_OF_INSTALL) scripts/install.py scripts/install_environments.py
	@"$(PYTHON)" scripts/install_environments.py $(ENVIRONMENTS_VENV)
	@touch $@

# Not a part of `make test`: both packages pin what the others leave open.
test-environments: $(ENVIRONMENTS_VENV)/.environments
	@echo "== tasksets of verifiers and servers of OpenEnv (pytest)"
	@RSTAR2_OPENENV_PYTHON=$(abspath $(ENVIRONMENTS_VENV))/openenv/bin/python $(ENVIRONMENTS_VENV)/bin/python -m pytest -q \
		-m environments tests/integration/test_environment_verifiers.py tests/integration/test_environment_openenv_real.py \
		tests/integration/test_sandbox_openenv_real.py
	@echo "== environments that TRL ships (pytest)"
	@$(ENVIRONMENTS_VENV)/trl/bin/python -m pytest -q -m environments tests/integration/test_environment_trl_package.py
	@echo "== the sandbox in an evaluation of inspect_ai (pytest)"
	@$(ENVIRONMENTS_VENV)/inspect/bin/python -m pytest -q -m environments tests/integration/test_sandbox_inspect_real.py

$(CLIENTS_VENV)/.clients: $(SOURCES_OF_INSTALL) scripts/install.py scripts/install_vllm.py scripts/install_clients.py
	@"$(PYTHON)" scripts/install_clients.py $(CLIENTS_VENV)
	@touch $@

# Clients that others wrote, unmodified, against `rstar2 serve` on a tiny model. They import much: some ten minutes.
# RSTAR2_TRL names a checkout of TRL's repository, whose environment classes are played then; without it they are skipped.
test-clients: $(CLIENTS_VENV)/.clients
	@echo "== litellm, lm-eval, TRL and verifiers against a served model (pytest)"
	@CUDA_VISIBLE_DEVICES= HF_HUB_OFFLINE=1 $(CLIENTS_VENV)/bin/python -m pytest -q tests/clients \
		tests/integration/test_environment_trl.py

$(DOCS_VENV)/.docs: $(SOURCES_OF_INSTALL) scripts/install.py
	@"$(PYTHON)" scripts/install.py $(DOCS_VENV) docs
	@touch $@

# Strict: a broken link, a page that no menu names and a file from another host fail the build. `make test` runs what
# the pages show.
docs: $(DOCS_VENV)/.docs
	@NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict
	@echo "the site: site/index.html (with search: $(DOCS_VENV)/bin/python -m http.server --directory site)"

wheel: $(VENV)/.dev
	@echo "== a manylinux wheel and an sdist, into dist/"
	@$(PY) scripts/build_wheel.py dist

format: $(VENV)/.dev
	@$(VENV)/bin/ruff check --fix
	@$(VENV)/bin/ruff format

clean:
	rm -rf $(VENV) $(VLLM_VENV) $(ENVIRONMENTS_VENV) $(CLIENTS_VENV) $(DOCS_VENV) site build dist .pytest_cache .mypy_cache \
		.ruff_cache .hypothesis .coverage
