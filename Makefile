# Every target sets up what it needs: .venv with exactly the hashed lock, and the package.
# PYTHON=/path/to/python3.12 picks an interpreter; EXTRA=cuda or EXTRA=tpu adds accelerator support.

PYTHON =
EXTRA =
PYTEST_ARGS =
# Processes that share the tests; each wants a core and 3 GB. One file's tests stay together, but for
# the slow ones: their files are few and long.
WORKERS = 2
BIN = .venv/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check --no-input
LOCK = $(BIN)/uv pip compile --quiet --universal --generate-hashes --python-version 3.12 \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header $(UPGRADE)
CODE = src tests $(wildcard benchmarks experiments)

.PHONY: help setup setup-dev quickstart test test-slow test-browser format lock clean \
	check check-format check-lint check-types check-layers
.DEFAULT_GOAL = help

help:
	@echo 'make quickstart    set up, then the main job: from raw text to a reported model'
	@echo 'make test          set up, then the tests'
	@echo 'make test-slow     the tests that take minutes (the whole main job among them)'
	@echo 'make test-browser  the tests that open the report in Chromium'
	@echo 'make check         format, lint, types, layers (make -k check shows all that fails)'
	@echo 'make format        rewrite the code in the house format'
	@echo 'make lock          solve the dependencies again (UPGRADE=--upgrade takes newer ones)'
	@echo 'make setup         only set up (EXTRA=cuda or EXTRA=tpu for an accelerator)'
	@echo 'make clean         remove .venv and caches; shoal-home stays'

# --- setting up -------------------------------------------------------------------------------

# The first of these that runs and is new enough, as `=NAME`; else what was found instead. A name on
# the PATH is not enough: pyenv puts some there that only complain, and its complaint is passed on.
NAMES = $(if $(PYTHON),"$(PYTHON)",python3 python3.12 python3.13 python3.14 python3.15)
FOUND = $(shell found=; \
	for name in $(NAMES); do \
	  if said=`"$$name" -c 'import sys; print("Python %d.%d.%d" % sys.version_info[:3])' 2>&1`; \
	  then \
	    if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 12))'; \
	    then echo "=$$name"; exit; fi; \
	    said="is $$said"; \
	  else said="does not run ("`echo $$said`")"; fi; \
	  [ -n "$$found" ] || found="$$name $$said"; \
	done; \
	echo "$$found")

NO_PYTHON = Shoal needs Python 3.12 or newer, and $(CHOSEN): \
	install python3.12 with its venv module, or say make PYTHON=/path/to/python3.12

.venv/made:
	$(eval CHOSEN := $(FOUND))
	$(if $(filter =%,$(CHOSEN)),,$(error $(NO_PYTHON)))
	@rm -rf .venv
	@"$(patsubst =%,%,$(CHOSEN))" -m venv .venv || { rm -rf .venv; exit 1; }
	@touch $@

.venv/runtime: requirements.lock | .venv/made
	@echo 'installing the locked packages into .venv: once, a minute or so'
	@$(PIP) install --quiet --require-hashes -r requirements.lock
	@touch $@

.venv/package: pyproject.toml .venv/runtime
	@$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@touch $@

.venv/dev: requirements-dev.lock .venv/package
	@echo 'installing the locked tools for checks and tests into .venv: once'
	@$(PIP) install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

setup: .venv/package
ifneq ($(EXTRA),)
	$(PIP) install --quiet --no-build-isolation -e '.[$(EXTRA)]'
endif

setup-dev: .venv/dev

# --- using ------------------------------------------------------------------------------------

quickstart: .venv/package
	$(BIN)/shoal quickstart

test: .venv/dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile -m 'not slow and not browser' $(PYTEST_ARGS)

test-slow: .venv/dev
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'slow and not browser' $(PYTEST_ARGS)

test-browser: .venv/dev
	$(BIN)/python -m pytest -m browser $(PYTEST_ARGS)

check: check-format check-lint check-types check-layers

check-format: .venv/dev
	$(BIN)/ruff format --check $(CODE)

check-lint: .venv/dev
	$(BIN)/ruff check $(CODE)

check-types: .venv/dev
	$(BIN)/basedpyright

check-layers: .venv/dev
	$(BIN)/lint-imports --cache-dir .cache/import-linter

format: .venv/dev
	$(BIN)/ruff check --fix-only --quiet $(CODE)
	$(BIN)/ruff format $(CODE)

# The dev lock is solved under the runtime lock, so the two agree.
lock: .venv/dev
	$(LOCK) pyproject.toml --group build -o requirements.lock
	$(LOCK) pyproject.toml --group build --group dev -c requirements.lock -o requirements-dev.lock

clean:
	rm -rf .venv .cache .pytest_cache .ruff_cache .hypothesis build dist
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
