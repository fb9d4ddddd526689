# Two commands on a fresh machine with python3 and make:  make demo  ·  make test
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Models in tests are tiny: threads of their own only stand in each other's way. Each worker and each program that a
# test starts would compile all modules anew where bytecode is not kept.
QUICKLY := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
STAMP := $(VENV)/installed

.PHONY: setup demo test suite test-gpu check style types accept bench site clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "vitkit needs Python 3.11 or newer; name one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (torch is large: this takes some minutes once)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@# What exported pages contain, for the tests of them; they are skipped without.
	-$(BIN)/python -c 'from vitkit.exporting import packages as p; from vitkit.weights.download import fetch_url; fetch_url(p.RUNTIME_URL, p.RUNTIME_SHA256)'
	touch $@

demo: setup ## train digits from scratch, evaluate, predict: about three minutes
	$(BIN)/vitkit train digits --out runs/demo --force
	$(BIN)/vitkit eval runs/demo
	$(BIN)/vitkit predict runs/demo $$($(BIN)/python examples/held_out.py runs/demo 5)
	@echo
	@echo "The classifier is in runs/demo; open runs/demo/report.html. To ask it about an image of your own:"
	@echo "    $(BIN)/vitkit predict runs/demo IMAGE"

test: setup style ## everything that must hold, in about ten minutes on two cores
	$(MAKE) --no-print-directory --jobs=2 types suite

# Three processes on two cores: some tests wait for a server, a browser or a process that they started.
suite: setup
	$(QUICKLY) $(BIN)/python -m pytest --numprocesses=3 --dist=worksteal

test-gpu: setup ## on a machine with a CUDA GPU: that every verb computes there, and answers as on the CPU
	VITKIT_TEST_GPU=1 $(BIN)/python -m pytest tests/gpu

check: setup style types ## style, types and imports between rooms
	$(BIN)/python -m pytest -q tests/test_imports.py

style: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

accept: setup ## the figures that the project promises; long
	$(BIN)/python -m pytest -m accept
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile=explore

bench: setup ## speed on this machine; writes benchmarks/results
	$(BIN)/python benchmarks/startup.py
	$(BIN)/python benchmarks/loading.py

$(VENV)/site: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[docs]'
	touch $@

site: $(VENV)/site ## the documentation, in site/; needs no network once it has been made
	$(BIN)/python benchmarks/documentation.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
