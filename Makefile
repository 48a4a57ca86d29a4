# Each verb sets itself up: the pinned environment of requirements.lock is installed into .venv the first time it is needed.
# In an environment of your own (environment.yml) call dvc repro, gmmvit and pytest directly instead.

PYTHON ?= python3
ARGS ?=
PROFILE ?=
KEEP_GOING ?=
JOBS ?=
NEW ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP_INSTALL := $(BIN)/pip install -q --disable-pip-version-check

ROWS = $(BIN)/python pipeline/rows_queue.py $(JOBS)
TESTS = $(BIN)/pytest $(if $(ARGS),$(ARGS),-n $(or $(JOBS),2) --dist worksteal)
NOTEBOOKS = $(BIN)/pytest --nbval --nbval-current-env -n $(or $(JOBS),2) --dist loadfile notebooks

# The commands of dvc.yaml call python, papermill and gmmvit by name: they are to be this environment's.
export PATH := $(abspath $(BIN)):$(PATH)

.DEFAULT_GOAL := help
.PHONY: help repro smoke rows test quick docs lint lock profile

help: ## list the verbs
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-6s %s\n", $$1, $$2 }' Makefile

repro: $(STAMP) profile ## every row, table, figure and the report; PROFILE=cpu puts that profile in force, KEEP_GOING=1 passes over failing rows
	@{ $(ROWS) --all && $(BIN)/python pipeline/repro.py; } $(if $(KEEP_GOING),|| { code=$$?; $(PARTIAL); exit $$code; })

smoke: $(STAMP) ## the smoke pipeline in a clone that is thrown away, and a look at its figures: does everything run here?
	@copy=$$(mktemp -d) && git clone -q . "$$copy/gmmvit" && PYTHONPATH="$$copy/gmmvit" $(MAKE) -C "$$copy/gmmvit" \
	  -o "$(abspath $(STAMP))" VENV="$(abspath $(VENV))" repro test PROFILE=smoke ARGS="tests/paper/test_figures.py -k smoke"; \
	  code=$$?; rm -rf "$$copy"; exit $$code

# The tables, figures and the report without the rows that failed: dvc leaves out all that depends on them.
PARTIAL = \
  test $$code -ne 130 -a $$code -ne 143 && profile=$$($(BIN)/gmmvit check) && { \
  folder=reports/$$profile/partial; \
  rm -rf "$$folder" && mkdir -p "$$folder"; \
  $(BIN)/gmmvit analyse; \
  for name in $(filter-out run,$(basename $(notdir $(wildcard notebooks/*.ipynb)))); do \
    $(BIN)/papermill notebooks/$$name.ipynb "$$folder/$$name.ipynb" --cwd notebooks -k python3 --no-progress-bar \
      -p profile "$$profile" -p out "$$folder"; \
  done; \
  $(BIN)/gmmvit report "$$profile" --partial; }

rows: $(STAMP) profile ## the rows alone; JOBS=4 at a time (else one on each GPU, or two without a GPU); may be stopped and repeated; NEW=1 passes over rows that this engine has a record of
	@$(ROWS) $(if $(NEW),--new)

profile: $(STAMP) # puts PROFILE in force; a params.yaml that is none of the profiles' is kept as params.yaml.old
	@$(if $(PROFILE),$(BIN)/python pipeline/names.py "$(PROFILE)")

test: $(STAMP) ## all tests, JOBS=2 at a time, and the notebooks against their outputs; ARGS="-k masks" is given to one pytest alone
	$(TESTS)
	$(if $(ARGS),,$(NOTEBOOKS))

quick: $(STAMP) ## the tests that are not marked slow
	$(TESTS) -m "not slow"

docs: $(STAMP) ## the pages of docs/ with an API reference, as a site in build/site
	$(BIN)/mkdocs build

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
	$(VENV)-lock/bin/pip install -q --disable-pip-version-check --upgrade setuptools -e '.[dense,paper,docs,dev]'
	{ echo '# Every version of the environment, written by `make lock`; CUDA libraries exist for Linux only.'; \
	  $(VENV)-lock/bin/pip freeze --all --exclude pip --exclude-editable \
	  | awk '/^(nvidia-|cuda-|triton==)/ { $$0 = $$0 "; sys_platform == \"linux\"" } { print }'; } > requirements.lock
	rm -rf $(VENV)-lock
	awk -F '==|;' 'NR == FNR { pin[$$1] = $$2; next } /==/ { name = $$1; sub(/.*- /, "", name); $$0 = $$1 "==" pin[name] } { print }' \
	  requirements.lock environment.yml > environment.new && mv environment.new environment.yml
