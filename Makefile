# make demo   set up, then render a batch to playable clips
# make test   set up, then run every test but the long ones that kill processes: make test-faults
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo test test-faults lint bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[airflow,dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/magi2 checkpoint make-tiny out/checkpoint --seed 1
	MAGI2_CKPT_ROOT=out/checkpoint MAGI2_STORE=out/store $(BIN)/magi2 render --prompts examples/demo.jsonl --out out/clips

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
