# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Files go to workers as a whole and in the order of tests/conftest.py, the long ones first.
WORKERS := -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart=0

.PHONY: install demo test test-roundings test-browser test-cluster lint bench bench-full docs clean

install: $(STAMP)

# torch is pinned first, on its own line: any looser request would fetch the CUDA build.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: install
	$(BIN)/r2no demo --out demo-out

test: install lint
	$(BIN)/python -m pytest $(WORKERS)

# The suite as other processors round: MKL takes the path that MKL_CBWR names where the processor has
# it, PyTorch's own kernels that of ATEN_CPU_CAPABILITY, oneDNN's that of ONEDNN_MAX_CPU_ISA, NumPy's
# BLAS that of OPENBLAS_CORETYPE. Not in CI; `make test-roundings TESTS=tests/ensemble` for a part.
TESTS ?= tests
AVX512 := MKL_CBWR=AVX512 ONEDNN_MAX_CPU_ISA=AVX512_CORE OPENBLAS_CORETYPE=SkylakeX
AVX2 := MKL_CBWR=AVX2 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell
OLD := MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OPENBLAS_CORETYPE=Nehalem

test-roundings: install
	env $(AVX512) $(BIN)/python -m pytest $(WORKERS) $(TESTS)
	env $(AVX2) $(BIN)/python -m pytest $(WORKERS) $(TESTS)
	env $(OLD) $(BIN)/python -m pytest $(WORKERS) $(TESTS)

# The report in a real browser, Debian's chromium; the tests speak to it over a pipe, so they need
# no other package. R2NO_SCREENSHOTS=folder keeps the pictures.
test-browser: install
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium; }
	$(BIN)/python -m pytest -m browser tests/browser

# A study on a real Slurm: one node on loopback, two pretend GPUs, from Debian's packages; needs root.
test-cluster: install
	command -v slurmctld >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge; }
	$(BIN)/python -m validation.cluster

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

# The site in docs/_build/html; warnings are errors, figures are made anew, nothing is fetched.
docs: install
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs,netcdf]"
	rm -rf docs/_build
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html."

# Every module of benchmarks/: small sizes to show that each runs, or the real measurement.
bench: install
	$(BIN)/python -m benchmarks --brief

bench-full: install
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) demo-out docs/_build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
