# Every target sets up .venv first if it is missing or out of date. PYTHON chooses the interpreter it is made from.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := test
.PHONY: demo test test-all lint docs dist bench clean

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[test,plot,docs,dev]'
	touch $@

demo: $(READY)
	$(BIN)/python examples/demo.py

# One thread per worker, so that two workers on two cores do not fight. PYTEST_ARGS='-k relu' narrows the run.
test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m 'not slow' $(PYTEST_ARGS)

# Everything there is: long searches, launches of several processes, compilers, browsers.
test-all: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Builds sdist and wheel into dist/, looks at what is inside, and tries the wheel in an environment of its own. Needs no network.
dist: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python .ci/check_dist.py

# The authors' own code is the baseline; nothing else needs it.
bench: $(READY)
	$(BIN)/python -m pip install --quiet --no-deps convex_adversarial==0.4.4
	$(BIN)/python benchmarks/exact_speed.py

# Leaves .venv alone: remove it by hand for a fresh one.
clean:
	rm -rf build dist site demo-output .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -rf src/*.egg-info
	find src tests -type d -name __pycache__ -prune -exec rm -rf {} +
