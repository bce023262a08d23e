# Every task of this repository. `make` alone shows the list.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# Cargo uses all cores by itself; two cargos at once only wait for each other.
.NOTPARALLEL:
.PHONY: help demo check test setup build lint header fmt test-rust test-python test-frameworks docs release fuzz soak bugs mutants storm bench install clean

# One interpreter for every build of the bindings, or cargo would build them again for each.
export PYO3_PYTHON := $(CURDIR)/.venv/bin/python
export CARGO_NET_RETRY ?= 5
# A machine that builds once gains nothing from incremental compilation, which costs time and space.
ifdef CI
export CARGO_INCREMENTAL ?= 0
LOCKED := --locked
endif
# Python interpreter to make .venv with, and seconds for each fuzz target.
export PYTHON ?=
FUZZ_S ?= 5
# How long schedules are explored, or real processes killed; and a name (FAMILY:SEED) of one to be shown instead.
MINUTES ?= 60
SCHEDULE ?=
# Arguments for the demo, the bench, pytest and nextest: make demo ARGS="--kills 9".
ARGS ?=

export WHEEL ?=

help: ## Show this list
	@echo 'outlive: saves the state of a running program, and restores it after a crash.'
	@echo
	@echo 'usage: make TARGET [ARGS="..."]'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'demo and test set up all that they need. Before that, install Rust and Python 3.11.'

demo: build ## Kill programs again and again, delete parts of their pool; compare with undisturbed runs
	@.venv/bin/python examples/demo.py $(ARGS)
	@echo
	@.venv/bin/python examples/demo_training.py
	@echo
	@.venv/bin/python examples/demo_pool.py
	@echo
	@cargo build --quiet --release $(LOCKED) --package outlive-c
	@.venv/bin/python examples/demo_mpi.py "$${CARGO_TARGET_DIR:-target}/release/liboutlive.so"

check: lint ## Check formatting, lint and run the unit tests: no servers (half a minute, once built)
	@printf '\n== Unit tests\n'
	@PATH="$(CURDIR)/.venv/bin:$$PATH" cargo nextest run --workspace --lib --bins $(LOCKED) --profile quick

# Cheap failures first.
test: lint test-rust ## Run all checks and tests, as CI does
	@scripts/fuzz '$(FUZZ_S)' --changed
	@scripts/test-python $(ARGS)
	@echo
	@echo '== All checks passed'
	@cat "$${CARGO_TARGET_DIR:-target}"/test-summary/{rust,python}

setup: ## Check the tools and fill .venv (done first by every target that needs it)
	@scripts/setup

build: setup ## Build the Python package (into .venv) and target/release/outlive
	@scripts/build

lint: setup ## Check formatting, clippy, ruff, mypy, English, and that no files import each other in a circle
	@printf '\n== Format and lint\n'
	cargo fmt --all --check
	.venv/bin/ruff check --quiet
	.venv/bin/ruff format --check --quiet
	.venv/bin/mypy
	.venv/bin/python -B scripts/circles.py crates/*/src bindings/*/src
	.venv/bin/python -B scripts/prose.py
	cargo clippy --workspace --all-targets --quiet $(LOCKED) -- -D warnings

header: setup ## Write the C header from bindings/c/src
	OUTLIVE_WRITE_HEADER=1 cargo test --quiet -p outlive-c --test it header

fmt: setup ## Format all Rust and Python sources
	cargo fmt --all
	.venv/bin/ruff check --fix --quiet
	.venv/bin/ruff format --quiet

test-rust: setup ## Run the Rust tests (ARGS: arguments for nextest)
	@scripts/test-rust $(ARGS)

test-python: setup ## Run the Python tests (ARGS: arguments for pytest; WHEEL=release: not the dev profile)
	@scripts/test-python $(ARGS)

test-frameworks: setup ## Run the tests that need PyTorch and JAX (downloads 1 GB; not part of test)
	@scripts/test-frameworks $(ARGS)

docs: setup ## Build the documents as a site in target/docs, and look at it in a browser (0.5 GB for tools)
	@scripts/docs $(ARGS)

release: setup ## Build wheel, source archive and C archive in target/release-files, and try each in bare systems
	@scripts/release $(ARGS)

fuzz: setup ## Fuzz each decoder for FUZZ_S seconds (default: 5); `test` does so only after a change
	@scripts/fuzz '$(FUZZ_S)'

soak: setup ## Explore interleavings for MINUTES of processor time (default: 60); SCHEDULE=NAME shows one
	cargo run --quiet -p outlive-sim --bin outlive-explore -- \
		$(if $(SCHEDULE),$(SCHEDULE),--minutes $(MINUTES)) $(ARGS)

bugs: setup ## Put known bugs into a copy, and count the schedules until each is found (ARGS: their names)
	@scripts/explore-bugs $(ARGS)

mutants: setup ## Put wrong patches into a copy, and see which the tests and the explorer find (ARGS: --again, names)
	@scripts/mutants $(ARGS)

# After a fault its pools stay for a look, and what happened last is told.
storm: build ## Kill and suspend programs of all kinds on one pool for MINUTES (default: 60; ARGS=--striped)
	@folder=$$(mktemp -d -t outlive-storm-XXXXXX); seed=$$RANDOM; \
	printf '== Storm, %s minutes, seed %s, in %s\n' '$(MINUTES)' "$$seed" "$$folder"; \
	.venv/bin/python bindings/python/tests/storm.py "$$folder" "$$seed" --minutes '$(MINUTES)' $(ARGS) \
	    && rm -rf -- "$$folder"

# TORCH=1 measures PyTorch too, RUSTIC=0 does without rustic; ARGS=--quick shows within a minute or two that it works.
export TORCH ?=
export RUSTIC ?= 1
bench: build ## Compare with peers and write docs/benchmarks.md (TORCH=1: with PyTorch; ARGS=--quick)
	@scripts/setup-bench
	@.venv-bench/bin/python bench/compare.py --docs docs $(ARGS)

# Needs no Python.
PREFIX ?= /usr/local
install: ## Install the C library, headers, Fortran module and command (PREFIX=/usr/local, DESTDIR)
	@scripts/install '$(PREFIX)'

clean: ## Remove everything that was built or downloaded into this folder
	rm -rf -- .venv .venv-bench .venv-docs .venv-frameworks .venv-release target demo-out fuzz/target .mypy_cache .ruff_cache .pytest_cache
