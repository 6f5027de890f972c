# The front door. Meson and Ninja do the building; each target first does what
# set-up is missing, and nothing twice.

# Overridden on the command line: make install PREFIX=/usr DESTDIR=/tmp/stage
PREFIX ?= /usr/local
SEEDS ?= 1000
FUZZ_RUNS ?= 1000000
CHECKS ?=
export FUZZ_RUNS

.PHONY: all setup run test check bench fuzz sim install clean help
.DEFAULT_GOAL := all

all: setup ## build everything into build/
	@scripts/build.sh

setup: ## packages, .venv, XLA and the build folder, as far as they are missing
	@scripts/setup.sh

run: all ## see it work: a cluster of processes, a gang on its devices
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

fuzz: ## every fuzz target, FUZZ_RUNS executions each (1,000,000)
	@scripts/setup.sh check
	@scripts/fuzz.sh

sim: all ## search SEEDS simulated runs (1,000) for a failing one
	@build/tow sim --seeds $(SEEDS)

install: all ## command, library, headers, pkg-config file (PREFIX=, DESTDIR=)
	@meson configure build -Dprefix=$(abspath $(PREFIX))
	@scripts/build.sh
	@meson install -C build --no-rebuild --quiet

clean: ## remove what was built; .venv and XLA stay
	@rm -rf build build-*/

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' Makefile
