# Every target works from a fresh clone: it makes .venv and installs what it needs first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Installing everything takes one resolver run; the stamp is renewed when its inputs change.
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
EVAL := $(VENV)/.eval
FUZZ := $(VENV)/.fuzz
PUBLISH := $(VENV)/.publish
MUTANTS_TOOL := $(VENV)/.mutants
# Nothing here is needed to run or to test: twine says what an index would refuse, mkdocs makes a
# site of docs/.
PUBLISH_TOOLS := "build>=1.3" "twine>=6.1" "mkdocs-material>=9.6"
# Most tests use one core: interpreted kernels, bookkeeping. Two processes leave two cores idle for a
# seventh of the time, while programs that tests started wait. Each takes a file at a time, the
# longest first (tests/durations.json). A kernel that several need is compiled by one of them.
WORKERS ?= 3
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Some containers forbid Python to keep what it makes of sources. Every process of the tests, and
# every program that they start, would make it again.
unexport PYTHONDONTWRITEBYTECODE

# A level of test-processors compiles its own kernels, a test file in one process.
LEVELS ?=
PROCESSORS := $(BIN)/python -m tests.processors --processes 2

.PHONY: demo test check unit test-installed test-processors test-processors-quick test-long test-eval test-faults test-mutants test-simulation test-fuzz test-gpu pins dist docs format clean help

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

demo: $(RUNTIME) ## answer the bundled prompts with the bundled model and show the memory report
	$(BIN)/pagedrun demo --overwrite

test: $(DEV) ## everything: lint, types, import layers, all tests
	$(MAKE) --no-print-directory --jobs 2 check unit

check: $(DEV) ## lint, format, types, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(DEV) ## the tests
	$(PYTEST) $(PYTEST_ARGS)

# A forgotten package works while editable and is missing from the wheel: run what users run on
# a real install. It comes first on the path, so the editable one is not seen. test_layout.py finds
# every module and data file there; the others start the program and read what it brings along.
test-installed: $(DEV) ## whole-program tests against a real (non-editable) install
	rm -rf build/installed build/lib
	$(BIN)/pip install --quiet --no-deps --target build/installed .
	PYTHONPATH=$(CURDIR)/build/installed PAGEDRUN_EXPECT_INSTALLED=$(CURDIR)/build/installed \
		$(PYTEST) tests/house/test_layout.py tests/whole/test_program.py \
		tests/cli/test_command.py tests/recipes/test_*.py

test-processors: $(DEV) ## kernels, parity and same bytes under each feature level below the host's
	$(PROCESSORS) $(LEVELS:%=--level %)

test-processors-quick: $(DEV) ## the quick part of test-processors, on processors with AVX2 and no more
	$(PROCESSORS) --level x86-64-v3 --subset

test-long: $(DEV) ## the thorough forms, minutes each
	$(PYTEST) -m long --ignore=tests/whole/test_neighbour.py
	$(PYTEST) -m "hypothesis and not gpu" --hypothesis-profile=thorough
	$(BIN)/pytest -m long tests/whole/test_neighbour.py # takes times: nothing may run beside it

test-eval: $(EVAL) ## lm-evaluation-harness with pagedrun and with Transformers
	HF_HUB_OFFLINE=1 $(PYTEST) tests/evaluation

# FAULTS="--room cache --narrow": see `python -m tests.faults --help`.
test-faults: $(DEV) ## wrong patches of the source, one at a time: a test must notice each
	$(BIN)/python -m tests.faults --processes 2 $(FAULTS)

# MUTANTS="--room cache --sample 40 --seed 1 --narrow"; a survivor is a hole, or changes nothing.
test-mutants: $(MUTANTS_TOOL) ## faults that a machine makes, hours: each must be noticed, or be none
	$(BIN)/python -m tests.faults --mutants --processes 2 $(MUTANTS)

# Goes on where it was stopped; a seed that fails is printed with the command that repeats it.
test-simulation: $(DEV) ## whole jobs on a disk that loses power: JOBS=1000000 SEED=0 PROCESSES=2
	$(BIN)/python -m tests.simulation --jobs $(or $(JOBS),10000) --seed $(or $(SEED),0) \
		--processes $(or $(PROCESSES),2)

# Goes on from the inputs of the last run, in build/fuzz; what it finds is there too.
test-fuzz: $(FUZZ) ## readers of files, by coverage: READER=gguf SECONDS=600 SEED=0
	$(BIN)/python -m tests.fuzz $(READER:%=--reader %) --seconds $(or $(SECONDS),60) \
		--seed $(or $(SEED),0)

test-gpu: $(DEV) ## what needs a GPU
	$(BIN)/pytest -m gpu

pins: ## constraints.txt against the packages of the index, by metadata alone
	PYTHON=$(PYTHON) .ci/pins

dist: $(PUBLISH) ## dist/: the source archive and the wheel, as an index would take them
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

docs: $(PUBLISH) ## build/site: the pages as a site, every link tried
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

format: $(DEV) ## let ruff fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what the other targets made
	rm -rf $(VENV) build dist *.egg-info src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	rm -f demo.out.jsonl*

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(RUNTIME)

$(EVAL): $(DEV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[eval]' accelerate
	touch $@

$(FUZZ): $(DEV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[fuzz]'
	touch $@

$(MUTANTS_TOOL): $(DEV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[mutants]'
	touch $@

$(PUBLISH): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt \
		$(PUBLISH_TOOLS)
	touch $@
