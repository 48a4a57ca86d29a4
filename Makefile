# Each verb sets itself up: the pinned environment of requirements.lock is installed into .venv the first time it is needed.
# In an environment of your own (environment.yml) call gmmvit, pytest and dvc directly instead.

PYTHON ?= python3
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_INSTALL := $(BIN)/pip install -q --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help repro test quick lint lock

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' Makefile

repro: $(STAMP) ## the main job: print the table of backbones
	$(BIN)/gmmvit models

test: $(STAMP) ## all tests; ARGS="-k masks" are given to pytest
	$(BIN)/pytest $(ARGS)

quick: $(STAMP) ## the tests that are not marked slow
	$(BIN)/pytest -m "not slow" $(ARGS)

lint: $(STAMP) ## ruff's checks and formatting, without changing a file
	$(BIN)/ruff check
	$(BIN)/ruff format --check

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("gmmvit needs Python 3.11 or newer, but $(PYTHON) is %d.%d: name another one with PYTHON=..." % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "Installing requirements.lock into $(VENV): several GB are downloaded the first time (some minutes)."
	@$(PIP_INSTALL) -r requirements.lock
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

lock: ## pin the newest versions pyproject.toml allows, in requirements.lock and environment.yml
	rm -rf $(VENV)-lock
	$(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/pip install -q --disable-pip-version-check --upgrade setuptools -e '.[dev]'
	{ echo '# Every version of the environment, written by `make lock`; CUDA libraries exist for Linux only.'; \
	  $(VENV)-lock/bin/pip freeze --all --exclude pip --exclude-editable \
	  | awk '/^(nvidia-|cuda-|triton==)/ { $$0 = $$0 "; sys_platform == \"linux\"" } { print }'; } > requirements.lock
	rm -rf $(VENV)-lock
	awk -F '==|;' 'NR == FNR { pin[$$1] = $$2; next } /==/ { name = $$1; sub(/.*- /, "", name); $$0 = $$1 "==" pin[name] } { print }' \
	  requirements.lock environment.yml > environment.new && mv environment.new environment.yml
