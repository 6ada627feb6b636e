# Everything runs in .venv, made from requirements.lock; nothing is installed outside this folder.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help setup run test test-compose test-engines check lock chaos soak bench simulate bench-routing bench-scale compose-up compose-down compose-roll clean

help:
	@echo "make run     the whole system on this machine: bus, 4 simulated engines with queue workers, 2 replicas, live traffic"
	@echo "make test    every test but those with real engines (RUN='-k name' picks some)"
	@echo "make test-engines   a real vLLM and llama.cpp server, which VLLM_SERVER and LLAMA_SERVER start (deploy/docs/engines.md)"
	@echo "make test-compose   the docker-compose cluster, run: faults, a rolling update, the dashboard (4 minutes)"
	@echo "make compose-up     the docker-compose cluster with REPLICAS proxies (4); compose-roll renews them, compose-down forgets all"
	@echo "make check   ruff, mypy, doctests, import walls"
	@echo "make chaos   break every part of a fleet under load, TIMES each, and account for every request (TIMES=1: shorter)"
	@echo "make soak    SECONDS (600) of load and faults: does memory, or anything else, grow?"
	@echo "make bench   what Forebay costs, as ratios to a bare relay measured in the same run"
	@echo "make simulate       how well is chosen, in virtual time: every policy, an all-knowing router among them"
	@echo "make bench-routing  the same with the real processes, side by side on the same requests (CELLS=bounds: longer)"
	@echo "make bench-scale    what a choice costs from 10 to 1 000 instances"
	@echo "make lock    resolve the dependencies anew into requirements.lock (needs uv)"

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version.split()[0]; sys.exit(sys.version_info < (3, 11) and "Forebay needs Python 3.11 or newer; $(PYTHON) is " + v + " (make PYTHON=python3.11 ...)")'
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(READY)

run: $(READY)
	@$(BIN)/forebay up --sim 4 --replicas 2 --demo-traffic

test: $(READY)
	$(BIN)/python -m pytest -m "not engines" $(RUN)

test-engines: $(READY)
	$(BIN)/python -m pytest -s tests/engines $(RUN)

test-compose: $(READY)
	$(BIN)/python -m pytest -s tests/compose

REPLICAS ?= 4
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
compose-up:
	$(COMPOSE) up --build --detach --scale proxy=$(REPLICAS)

compose-roll:
	COMPOSE="$(COMPOSE)" deploy/container/roll

compose-down:
	$(COMPOSE) down --volumes --remove-orphans

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q --doctest-modules bus proxy workers deploy
	$(BIN)/python -m pytest -q tests/test_walls.py

TIMES ?= 3
chaos: $(READY)
	$(BIN)/python -m tests.chaos --times $(TIMES)

SECONDS ?= 600
soak: $(READY)
	$(BIN)/python -m tests.chaos.soak --seconds $(SECONDS)

bench: $(READY)
	$(BIN)/python -m tests.bench

SIMULATED ?= 100 300
simulate: $(READY)
	$(BIN)/python -m tests.routing.simulate
	$(BIN)/python -m tests.routing.sampling --instances $(SIMULATED)

CELLS ?= quick
bench-routing: $(READY)
	$(BIN)/python -m tests.routing.processes --cells $(CELLS)

bench-scale: $(READY)
	$(BIN)/python -m tests.bench.scale

# The second file is what the container image is made of: the same versions, without what only tests and one machine need.
LOCK := uv pip compile --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 pyproject.toml
lock:
	$(LOCK) --all-extras -o requirements.lock
	$(LOCK) --extra tokenizer --extra tracing -c requirements.lock -o requirements-runtime.lock

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
