# Needs cargo, Node.js with npm, and python3; installs the rest itself.

VENV := tests/.venv/bin
TOOLS := tests/.tools

.PHONY: test peers deny bench-idle

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
