# make demo   set up, then a real batch through Airflow to playable clips in out/clips
# make test   set up, then run every test but the long ones that kill processes: make test-faults
# make ui     the Airflow page over what the demo made
# make lint   the linters of Python, JavaScript and CSS; make hooks runs them before every commit
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
WEB_STAMP := node_modules/.installed

.PHONY: setup demo ui test test-faults lint lint-python lint-types lint-web hooks bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[airflow,dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/python -m tools.demo

ui: setup
	$(BIN)/python -m tools.demo --ui

test: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not faults'

test-faults: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m faults

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
