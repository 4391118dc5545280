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

.PHONY: playground
playground: ## A control plane, PostgreSQL, NATS and the operator until Ctrl-C: for docs/start
	@scripts/tools cargo go cc git postgres
	@echo "Building kollect; the first time takes some minutes"
	@cargo build -p kollect
	@cargo run --quiet -p kollect-testbed -- playground target/debug/kollect

.PHONY: check
check: lint ## While you work: format, lints, unit and pipeline tests; no servers
	cargo test --quiet --workspace --exclude kollect-testbed --lib --bins -- $$(scripts/server-tests)

# Builds the servers first: tests have time limits, and must not compete with compilers for the CPU.
.PHONY: test
test: lint servers ## What CI runs: format, lints, generated files, unit, pipeline and real-server tests
	rm -rf target/messages
	KOLLECT_MESSAGES=$(CURDIR)/target/messages SEEDS=$(or $(SEEDS),2000) cargo test --workspace --no-fail-fast
	cargo run --quiet -p kollect-testbed -- messages check target/messages $(MESSAGES)

# What users read, as the tests have seen it. A change of words is a difference of this file.
MESSAGES := crates/kollect/testdata/messages.txt
.PHONY: messages
messages: tools ## Write the listing of messages that the last `make test` has seen
	cargo run --quiet -p kollect-testbed -- messages write target/messages $(MESSAGES)

.PHONY: test-all
test-all: test fuzz check-features check-simulator ## What runs nightly: all tests, each feature alone, planted faults, the real-server tests again and again; as root also the image
	if [ "$$(id -u)" = 0 ]; then $(MAKE) test-image; else echo "not root: run 'sudo make test-image' too"; fi
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

.PHONY: fuzz
fuzz: tools ## Random expressions: the parts that each reads of objects give what the whole objects give: EXPRESSIONS=100000 by default
	EXPRESSIONS=$(or $(EXPRESSIONS),100000) cargo test --release -p kollect-engine --lib random_expressions

.PHONY: check-simulator
check-simulator: tools ## Plant faults in the operator, one after the other: the simulator must find each of them
	scripts/check-simulator

.PHONY: generate
generate: tools ## Rewrite the generated files
	cargo build --quiet -p kollect
	rm -f config/crd/bases/*.yaml charts/kollect/files/crds/*.yaml docs/reference/kinds/*.md
	target/debug/kollect crds --dir config/crd/bases
	target/debug/kollect crds --dir charts/kollect/files/crds
	UPDATE=1 cargo test --quiet -p kollect --test it generated_from

# Programs from crates.io for documentation and checks, in their own directory below target/.
TOOLS := target/tools
$(TOOLS)/bin/mdbook:
	cargo install --quiet --locked --root $(TOOLS) mdbook@0.5.4 --no-default-features --features search
$(TOOLS)/bin/cargo-deny:
	cargo install --quiet --locked --root $(TOOLS) cargo-deny@0.20.2
$(TOOLS)/bin/cargo-llvm-cov:
	rustup component add llvm-tools
	cargo install --quiet --locked --root $(TOOLS) cargo-llvm-cov@0.9.1

.PHONY: docs
docs: tools $(TOOLS)/bin/mdbook ## Make a book with search of docs/: target/book/docs/index.html
	rm -rf target/book
	$(TOOLS)/bin/mdbook build
	cp -r config target/book/config
	@echo "target/book/docs/index.html"

.PHONY: deny
deny: tools $(TOOLS)/bin/cargo-deny ## Check licences, sources and duplicates of dependencies (CI also checks advisories)
	$(TOOLS)/bin/cargo-deny --locked check $(or $(CHECKS),licenses bans sources)

ARCHITECTURES := amd64
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# The date of the commit, so that the same commit gives the same bytes.
COMMIT := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
COMMIT_DATE := $(shell TZ=UTC git show --no-patch --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd HEAD 2>/dev/null || echo 1970-01-01T00:00:00Z)

.PHONY: image
image: tools ## An OCI image of the static program, without Docker: target/image (ARCHITECTURES="amd64 arm64" for both)
	programs=(); for arch in $(ARCHITECTURES); do programs+=("$$arch=$$(scripts/static $$arch)"); done; \
	cargo run --quiet -p kollect-testbed -- image target/image $(VERSION) $(COMMIT) $(COMMIT_DATE) "$${programs[@]}"
	cargo run --quiet -p kollect-testbed -- sbom > target/image.cdx.json
	@echo "target/image: the image, target/image.cdx.json: its bill of materials"

.PHONY: test-image
test-image: image servers ## The image from a registry, in its own read-only root as user 65532, with all tests of installations (needs root)
	scripts/unpack-image target/image target/image-root
	KOLLECT_PROGRAM=$(CURDIR)/scripts/run-image KOLLECT_IMAGE_ROOT=$(CURDIR)/target/image-root \
		cargo test -p kollect --test it install::

.PHONY: chart
chart: tools ## The chart as a package: target/kollect-VERSION.tgz
	"$$(cargo run --quiet -p kollect-testbed -- program helm)" package charts/kollect --destination target

.PHONY: dist
dist: image chart ## What a release consists of, with bill of materials and checksums: target/dist
	rm -rf target/dist && mkdir -p target/dist
	for arch in $(ARCHITECTURES); do \
		tar --sort=name --owner=0 --group=0 --mtime=@0 -czf target/dist/kollect-$(VERSION)-linux-$$arch.tar.gz \
			-C "$$(dirname "$$(scripts/static $$arch)")" kollect -C $(CURDIR) LICENSE NOTICE; \
	done
	tar --sort=name --owner=0 --group=0 --mtime=@0 -cf target/dist/kollect-$(VERSION)-image.tar -C target/image .
	cp target/image.cdx.json target/dist/kollect.cdx.json
	cp target/kollect-$(VERSION).tgz target/dist/kollect-chart-$(VERSION).tgz
	cat config/crd/bases/*.yaml > target/dist/kollect-crds-$(VERSION).yaml
	cd target/dist && sha256sum * > SHA256SUMS

# The chart has the same repository as the image; their tags differ: v1.2.3 and 1.2.3.
REGISTRY ?= ghcr.io/kollect-dev
.PHONY: publish
publish: ## Push what `make dist` has made to $REGISTRY, as $REGISTRY_USER with $REGISTRY_TOKEN, and sign it
	scripts/publish "$(REGISTRY)" "$(VERSION)"

.PHONY: coverage
coverage: servers $(TOOLS)/bin/cargo-llvm-cov ## Which lines tests run: a table by file; slow, in a target directory of its own
	PATH="$(TOOLS)/bin:$$PATH" cargo llvm-cov --workspace --summary-only

# Programs that the build and the tests need. As root on Debian missing ones are installed, otherwise named.
.PHONY: tools
tools:
	@scripts/tools cargo go cc

.PHONY: server-tools
server-tools:
	@scripts/tools cargo go cc postgres sqlite3 git nginx fcgiwrap sshd curl python3

.PHONY: servers
servers: server-tools ## Build the control plane, NATS and promtool into the cache; a single test does that by itself if it needs one
	cargo run --quiet -p kollect-testbed -- build
