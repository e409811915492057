# make demo   set up, then a real batch through Airflow to playable clips in out/clips
# make test   set up, then run every test but the long ones that kill processes: make test-faults
# make ui     the Airflow page over what the demo made
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo ui test test-faults lint bench clean

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

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv out build *.egg-info
