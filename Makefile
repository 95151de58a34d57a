# Two commands: `make serve` answers from a real model on this machine, `make test` proves the project sound.
PYTHON ?= python3
VENV   ?= .venv
PORT   ?= 8000
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: serve ladder test check install lint types unit clean

serve: $(VENV)/.installed
	$(BIN)/threefold serve --port $(PORT)

ladder: $(VENV)/.installed   # what each lever does to throughput and to waiting, on this machine, in under 6 minutes
	$(BIN)/threefold ladder --json ladder.json

test: $(VENV)/.installed-dev lint types unit

check: test

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check src tests scripts
	$(BIN)/ruff format --check src tests scripts

types: $(VENV)/.installed-dev
	$(BIN)/mypy

unit: $(VENV)/.installed-dev
	GOMP_SPINCOUNT=0 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4   # workers share the cores: no spinning

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "threefold needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	$(PIP) --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(PIP) --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
