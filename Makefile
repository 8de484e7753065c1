# Everything a newcomer types. `make simulate` and `make test` set up what they need.

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints/flwr-1.42.txt
FLWR ?= 1.42.0
BIN = $(VENV)/bin
READY = $(VENV)/.ready

RUNS := runs/simulate-$(shell date +%Y%m%d-%H%M%S)
# Of seeds 0 to 9 the one whose FedAvg is nearest to their mean, 84.7 and 57.3 of the worst client.
TRIAL = $(BIN)/fedsuite run simulations/quickstart.toml --set output-dir=$(RUNS) \
	--set report=false --set seed=9

LIARS := runs/liars-$(shell date +%Y%m%d-%H%M%S).csv

PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

# The tests that touch Flower: fast ones, and of those that start it the sample of `smoke`.
FLOWER_TESTS = -m "not slow and not nightly or smoke" tests/workarounds tests/engines \
	tests/strangers tests/apps tests/rounds tests/deploy
OLDER = 1.39 1.41

.PHONY: simulate test test-all check unit smoke slow nightly older grpc canary faults disasters liars config docs gpu dist tag setup clean

simulate: $(READY)  ## FedAvg and FedAKD in Flower's Ray simulation, training alone beside them
	$(TRIAL) --engine ray --num-supernodes 10 --set run-name=fedavg
	$(TRIAL) --engine ray --num-supernodes 10 --set run-name=fedakd --set method=fedakd
	$(TRIAL) --set run-name=standalone --set method=standalone
	$(BIN)/fedsuite compare $(RUNS)/fedavg $(RUNS)/fedakd $(RUNS)/standalone \
		--evaluations 3 --output $(RUNS)/comparison

test: check unit smoke  ## what CI runs: minutes

test-all: test slow nightly older grpc faults disasters liars  ## everything there is: hours

check: $(READY)  ## lint, format, the declared keys, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.experiment.config_table
	$(BIN)/mypy

unit: $(READY)  ## tests that start neither Ray nor Flower's processes
	$(PYTEST) -m "not slow and not nightly"

smoke: $(READY)  ## of those that do, one or two for each engine and door
	$(PYTEST) -m smoke

slow: $(READY)  ## the others; much of their time is waiting
	$(PYTEST) -m "slow and not smoke and not nightly"

nightly: $(READY)  ## whole runs of every method, every key of each, ten times the examples
	$(PYTEST) -m nightly
	$(PYTEST) -m "hypothesis and not nightly" --hypothesis-profile nightly

older: $(OLDER:%=older-%)  ## the tests that touch Flower on its older releases

older-%:
	$(MAKE) setup VENV=.venv-$* CONSTRAINTS=constraints/flwr-$*.txt FLWR=$*.0
	OMP_NUM_THREADS=1 .venv-$*/bin/python -m pytest -q -n 2 $(FLOWER_TESTS)

grpc:  ## the federation of real processes on Flower 1.39, whose SuperNodes speak gRPC
	$(MAKE) setup VENV=.venv-1.39 CONSTRAINTS=constraints/flwr-1.39.txt FLWR=1.39.0
	.venv-1.39/bin/fedsuite doctor | grep gRPC
	OMP_NUM_THREADS=1 .venv-1.39/bin/python -m pytest -q -n 2 -m slow tests/deploy/test_rehearsal.py
	FEDSUITE_FAULTS=all OMP_NUM_THREADS=1 .venv-1.39/bin/python -m pytest -q \
		tests/workarounds/test_flower_wire.py

canary:  ## the tests that touch Flower on its newest nightly build, and which names changed
	$(MAKE) setup VENV=.venv-canary
	.venv-canary/bin/python -m pip uninstall --quiet --yes flwr flwr-nightly
	.venv-canary/bin/python -m pip install --quiet --disable-pip-version-check \
		"flwr-nightly[simulation]"
	.venv-canary/bin/python -m tests.workarounds.leaned_on
	OMP_NUM_THREADS=1 .venv-canary/bin/python -m pytest -q -n 2 $(FLOWER_TESTS)

faults: $(READY)  ## every fault, here and in real processes, and 10,000 inputs per decoder
	FEDSUITE_FAULTS=all $(PYTEST) tests/faults tests/deploy tests/readers \
		tests/test_fuzz_records.py tests/workarounds/test_flower_wire.py

SEEDS ?= 2000
PROCESSES ?= 2

disasters: $(READY)  ## seeds of a simulated world, in which anything may fail; SEEDS=100000
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.disasters.judge --seeds $(SEEDS) --write \
		--processes $(PROCESSES) --progress runs/disasters.jsonl
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.disasters.processes --seeds 40

liars: $(READY)  ## a search for what one dishonest client can do to each method; under an hour
	rm -f $(LIARS)
	OMP_NUM_THREADS=1 $(BIN)/python -m simulations.liars search --into $(LIARS)
	OMP_NUM_THREADS=1 $(BIN)/python -m simulations.liars violations --into $(LIARS)

config: $(READY)  ## write the declared keys into pyproject.toml, and what leaves a site
	$(BIN)/python -m tests.experiment.config_table --write
	$(BIN)/python docs/what_leaves.py --write
	touch $(READY)

docs: $(READY)  ## the site, into docs/_build/html: its tutorials run, a warning is an error
	$(BIN)/python -m pip install -q -c $(CONSTRAINTS) -e '.[docs]'
	OMP_NUM_THREADS=1 $(BIN)/sphinx-build -q -W --keep-going docs docs/_build/html
	@echo "open docs/_build/html/index.html"

gpu: $(READY)  ## what a GPU brings, in 20 minutes; without one a reduced form on the processor
	$(BIN)/python benchmarks/gpu.py

dist:  ## what is released, into dist/, installed by hashes in an empty environment and run
	PYTHON=$(PYTHON) CONSTRAINTS=$(CONSTRAINTS) bash release/dist.sh

tag: dist  ## tag this commit as the version that pyproject.toml and CHANGELOG.md name
	$(PYTHON) release/tag.py

setup: $(READY)

# torch first, whose exact version the constraints have: a CPU-only build is taken where there
# is one, and what depends on torch then finds it there.
$(READY): pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11) and 'fedsuite needs Python 3.11 or later: make PYTHON=python3.11 ...')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint $(CONSTRAINTS) torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint $(CONSTRAINTS) "flwr==$(FLWR)" hatchling editables
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-build-isolation \
		--constraint $(CONSTRAINTS) --editable ".[dev,strangers]"
	touch $@

clean:
	rm -rf $(VENV) $(OLDER:%=.venv-%) .venv-canary .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
