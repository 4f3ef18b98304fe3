# Entry points for people and CI: `make help` lists them. They keep to .venv/ and build/.
#
# What is installed is remembered in .venv/.ptd/: a target installs or compiles again only when
# pyproject.toml, setup.py, constraints.txt or a file of csrc/ has changed since.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules
.NOTPARALLEL:  # two pip runs in one venv would meet

VENV := .venv
PY := $(VENV)/bin/python
STAMPS := $(VENV)/.ptd
TOOLS := $(VENV)/tools

# Settings, for example: make test PYTEST_ARGS="tests/core -x"
PYTHON ?=
CONSTRAINTS ?= constraints.txt
PIP_ARGS ?=
PYTEST_ARGS ?=
BENCH_ARGS ?=
FUZZ_SECONDS ?= 60
FUZZ_TARGETS ?= $(patsubst csrc/fuzz/%_fuzz.cpp,%,$(wildcard csrc/fuzz/*_fuzz.cpp))
DEMO_ARGS ?=

# Spinning OpenMP threads make small operations ten times slower as soon as the machine has
# other work; the variable is read when torch is imported.
export OMP_WAIT_POLICY := passive
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Tools of the venv come first: setup.py, cmake and the tests find ninja and cmake there.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

CORE_SOURCES := $(shell find csrc -type f) setup.py ptd_engine/__init__.py
CORE_MODULE := $(wildcard ptd_engine/_core*.so)
CXX_FILES = $(shell find csrc examples -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh')

comma := ,
say = printf '==> %s\n'

# Of pip's output: the large downloads; errors go to stderr and are always shown.
PIP_INSTALL = "$(PY)" -m pip install --progress-bar off --constraint "$(CONSTRAINTS)" $(PIP_ARGS)
BRIEFLY = | sed -u -n '/Downloading.*[0-9] MB/p'

# $(call requirements,EXPRESSION): requirements of pyproject.toml (p), one a line, cmake left out.
requirements = "$(PY)" -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	print(*(r for r in $(1) if not r.startswith("cmake")), sep="\n")'

.PHONY: help demo demo-model test test-python test-cpp test-tsan lint format bench install clean fuzz docs sbom \
	FORCE

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/make \1|\2/p' Makefile | column -t -s '|'

demo: $(STAMPS)/core  ## Install, fetch a small model, generate with and without drafting
	@$(say) "Generating with the demo model (the first time it is fetched: about 100 MB)"
	@"$(PY)" -m ptd_engine.cli demo $(DEMO_ARGS)

demo-model: $(STAMPS)/core  ## Fetch the demo model only, and print where it is
	@"$(PY)" -c 'from ptd_engine.hub import resolve_model; print(resolve_model("demo"))'

install: $(STAMPS)/core $(STAMPS)/dev  ## Set up .venv for development
	@echo "Ready. To use it: source $(VENV)/bin/activate, or $(PY) -m ptd_engine.cli --help"

test: test-cpp test-python  ## Run all tests: C++ under ASan and UBSan, then pytest

test-python: $(STAMPS)/core $(STAMPS)/dev  ## Run pytest only (PYTEST_ARGS=...)
	@$(say) "Python tests"
	@"$(PY)" -m pytest $(PYTEST_ARGS)

test-cpp: $(STAMPS)/runtime  ## Run the C++ tests only
	@$(say) "C++ tests under AddressSanitizer and UndefinedBehaviorSanitizer"
	@cmake -S csrc -B build/sanitize -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	    -DPTD_BUILD_TESTS=ON -DPTD_CUDA=0 -DPTD_SANITIZE=address,undefined \
	    --log-level=WARNING >/dev/null
	@cmake --build build/sanitize
	@ctest --test-dir build/sanitize --output-on-failure --no-tests=error

test-tsan: $(STAMPS)/runtime  ## Run sessions in many threads under ThreadSanitizer
	@cmake -S csrc -B build/tsan -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	    -DPTD_BUILD_TESTS=ON -DPTD_CUDA=0 -DPTD_SANITIZE=thread --log-level=WARNING >/dev/null
	@cmake --build build/tsan --target threads_test
	@ctest --test-dir build/tsan --output-on-failure --no-tests=error -R '^threads_test$$'

lint: $(STAMPS)/core $(STAMPS)/dev  ## Check style and types; changes nothing
	@$(say) "ruff check";         "$(PY)" -m ruff check .
	@$(say) "ruff format";        "$(PY)" -m ruff format --check .
	@$(say) "mypy --strict";      "$(PY)" -m mypy
	@$(say) "clang-format";       clang-format --dry-run -Werror $(CXX_FILES)

format: $(STAMPS)/dev  ## Rewrite the sources in the house style
	@"$(PY)" -m ruff check --fix .
	@"$(PY)" -m ruff format .
	@clang-format -i $(CXX_FILES)

bench: $(STAMPS)/core  ## Run the benchmarks (BENCH_ARGS=...)
	@"$(PY)" -m bench $(BENCH_ARGS)

fuzz: $(STAMPS)/runtime  ## Fuzz the C++ code with clang's libFuzzer (FUZZ_SECONDS=60, each target)
	@command -v clang++ >/dev/null || { printf '\nptd_engine: clang++ was not found (on Debian: \
	apt install clang). make test-cpp runs the targets without it.\n' >&2; exit 1; }
	@cmake -S csrc -B build/fuzz -G Ninja -DCMAKE_CXX_COMPILER=clang++ -DCMAKE_BUILD_TYPE=RelWithDebInfo \
	    -DPTD_BUILD_TESTS=OFF -DPTD_BUILD_FUZZERS=ON -DPTD_CUDA=0 \
	    -DPTD_SANITIZE=fuzzer-no-link,address,undefined --log-level=WARNING >/dev/null
	@cmake --build build/fuzz --target $(addsuffix _fuzz,$(FUZZ_TARGETS))
	@for target in $(FUZZ_TARGETS); do \
	  $(say) "$$target for $(FUZZ_SECONDS) s (inputs: build/fuzz/found/$$target)"; \
	  mkdir -p build/fuzz/found/$$target; \
	  build/fuzz/fuzz/$${target}_fuzz -max_total_time=$(FUZZ_SECONDS) -max_len=1024 -verbosity=0 \
	    -print_final_stats=1 -artifact_prefix=build/fuzz/ \
	    build/fuzz/found/$$target csrc/fuzz/corpus/$$target; \
	done

docs: $(STAMPS)/tools  ## Write the documentation as a site to build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(TOOLS)/bin/mkdocs build --strict --quiet --config-file mkdocs.yml
	@echo "Open build/site/index.html"

sbom: $(STAMPS)/core $(STAMPS)/tools  ## List what .venv holds, with versions and licences (CycloneDX)
	@mkdir -p build
	@$(TOOLS)/bin/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible \
	    --output-format JSON --output-file build/sbom.json "$(PY)"
	@echo "Written: build/sbom.json"

clean:  ## Remove what was built; .venv stays (delete it to start from nothing)
	rm -rf build dist *.egg-info ptd_engine/_core*.so ptd_engine/_cuda*.so .pytest_cache .mypy_cache .ruff_cache
	rm -rf .hypothesis $(STAMPS)/core

# --- What the targets stand on -----------------------------------------------------------------

# Also taken when .venv was made by hand: then it is only checked.
$(STAMPS)/venv:
	@fail() { printf '\nptd_engine: %s\n' "$$1" >&2; exit 1; }; \
	if [ -d "$(VENV)" ]; then \
	  "$(PY)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || fail \
	    "$(VENV) has no working Python >= 3.11. Delete it (rm -rf $(VENV)) and run make again."; \
	else \
	  found=; \
	  for python in $(if $(PYTHON),"$(PYTHON)",python3 python3.13 python3.12 python3.11); do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	    then found="$$python"; break; fi; \
	  done; \
	  [ -n "$$found" ] || fail "$(if $(PYTHON),$(PYTHON) is not a,no) Python >= 3.11$(if \
	    $(PYTHON),, was found). Install one, or name it: make PYTHON=/path/to/python3."; \
	  $(say) "Creating $(VENV) with $$($$found --version)"; \
	  "$$found" -m venv "$(VENV)" || { rm -rf "$(VENV)"; fail \
	    "$$found cannot create a virtual environment (on Debian: apt install python3-venv)."; }; \
	fi
	@mkdir -p $(STAMPS) && touch $@

# A C++ compiler, Python's headers and a recent cmake; the last comes from pip when it is missing.
$(STAMPS)/toolchain: $(STAMPS)/venv
	@fail() { printf '\nptd_engine: %s\n' "$$1" >&2; exit 1; }; \
	found=; \
	for compiler in "$${CXX:-}" c++ g++ clang++; do \
	  if [ -n "$$compiler" ] && command -v $${compiler%% *} >/dev/null; \
	  then found="$$compiler"; break; fi; \
	done; \
	[ -n "$$found" ] || fail \
	  "no C++17 compiler was found. Install g++ (on Debian: apt install g++) or set CXX."; \
	headers=$$("$(PY)" -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
	[ -f "$$headers/Python.h" ] || fail \
	  "Python.h is not in $$headers. Install it (on Debian: apt install python3-dev)."; \
	version=$$(cmake --version 2>/dev/null | sed -n '1s/.* //p' || true); \
	if [ "$$(printf '3.25\n%s\n' "$$version" | sort -V | head -n 1)" != 3.25 ]; then \
	  $(say) "Installing cmake into $(VENV) (on PATH: $${version:-none}, needed: 3.25)"; \
	  $(PIP_INSTALL) cmake $(BRIEFLY); \
	fi
	@touch $@

$(STAMPS)/runtime: $(STAMPS)/toolchain pyproject.toml $(CONSTRAINTS)
	@$(say) "Installing the dependencies as pinned in $(CONSTRAINTS) (torch among them: minutes)"
	@$(call requirements,p["build-system"]["requires"] + p["project"]["dependencies"]) \
	    > $(STAMPS)/requirements-runtime.txt
	@$(PIP_INSTALL) -r $(STAMPS)/requirements-runtime.txt $(BRIEFLY)
	@touch $@

$(STAMPS)/dev: $(STAMPS)/runtime
	@$(say) "Installing the tools for tests and checks"
	@$(call requirements,[r for n$(comma) e in p["project"]["optional-dependencies"].items() \
	    if n not in ("ray"$(comma) "docs"$(comma) "release") for r in e]) \
	    > $(STAMPS)/requirements-dev.txt
	@$(PIP_INSTALL) -r $(STAMPS)/requirements-dev.txt $(BRIEFLY)
	@touch $@

# Of their own: what documentation and release need, the package does not.
$(STAMPS)/tools: $(STAMPS)/venv pyproject.toml $(CONSTRAINTS)
	@$(say) "Installing the tools for documentation and release into $(TOOLS)"
	@"$(PY)" -m venv $(TOOLS)
	@$(call requirements,[r for e in ("docs"$(comma) "release") \
	    for r in p["project"]["optional-dependencies"][e]]) > $(STAMPS)/requirements-tools.txt
	@$(TOOLS)/bin/python -m pip install --progress-bar off --constraint "$(CONSTRAINTS)" $(PIP_ARGS) \
	    -r $(STAMPS)/requirements-tools.txt $(BRIEFLY)
	@touch $@

$(STAMPS)/core: $(STAMPS)/runtime $(CORE_SOURCES) pyproject.toml $(if $(CORE_MODULE),,FORCE)
	@$(say) "Compiling the C++ core and installing ptd_engine in place"
	@"$(PY)" -m pip install -q --no-deps --no-build-isolation --editable .
	@touch $@
