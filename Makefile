# The front door. Meson and Ninja do the building; each target first does what
# set-up is missing, and nothing twice.

# Overridden on the command line: make install PREFIX=/usr DESTDIR=/tmp/stage
PREFIX ?= /usr/local
SEEDS ?= 1000
FUZZ_RUNS ?= 1000000
CHECKS ?=
export FUZZ_RUNS

.PHONY: all setup run demo test check bench bench-jax jax-suite fuzz sim wheel install clean help
.DEFAULT_GOAL := all

all: setup ## build everything into build/
	@scripts/build.sh

setup: ## packages, .venv, XLA and the build folder, as far as they are missing
	@scripts/setup.sh

run: all ## see it work: plain JAX trains a language model on a cluster of processes
	@scripts/run.sh

demo: all ## the same cluster from C and from the command line: gangs, programs, status
	@scripts/demo.sh

test: all ## every test; ends with `N passed, N failed`
	@scripts/test.sh

check: ## format, layers, static analysis, sanitizers, sim smoke (CHECKS="format layers" for some)
	@scripts/setup.sh check
	@scripts/build.sh
	@scripts/check.sh $(CHECKS)

bench: all ## every benchmark, each beside its peer
	@build/tow bench device
	@build/tow bench dispatch
	@build/tow bench net
	@build/tow bench sim

bench-jax: all ## plain JAX beside JAX's own backend, as JSON lines (QUICK=1: about 40 s)
	@build/tow bench jax --json $(if $(QUICK),--quick)

jax-suite: all ## JAX's own tests beside JAX's CPU backend (JAX_SOURCE=/path/to/jax, FILES="pjit_test.py", PEER=failed)
	@scripts/extra_packages.sh
	@.venv/bin/python scripts/jax_suite.py --source "$(JAX_SOURCE)" --packages .venv/jax-suite \
	    $(if $(PEER),--peer $(PEER)) $(FILES)

fuzz: ## every fuzz target, FUZZ_RUNS executions each (1,000,000)
	@scripts/setup.sh check
	@scripts/fuzz.sh

sim: all ## search SEEDS simulated runs (1,000) for a failing one
	@build/tow sim --seeds $(SEEDS)

wheel: all ## build/wheel/*.whl: for machines without compiler; pip installs it
	@.venv/bin/python scripts/make_wheel.py build

install: all ## command, library, headers, pkg-config file (PREFIX=, DESTDIR=)
	@meson configure build -Dprefix=$(abspath $(PREFIX))
	@scripts/build.sh
	@meson install -C build --no-rebuild --quiet

clean: ## remove what was built; .venv and XLA stay
	@rm -rf build build-*/

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-9s %s\n", $$1, $$2}' Makefile
