# Entry points for people and CI. `make help` lists them.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## The operator at work, on a throw-away control plane (needs no cluster)
	@scripts/tools cargo go cc git postgres
	@echo "Building kollect; the first time takes some minutes"
	@cargo build -p kollect --no-default-features --features git,postgres,sqlite
	@cargo run -p kollect-testbed -- demo target/debug/kollect

.PHONY: check
check: lint ## While you work: format, lints, unit and pipeline tests; no servers
	cargo test --quiet --workspace --exclude kollect-testbed --lib --bins -- $$(scripts/server-tests)

# Builds the servers first: tests have time limits, and must not compete with compilers for the CPU.
.PHONY: test
test: lint servers ## What CI runs: format, lints, generated files, unit, pipeline and real-server tests
	SEEDS=$(or $(SEEDS),2000) cargo test --workspace --no-fail-fast

.PHONY: test-all
test-all: test check-features check-simulator ## What runs nightly: all tests, each feature alone, planted faults, the real-server tests again and again
	TIMES=100 cargo test -p kollect --test it kubectl_wait_for_exported
	$(MAKE) soak N=$(or $(N),3)

.PHONY: check-features
check-features: tools ## Compile every sink alone, in the library and in the program
	features=$$(cargo run --quiet -p kollect-testbed -- features); \
	while read -r package feature; do \
		echo "$$package with $$feature only"; \
		cargo clippy --quiet -p "$$package" --no-default-features --features "$$feature" -- -D warnings; \
	done <<< "$$features"

.PHONY: lint
lint: tools ## Format check, clippy with warnings as errors, every .rs file reachable, planted faults that apply
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	@scripts/orphans
	@for patch in crates/kollect/src/operator/simulate/faults/*.patch; do git apply --check "$$patch"; done

.PHONY: bench
bench: tools ## Measure; prints ratios
	cargo bench -p kollect-engine

.PHONY: bench-scale
bench-scale: servers ## 100,000 objects on a real control plane: time, memory, churn (N=10000 for the quick form)
	N=$(or $(N),100000) cargo bench -p kollect --bench scale

.PHONY: bench-delivery
bench-delivery: servers ## Rows to real sinks: writes, latency, memory, restarts (N=10000 for the quick form)
	N=$(or $(N),100000) cargo bench -p kollect-sinks --bench delivery

.PHONY: bench-operator
bench-operator: servers ## The operator with a real control plane and PostgreSQL: latency, memory, idling, many teams (N=10000 for the quick form)
	N=$(or $(N),100000) cargo bench -p kollect --bench operator

.PHONY: soak
soak: server-tools ## The real-server tests again and again: N=20 by default
	for round in $$(seq $(or $(N),20)); do echo "round $$round"; cargo test --quiet -p kollect -p kollect-testbed; done

# A release build: a schedule simulates minutes, and its speed depends on the CPU only.
.PHONY: simulate
simulate: tools ## Random schedules of faults against the operator, without servers: SEEDS=2000 FROM=0 by default, SEED=N for one
	SEED=$(SEED) CUT=$(CUT) TRACE=$(TRACE) FROM=$(FROM) SEEDS=$(or $(SEEDS),2000) \
		cargo test --release -p kollect --bin kollect simulate::readers -- --nocapture

.PHONY: check-simulator
check-simulator: tools ## Plant faults in the operator, one after the other: the simulator must find each of them
	scripts/check-simulator

.PHONY: generate
generate: tools ## Rewrite the generated files
	cargo build --quiet -p kollect
	rm -f config/crd/bases/*.yaml
	target/debug/kollect crds --dir config/crd/bases

# Programs that the build and the tests need. As root on Debian missing ones are installed, otherwise named.
.PHONY: tools
tools:
	@scripts/tools cargo go cc

.PHONY: server-tools
server-tools:
	@scripts/tools cargo go cc postgres sqlite3 git nginx fcgiwrap sshd

.PHONY: servers
servers: server-tools ## Build the control plane, NATS and promtool into the cache; a single test does that by itself if it needs one
	cargo run --quiet -p kollect-testbed -- build
