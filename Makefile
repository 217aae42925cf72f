# `make demo` and `make test` need only Python 3.11 or newer, git and make; they set up .venv themselves.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

# Idle threads of torch wait actively by default, which stalls everything else on a busy machine: tests let them sleep.
# They start many processes, so compiled modules are kept, whatever the environment says.
# Three processes of tests, since one of them mostly waits; each has one thread, and so have the commands it starts.
.PHONY: demo test check lint types docs benchmark clean

demo: $(READY)
	$(BIN)/mmfl compare

test: $(READY)
	PYTHONDONTWRITEBYTECODE= OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(READY)
	$(BIN)/mypy

# The site, in site/; what would only be a warning stops it.
docs: $(READY)
	$(BIN)/python docs/build.py

check: lint types docs test

benchmark: $(READY)
	$(BIN)/python benchmarks/engine.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,docs,flower,metrics,onnx,privacy,report,trackers]'
	touch $(READY)

clean:
	rm -rf .venv site .mypy_cache .pytest_cache .ruff_cache .hypothesis
