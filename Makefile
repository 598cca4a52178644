# make quickstart: install and train. make horovod: build Horovod (optional). make lint: style, types, layers.
# make test: all tests. make peers: those with large packages of others.
PYTHON ?= python3
VENV ?= .venv
# groups of tests share the cores: threads that wait for one another took up to ten times as long
PYTEST = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(VENV)/bin/python -m pytest
PIP = $(VENV)/bin/python -m pip install --quiet --constraint constraints.txt

.PHONY: quickstart horovod peers test test-slurm test-commands test-training test-others lint clean

quickstart: $(VENV)/firetrain
	$(VENV)/bin/firetrain launch quickstart

horovod: $(VENV)/horovod

test: $(VENV)/test
ifdef TESTS
	$(PYTEST) $(TESTS)
else
	$(MAKE) --no-print-directory --jobs=4 --output-sync=target test-slurm test-commands test-training test-others
endif

# four groups in parallel, which take about equally long: tests wait for processes half of the time
SLURM = tests/slurm tests/compression tests/strategy
COMMANDS = tests/launch tests/test_readme.py
TRAINING = tests/training tests/parallel tests/bench

test-slurm:
	$(PYTEST) $(SLURM)

test-commands:
	$(PYTEST) $(COMMANDS)

test-training:
	$(PYTEST) $(TRAINING)

test-others:
	$(PYTEST) $(patsubst %,--ignore=%,$(SLURM) $(COMMANDS) $(TRAINING))

# other people's packages, which are large; part of no other target
peers: $(VENV)/test $(VENV)/peers
	$(PYTEST) tests/peers

lint: $(VENV)/lint
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

# each of these files marks a complete installation
$(VENV)/firetrain: setup.cfg constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

$(VENV)/test $(VENV)/lint $(VENV)/peers: $(VENV)/firetrain
	$(PIP) --editable '.[$(@F)]'
	@touch $@

$(VENV)/horovod: $(VENV)/firetrain firetrain/horovod_wheel.py
	$(VENV)/bin/python -m firetrain.horovod_wheel
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
