# Needs cargo, Node.js with npm, and python3; installs the rest itself.

VENV := tests/.venv/bin
TOOLS := tests/.tools

.PHONY: test peers deny compat fuzz bench-idle bench-edit

test: peers
	cargo fmt --check
	cargo clippy --all-targets --locked -- -D warnings
	cargo test --locked
	$(MAKE) deny

peers:
	tests/peers/install.sh

# Licences, banned crates and where crates come from; advisories need a database from the network.
deny: $(TOOLS)/bin/cargo-deny
	$(TOOLS)/bin/cargo-deny --locked check --hide-inclusion-graph bans licenses sources

$(TOOLS)/bin/cargo-deny:
	cargo install --quiet --locked --debug --root $(TOOLS) cargo-deny@0.20.2

# What an idle sidecar with three servers costs.
bench-idle: peers
	cargo build --release --locked
	$(VENV)/python bench/idle.py target/release/mcp-reconciler

# The published qwen-code, which shares the approval store: digests and merging agree with it.
compat:
	cd tests/compat && npm ci
	cargo build --locked
	python3 tests/compat/compat.py target/debug/mcp-reconciler

# Coverage-guided, for a minute; what it finds of interest goes into fuzz/corpus, which the tests replay.
fuzz: $(TOOLS)/bin/cargo-fuzz
	cd fuzz && RUSTC_BOOTSTRAP=1 ../$(TOOLS)/bin/cargo-fuzz run sources --fuzz-dir . -- -max_total_time=60

$(TOOLS)/bin/cargo-fuzz:
	cargo install --quiet --locked --debug --root $(TOOLS) cargo-fuzz@0.13.2

# How long after a save everything has been read, beside the settle time; and what one pure pass costs.
bench-edit:
	cargo build --release --locked
	python3 bench/edit.py target/release/mcp-reconciler
	cargo bench --bench pass
