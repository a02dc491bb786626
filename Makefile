# make quickstart   install into .venv what is missing, run the main job on the bundled model, write a report
# make test         install what is missing, run the tests but the slow ones
# make test-all     all of them
# make lint         style, types, directions of imports
# make clean        remove .venv and caches; runs are left alone
#
# On Linux x86 without a GPU, plain pip brings torch's CUDA build: it works and is large. To have the CPU build instead,
# set PIP_EXTRA_INDEX_URL to the CPU index named on torch's installation page; the same constraints hold for both builds.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	--constraint constraints/cpu.txt --editable
INPUTS := pyproject.toml constraints/cpu.txt

.PHONY: quickstart test test-all lint clean

quickstart: .venv/installed-run
	$(BIN)/lydian run quickstart

test: .venv/installed-dev
	$(BIN)/python -m pytest -m "not slow"

test-all: .venv/installed-dev
	$(BIN)/python -m pytest

lint: .venv/installed-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# The stamps make a second call install nothing; a change of pyproject.toml or of the constraints renews them.
.venv/installed-run: $(INPUTS)
	$(PYTHON) -m venv .venv
	$(INSTALL) .
	touch $@

.venv/installed-dev: $(INPUTS)
	$(PYTHON) -m venv .venv
	$(INSTALL) ".[dev]"
	touch $@ .venv/installed-run
