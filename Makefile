# The commands of the README. Everything runs in .venv, with the versions of constraints.txt.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install -q -c constraints.txt
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: learn test book bench clean chromium

# Install the core, create a workspace in learn/, and walk the first exercise up to its first verdict.
learn: $(VENV)/.core
	@$(BIN)/rerail start -q learn
	@cd learn && for command in show run check; do printf '\n$$ rerail %s\n' $$command; rerail $$command || true; done
	@printf '\nTo go on:  cd learn && source ../.venv/bin/activate\nThen repair the script, and rerail check\n'

# All that must pass: style, types, layers, spelling, tests, every exercise, the book, the site, the wheel.
test: $(VENV)/.dev chromium
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy src graders
	$(BIN)/lint-imports --no-cache
	$(BIN)/codespell
	$(BIN)/python -m pytest -n 2 --dist loadfile

book: $(VENV)/.dev
	$(BIN)/python book/build.py

bench: $(VENV)/.core
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/overhead.py

# The site is tested in a real browser, from the system's packages.
chromium:
	@command -v chromium >/dev/null || (apt-get update -qq && apt-get install -y -qq chromium) \
	  || { echo "the site tests need Chromium: install the package chromium of your system"; exit 1; }

clean:
	rm -rf _build dist

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch by itself first: with it in place nothing else asks for another build of it
$(VENV)/.core: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the core into $(VENV), about a minute"
	$(PIP) torch
	$(PIP) hatchling
	$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@echo "installing what the tests and the book need into $(VENV), about two minutes"
	$(PIP) --no-build-isolation -e '.[book,classroom,dev]'
	@touch $@
