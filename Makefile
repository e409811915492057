# make demo   set up, then a real batch through Airflow to playable clips in out/clips
#             it uses an accelerator where there is one: make demo DEVICE=cpu, or OWN_TORCH=1 PYTHON=... for that Python's torch
# make ui     the Airflow page over what the demo made
# make lint   the linters of Python, JavaScript and CSS; make hooks runs them before every commit
#
# Tests, with what each tier took on two cores, in hours in which importing torch took 2.0 to 2.3 CPU-s; the last line
# of a run says what it took.
#
# make test-fast          170 CPU-s   5 min   in this process: no servers, no process groups, no Airflow
# make test             1,110 CPU-s  14 min   all that proves the product on one machine: fast things first, Airflow last
# make test-servers       880 CPU-s  16 min   every service of docker-compose.yml, a kill on S3 and PostgreSQL, an evening from a bucket; needs redis-server
# make test-faults                            every victim killed in every stage, every layout of ranks: an hour and more
# make test-demo-world                        the demo's world: every trainer, every kind of prompt and of judged scene
# make test-gpu                               what needs an accelerator
# make test-triton         45 CPU-s   1 min   every kernel compiles under other Tritons: make test-triton TRITONS='3.6.0 3.9.0'
# make mutate              30 CPU-s   1 min   10,000 kinds of damage to stored files, none of which may pass unseen
# make fuzz               700 CPU-s  10 min   10,000 made-up inputs of each kind, and files as large as may be: no traceback, no hang, at most 1 GiB
SHELL := /bin/bash
PYTHON ?= python3
# Another environment for another Python: make test-fast VENV=build/py313 PYTHON=python3.13
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WEB_STAMP := node_modules/.installed
WORKERS ?= 2
TRITONS ?= 3.6.0 3.8.0 3.9.0
OWN_PYTHON := $(if $(filter command,$(firstword $(origin PYTHON))),$(PYTHON))
GPU_TESTS := tests/gpu tests/kernels tests/models/refiner tests/sampling
# Every stage and rank is a process of its own: what they import is compiled once.
PYTEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest
SHARED = --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder

.PHONY: setup demo ui test test-fast test-servers test-faults test-demo-world test-gpu test-triton mutate fuzz
.PHONY: lint lint-python lint-types lint-web hooks bench
.PHONY: clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
ifdef OWN_TORCH  # torch and Triton stay those of PYTHON, as on a machine with an accelerator; no tools of development
	$(PYTHON) configs/deploy/environment.py $(VENV) pyproject.toml constraints.txt
	$(PYTHON) -m pip --python $(BIN)/python install --quiet --no-deps --editable .
else
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[airflow,dev]'
endif
	touch $(STAMP)

demo: setup
	$(BIN)/python -m tools.demo

ui: setup
	$(BIN)/python -m tools.demo --ui

test: setup
	$(PYTEST) $(SHARED) -m 'not faults and not demo_world and not deployment'

test-fast: setup
	$(PYTEST) -m fast

test-servers: setup
	$(PYTEST) -m deployment --all-programs

test-faults: setup
	$(PYTEST) -m faults

test-demo-world: setup
	$(PYTEST) $(SHARED) -m demo_world

# On a machine without network: make test-gpu PYTHON=python3, with the packages that this Python has.
test-gpu: $(if $(OWN_PYTHON),,setup)
	OMP_NUM_THREADS=1 $(or $(OWN_PYTHON),$(BIN)/python) -m pytest -m gpu $(GPU_TESTS)

test-triton: setup
	set -e; for version in $(TRITONS); do \
	    $(BIN)/python -m pip install --quiet --no-deps --upgrade --target build/triton-$$version triton==$$version; \
	    PYTHONPATH=build/triton-$$version $(BIN)/python -m tools.compile_kernels; \
	done

mutate: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.mutations --out benchmarks/results/faults.json

fuzz: setup
	$(PYTEST) $(SHARED) --hypothesis-profile=fuzz tests/fuzz

lint: lint-python lint-types lint-web

lint-python: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: setup
	$(BIN)/mypy

lint-web: $(WEB_STAMP)
	node_modules/.bin/biome check --error-on-warnings

$(WEB_STAMP): package.json package-lock.json
	@command -v npm >/dev/null || { echo 'the linter of JavaScript and CSS needs Node.js: install nodejs and npm' >&2; exit 1; }
	npm ci --no-audit --no-fund --loglevel=error
	touch $(WEB_STAMP)

hooks: setup
	$(BIN)/pre-commit install

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv node_modules out build *.egg-info
