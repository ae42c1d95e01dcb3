# Two commands do everything on a fresh machine with Python 3.11 or newer:
#   make run    set up, fetch the default model, and serve it with a playground on http://127.0.0.1:8000
#   make test   the same set-up, then linters, types and the whole suite
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test setup model calibrate clean

PORT ?= 8000

run: model
	$(BIN)/surefoot serve --port $(PORT)

test: model
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

model: setup
	$(BIN)/surefoot models get smollm2

# The built-in profiles of the default model, made again from the prompts that come with surefoot (about 4 minutes each).
calibrate: model
	$(BIN)/surefoot calibrate --kind careful --name careful --out src/surefoot/profiles/careful.json
	$(BIN)/surefoot calibrate --kind creative --name creative --out src/surefoot/profiles/creative.json

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
