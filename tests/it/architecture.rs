//! The layers import each other one way only, and pure files know no runtime, no logging and no files.

use std::fs;
use std::path::{Path, PathBuf};

/// What each layer may not name.
const LAYERS: [(&str, &[&str]); 5] = [
    (
        "model",
        &["crate::controller", "crate::protocol", "crate::sinks", "crate::sources", "crate::cli", "tokio"],
    ),
    (
        "protocol",
        &["crate::controller", "crate::model", "crate::sinks", "crate::sources", "crate::cli", "tokio"],
    ),
    ("controller", &["crate::sinks", "crate::sources", "crate::cli"]),
    ("sources", &["crate::sinks", "crate::cli"]),
    ("sinks", &["crate::sources", "crate::cli"]),
];

/// Files that decide and do nothing else.
const PURE: [&str; 21] = [
    "command/check.rs",
    "command/plan.rs",
    "controller/admit.rs",
    "controller/catalog.rs",
    "controller/plan.rs",
    "controller/report.rs",
    "controller/resolve.rs",
    "controller/retry.rs",
    "controller/snapshot.rs",
    "controller/table.rs",
    "sinks/names.rs",
    "sinks/status_text.rs",
    "sources/digest.rs",
    "sources/dotenv.rs",
    "sources/entry.rs",
    "sources/expand.rs",
    "sources/json.rs",
    "sources/node.rs",
    "sources/schema.rs",
    "sources/settings.rs",
    "sources/yaml.rs",
];

const IMPURE: [&str; 7] =
    ["tokio", "tracing", "std::fs", "Instant::now", "SystemTime::now", "std::net::Tcp", ".await"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            out.extend(files(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            out.push(path);
        }
    }
    out.sort();
    out
}

/// The file without its tests and comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn offences(path: &Path, banned: &[&str]) -> Vec<String> {
    let code = code(path);
    banned
        .iter()
        .filter(|word| code.contains(**word))
        .map(|word| format!("{}: {word}", path.display()))
        .collect()
}

#[test]
fn layers_import_one_way_only() {
    let found: Vec<_> = LAYERS
        .iter()
        .flat_map(|(layer, banned)| files(&source().join(layer)).into_iter().map(move |file| (file, banned)))
        .flat_map(|(file, banned)| offences(&file, banned))
        .collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn pure_files_know_no_runtime_no_logging_and_no_files() {
    let found: Vec<_> = PURE.iter().flat_map(|file| offences(&source().join(file), &IMPURE)).collect();
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn only_the_loop_knows_select() {
    let with: Vec<_> = files(&source()).into_iter().filter(|file| code(file).contains("select!")).collect();
    assert_eq!(with, [source().join("controller/mod.rs")]);
}

#[test]
fn every_file_begins_by_saying_what_it_is_for() {
    let without: Vec<_> = files(&source())
        .into_iter()
        .filter(|file| !fs::read_to_string(file).unwrap().starts_with("//! "))
        .collect();
    assert!(without.is_empty(), "{without:#?}");
}
