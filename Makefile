# make quickstart: install and train. make horovod: build Horovod (optional). make lint: style, types, layers.
# make test: all tests. make peers: those with large packages of others.
PYTHON ?= python3
VENV ?= .venv
# groups of tests share the cores: threads that wait for one another took up to ten times as long
PYTEST = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(VENV)/bin/python -m pytest
PIP = $(VENV)/bin/python -m pip install --quiet --constraint constraints.txt

.PHONY: quickstart horovod peers test test-slurm test-launch test-training test-others test-processes test-pages lint clean

quickstart: $(VENV)/firetrain
	$(VENV)/bin/firetrain launch quickstart

horovod: $(VENV)/horovod

test: $(VENV)/test
ifdef TESTS
	$(PYTEST) $(TESTS)
else
	$(MAKE) --no-print-directory --jobs=4 --output-sync=target test-slurm test-launch test-training test-others test-processes test-pages
endif

# four groups at a time, because tests wait for processes half of the time; the shorter ones begin last, so that all end together
SLURM = tests/slurm tests/compression tests/strategy
LAUNCH = tests/launch
TRAINING = tests/training tests/parallel tests/bench
PROCESSES = tests/gpu tests/ddp tests/reduction tests/transport
PAGES = tests/test_readme.py tests/test_third_party.py tests/fuzz

test-slurm:
	$(PYTEST) $(SLURM)

test-launch:
	$(PYTEST) $(LAUNCH)

test-training:
	$(PYTEST) $(TRAINING)

test-others:
	$(PYTEST) $(patsubst %,--ignore=%,$(SLURM) $(LAUNCH) $(TRAINING) $(PROCESSES) $(PAGES))

test-processes:
	$(PYTEST) $(PROCESSES)

test-pages:
	$(PYTEST) $(PAGES)

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
