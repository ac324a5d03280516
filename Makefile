# `make` alone lists the targets.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DOCS_VENV := .venv-docs
ARGS   ?=
# A good deal of the tests wait for servers they start: a third worker fills two cores (and takes some 3 GB).
WORKERS ?= 3
# The tests start some hundred processes: each would compile what the first could have kept.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup jars run check static fast whole test bench bench-serve docs docs-site lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.installed: requirements.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	$(BIN)/python -m compileall -q src
	@touch $@

setup: $(VENV)/.installed jars ## make .venv with the headrace command and fetch the jars

jars: $(VENV)/.installed
	@$(BIN)/headrace jars --quiet

run: setup ## run the quickstart (make run ARGS="--for 60s")
	@$(BIN)/headrace run examples/quickstart $(ARGS)

check: $(VENV)/.installed ## lint, types, layers, generated docs, fast tests
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target static fast

# on one core, while the tests wait for processes they start
static:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m headrace.reference --check

fast:
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not spark and not service and not cluster" $(ARGS)

# in one run, so that fast tests fill the time in which the others wait
whole:
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test: setup ## everything, real services included
	$(BIN)/headrace jars --s3 --quiet
	$(BIN)/headrace services install
	@$(MAKE) --no-print-directory --jobs=2 static whole

bench: setup ## compare with hand-written PySpark, side by side
	$(BIN)/headrace services install kafka
	$(BIN)/python -m benchmarks $(ARGS)

bench-serve: $(VENV)/.installed ## what endpoints answer, beside a Go server and Redis (needs wrk, Go and ghz)
	$(BIN)/headrace services install redis
	$(BIN)/python -m benchmarks.serving $(ARGS)

docs: $(VENV)/.installed ## regenerate docs/reference, the JSON schema and the generated blocks of other pages
	$(BIN)/python -m headrace.reference

# the tools of the site are in an environment of their own, so that `make setup` stays quick
$(DOCS_VENV)/.installed: requirements-docs.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.txt
	@touch $@

docs-site: $(DOCS_VENV)/.installed ## build docs/ into site/; a broken link is an error
	$(DOCS_VENV)/bin/mkdocs build

lock: ## pin the dependencies again
	$(BIN)/uv pip compile --quiet --universal --no-emit-index-url --generate-hashes --group dev pyproject.toml -o requirements.txt
	$(BIN)/uv pip compile --quiet --universal --no-emit-index-url --generate-hashes --group pyproject.toml:docs -o requirements-docs.txt

clean: ## remove what was built
	rm -rf $(VENV) $(DOCS_VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis
