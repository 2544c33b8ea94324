# Every target sets up what it needs, from a bare clone.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Processes of tests. Four tenths of a process's time is waiting for what it started, so
# three keep two cores busy.
TESTERS ?= 3
# The folders of our own Python.
PYTHONS := pcp dialect frontends passes autodiff compiler runtime training engines \
  serving tools tests/helpers
# Pip says errors alone (-qq): a newer one passes on 100 lines of setuptools.
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# What Python compiles it keeps, so pip need not compile all: a minute, for what no test
# imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help kernels demo demo-serve test test-full lit check format docs docs-site guide bench clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "pcp needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@# Python 3.11 brings a pip that takes 20 s longer to choose our versions.
	$(BIN)/python -m pip install -qq --upgrade pip
	@touch $@

# The compiler and the training system: all that the demo needs.
$(VENV)/.train: $(VENV)/.python pyproject.toml
	$(BIN)/python -m pip install -qq --editable '.[train]'
	@touch $@

# Everything: the oracles (torch, jax) and the test tools too. Pip takes one processor
# for more than a minute; another one compiles our own Python meanwhile.
$(VENV)/.dev: $(VENV)/.python pyproject.toml
	@$(BIN)/python -m compileall -q $(PYTHONS) & \
	  $(BIN)/python -m pip install -qq --no-compile --editable '.[dev]' && wait
	@touch $@ $(VENV)/.train

demo: $(VENV)/.train ## train a small GPT with two workers (about three minutes)
	$(BIN)/pcp train examples/demo.json --workers 2

demo-serve: $(VENV)/.dev ## train a small Llama, serve it on two ranks, chat with it
	$(BIN)/python examples/serve_demo.py

test: $(VENV)/.dev ## lint, lit and unit tests (TESTERS=3 processes, for 2 cores; the second time compiles nothing)
	$(BIN)/ruff check .
	@# Beside lit, one process imports all tests: else each tester compiles that Python.
	$(BIN)/python -m pytest --collect-only -qq > $(VENV)/collected & \
	  $(BIN)/lit -q lit_tests && wait $$! || { wait; tail $(VENV)/collected; exit 1; }
	$(BIN)/python -m pytest -n $(TESTERS) --dist worksteal

test-full: $(VENV)/.dev ## the same with the slow, exhaustive suites
	$(BIN)/ruff check .
	$(BIN)/lit -q lit_tests
	$(BIN)/python -m pytest -m 'slow or not slow' --timeout 1800

lit: $(VENV)/.dev ## the IR regression suite alone
	$(BIN)/lit -v lit_tests

check: $(VENV)/.dev ## lint and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.dev ## format the sources
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

kernels: ## compile our own kernels for every instruction set (gcc; for ARM gcc-aarch64-linux-gnu)
	passes/kernels/native/build.sh

docs: $(VENV)/.dev ## regenerate the pages and the pictures that the code makes
	$(BIN)/python -m pcp.tools.pages.docs
	$(BIN)/python -m pcp.tools.pages.guide_pictures

docs-site: $(VENV)/.dev ## the documentation as a site, in build/site
	$(BIN)/mkdocs build --strict

guide: $(VENV)/.dev ## run every block and every exercise of the guide
	$(BIN)/python -m pytest tests/test_documents.py tests/tools/guide -k guide -m 'slow or not slow'

bench: $(VENV)/.dev ## the training step against JAX and PyTorch
	$(BIN)/python benchmarks/step.py

clean: ## remove what was built (the virtual environment stays)
	rm -rf build dist *.egg-info src/*.egg-info .pytest_cache .ruff_cache .hypothesis
