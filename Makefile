# make quickstart: a first run. make horovod: the optional Horovod. make test: all tests. make lint: style, types, floors.
PYTHON ?= python3
VENV ?= .venv
PIP = $(VENV)/bin/python -m pip install --quiet --constraint constraints.txt

.PHONY: quickstart horovod test lint clean

quickstart: $(VENV)/firetrain
	$(VENV)/bin/firetrain launch quickstart

horovod: $(VENV)/horovod

test: $(VENV)/test
	$(VENV)/bin/python -m pytest --numprocesses 2 --dist loadgroup --no-loadscope-reorder $(TESTS)

lint: $(VENV)/lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# each of these files says that an installation is complete
$(VENV)/firetrain: setup.cfg constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

$(VENV)/test $(VENV)/lint: $(VENV)/firetrain
	$(PIP) --editable '.[$(@F)]'
	@touch $@

$(VENV)/horovod: $(VENV)/firetrain firetrain/horovod_wheel.py
	$(VENV)/bin/python -m firetrain.horovod_wheel
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
