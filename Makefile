# Every target installs what it needs into .venv first; a second call finds it there.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
EXTRAS_dev := dev,demo
EXTRAS_docs := dev,demo,docs
EXTRAS_demo := demo
EXTRAS_all := all
MINUTES ?= 60
INPUTS ?= 1000000
SEED ?= 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # else each of some hundred processes compiles torch again

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "longtail needs Python 3.11 or newer: make PYTHON=python3.11 setup"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/.installed-%: pyproject.toml constraints.txt | .venv/bin/python
	@echo "installing longtail[$(EXTRAS_$*)] into .venv (once) …"
	@$(BIN)/pip install --quiet --quiet --no-compile -c constraints.txt -e '.[$(EXTRAS_$*)]'
	@touch $@

setup: .venv/.installed-dev  ## make .venv with everything for development

demo: .venv/.installed-demo  ## the main job end to end, on real data that is built from installed packages
	@$(BIN)/longtail demo

check: setup  ## lint, format and types
	$(BIN)/ruff check src tests bench
	$(BIN)/ruff format --check src tests bench
	$(BIN)/mypy

test: setup  ## the tests on all cores, in a few minutes
	$(BIN)/pytest -n auto --dist worksteal

test-all: .venv/.installed-all  ## the slow tests too, with every engine and store
	@command -v java > /dev/null || { apt-get -qq update && apt-get -qq install -y openjdk-17-jre-headless; } || echo "no Java 17: the tests of Spark are left out"
	$(BIN)/pytest --slow

bench: setup  ## timings; ratios mean more than seconds on a shared machine
	$(BIN)/pytest bench/test_*.py --benchmark-only --benchmark-disable-gc -s
	$(BIN)/python bench/million.py
	$(BIN)/python bench/step_scale.py
	$(BIN)/python bench/serve_load.py

soak: setup  ## an hour of questions while models are replaced and workers killed; MINUTES=3 for less
	$(BIN)/python bench/soak.py --minutes $(MINUTES)

fuzz: setup  ## damaged models, files, requests and arguments; INPUTS=1000000 SEED=0
	PYTHONPATH=tests $(BIN)/python -m hostile.fuzz --inputs $(INPUTS) --seed $(SEED)

docs: .venv/.installed-docs  ## the site in build/site; its snippets, notebooks and generated pages are tested
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	$(BIN)/pytest --slow tests/test_docs.py

clean:  ## remove .venv and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis

.PHONY: help setup demo check test test-all bench soak fuzz docs clean
