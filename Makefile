# Entry point for users. Meson and Ninja build; each target first does the missing
# steps of the set-up.

# Can be set on the command line: make install PREFIX=/usr DESTDIR=/tmp/stage
PREFIX ?= /usr/local
SEEDS ?= 1000
FUZZ_RUNS ?= 1000000
CHECKS ?=
export FUZZ_RUNS

.PHONY: all setup run demo test check check-fast bench bench-jax jax-suite fuzz sim wheel install clean help
.DEFAULT_GOAL := all

all: setup ## build everything into build/
	@scripts/build.sh

setup: ## install missing packages, .venv, XLA; configure the build folder
	@scripts/setup.sh

run: all ## the main job: trains a language model, pipelined over two islands of processes, beside plain JAX (STEPS=80, RESUME=1)
	@scripts/run.sh

demo: all ## demonstration from C and from the command line: gangs, programs, status
	@scripts/demo.sh

test: all ## run all tests; ends with `N passed, N failed`
	@scripts/test.sh

check: ## run all checks: format, layers, static analysis, sanitizers, simulation (CHECKS="format layers": only these)
	@scripts/setup.sh check
	@scripts/build.sh
	@scripts/check.sh $(CHECKS)

check-fast: ## run the checks that CI runs after the tests: source checks, ASan and UBSan over unit tests and simulated clusters, short fuzzing
	@scripts/setup.sh check
	@scripts/build.sh
	@scripts/check.sh fast

bench: all ## run all benchmarks, each with its peer
	@build/tow bench device
	@build/tow bench dispatch
	@build/tow bench net
	@build/tow bench sim

bench-jax: all ## compare plain JAX with JAX's own backend, as JSON lines (QUICK=1: about 40 s)
	@build/tow bench jax --json $(if $(QUICK),--quick)

jax-suite: all ## run JAX's own tests and compare with JAX's CPU backend (JAX_SOURCE=/path/to/jax, FILES="pjit_test.py", PEER=failed)
	@scripts/extra_packages.sh
	@.venv/bin/python scripts/jax_suite.py --source "$(JAX_SOURCE)" --packages .venv/jax-suite \
	    $(if $(PEER),--peer $(PEER)) $(FILES)

fuzz: ## run all fuzz targets, FUZZ_RUNS executions each (1,000,000)
	@scripts/setup.sh check
	@scripts/fuzz.sh

sim: all ## simulate SEEDS clusters (1,000) and report failures
	@build/tow sim --seeds $(SEEDS)

wheel: all ## build build/wheel/*.whl, which pip installs on machines without a compiler
	@.venv/bin/python scripts/make_wheel.py build

.PHONY: docs
docs: ## build the reference of the public C API, in build/docs/api/html
	@scripts/setup.sh docs
	@mkdir -p build/docs/api
	@doxygen docs/Doxyfile
	@echo "build/docs/api/html/index.html"

install: all ## install command, library, headers, pkg-config file (PREFIX=, DESTDIR=)
	@meson configure build -Dprefix=$(abspath $(PREFIX))
	@scripts/build.sh
	@meson install -C build --no-rebuild --quiet

clean: ## remove build folders; .venv and XLA stay
	@rm -rf build build-*/

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-10s %s\n", $$1, $$2}' Makefile
