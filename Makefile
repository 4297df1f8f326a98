# make demo and make test set up everything they need in .venv; both can be run again at any time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DATA_DIR ?= .data
# Tests share the cores, a file to a worker, the slow ones first: those wait for children and services half of their
# time, and the quick ones fill it. Those that replay acceptances have a core to themselves.
TEST_WORKERS ?= 3
TESTS := tests/e2e tests/integration tests/architecture tests/contract tests/golden tests/migration tests/property tests/unit
# Hundreds of short processes read the bytecode of our packages.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test test-full lint types serve bench bench-winners clean check-machine
.DELETE_ON_ERROR:

setup: $(STAMP)

check-machine:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "error: Python 3.11 or newer is needed; '$(PYTHON)' is not. Set PYTHON=/path/to/python3.11"; exit 1; }
	@command -v gcc >/dev/null || { echo "error: gcc is needed to compile kernels (Debian: apt-get install gcc)"; exit 1; }

# torch first and pinned: an open range would pull a CUDA build of several gigabytes.
# pip compiles bytecode on one core, one file after the other, and a third of it is of files that nobody imports.
UNUSED := /(tests|testing|networkx|pip|setuptools|torchgen|onnx|lexers|mypyc?)/
$(STAMP): pyproject.toml | check-machine
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check --editable '.[tune,cuda,postgres,dev]'
	@$(BIN)/python -m compileall -qq -j 0 -x '$(UNUSED)' $(VENV)/lib || true # some packages hold files for other Pythons
	@touch $@

demo: $(STAMP)
	$(BIN)/tuner demo

test: $(STAMP)
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder --durations 10 $(TESTS)

# What is too long for every run: the big matrices, and everything else.
test-full: test
	$(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder -m full --durations 10 $(TESTS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(STAMP)
	$(BIN)/mypy

serve: $(STAMP)
	$(BIN)/tuner serve --data-dir $(DATA_DIR)

# Each prints what it measured side by side in one run; see bench/README.md. About a quarter of an hour on two cores.
bench: $(STAMP)
	$(BIN)/python bench/planning.py
	$(BIN)/python -m bench.compile_cost
	$(BIN)/python bench/cpu_winners.py
	$(BIN)/python bench/winner_stability.py
	$(BIN)/python bench/fusion_matrix.py
	$(BIN)/python bench/jit_call.py
	$(BIN)/python bench/lookup.py

# Every kernel × eight shapes against torch: hours, and it goes on where it was stopped.
bench-winners: $(STAMP)
	$(BIN)/python bench/winners.py

clean:
	rm -rf $(VENV) .demo .data build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
