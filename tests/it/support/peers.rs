//! The real servers and clients, as `tests/peers/install.sh` puts them in place.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// # Panics
/// When it was not installed.
fn installed(path: PathBuf) -> String {
    assert!(path.exists(), "{} is missing; run tests/peers/install.sh, or make test", path.display());
    path.display().to_string()
}

/// A program of the Python environment.
pub fn python(name: &str) -> String {
    installed(tests().join(".venv/bin").join(name))
}

/// A program of the npm packages.
pub fn npm(name: &str) -> String {
    installed(tests().join("peers/node_modules/.bin").join(name))
}

/// A file of the tests.
pub fn file(name: &str) -> String {
    installed(tests().join(name))
}

pub fn everything() -> Value {
    json!({ "command": npm("mcp-server-everything") })
}

pub fn filesystem(directories: &[&Path]) -> Value {
    json!({ "command": npm("mcp-server-filesystem"), "args": directories })
}

pub fn time() -> Value {
    json!({ "command": python("mcp-server-time"), "args": ["--local-timezone", "UTC"] })
}

/// Our own small server.
pub fn demo() -> Value {
    json!({ "command": super::sidecar::BINARY, "args": ["demo-server"] })
}

/// The same, told apart by one more argument that it does not look at.
pub fn demo_with_env(value: &str) -> Value {
    json!({ "command": super::sidecar::BINARY, "args": ["demo-server"], "env": { "VERSION": value } })
}

/// A process that never says a word.
pub fn silent() -> Value {
    json!({ "command": "sleep", "args": ["600"] })
}
