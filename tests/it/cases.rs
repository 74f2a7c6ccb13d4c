//! Faults that people reported of programs that read such files, each with what is right: `docs/cases.md` lists them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use mcp_reconciler::controller::snapshot::{Declared, Layer};
use mcp_reconciler::model::{Refusal, Root, Scope, Transport};
use mcp_reconciler::sources::entry::Surroundings;
use mcp_reconciler::sources::expand::Variables;
use mcp_reconciler::sources::node::Fault;
use mcp_reconciler::sources::{json, settings, yaml};
use serde_json::Value;

fn read(case: &Value) -> Result<Layer, Fault> {
    let variables: BTreeMap<String, String> =
        serde_json::from_value(case["variables"].clone()).unwrap_or_default();
    let variables = Variables::new(&variables, []);
    let text = case["text"].as_str().unwrap();
    let (scope, path) = match case["kind"].as_str().unwrap() {
        "mcp-json" => (Scope::Project, "/w/.mcp.json"),
        "yaml" => (Scope::Config, "/w/s.yaml"),
        _ => (Scope::User, "/h/settings.json"),
    };
    let root = Root::new("/".as_ref(), "/w".as_ref());
    let home = Some(Path::new("/h"));
    let around = Surroundings { path: Path::new(path), scope, root: &root, home, variables: &variables };
    let document = if scope == Scope::Config { yaml::parse(text)? } else { json::parse(text)? };
    if scope == Scope::Project {
        settings::servers_layer(&document, around)
    } else {
        settings::layer(&document, around)
    }
}

fn outcome(declared: &Declared) -> String {
    match &declared.spec {
        Err(unusable) if unusable.refusal == Refusal::Unsupported => "unsupported".to_owned(),
        Err(unusable) => format!("invalid: {}", unusable.error),
        Ok(_) if declared.disabled => "disabled".to_owned(),
        Ok(usable) => match &usable.spec.transport {
            Transport::Http { probe: true, .. } => "http-probe".to_owned(),
            other @ (Transport::Stdio { .. } | Transport::Http { .. } | Transport::Sse { .. }) => {
                other.as_str().to_owned()
            }
        },
    }
}

fn cases() -> Vec<Value> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut files: Vec<_> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| serde_json::from_slice(&fs::read(file).unwrap()).unwrap()).collect()
}

#[test]
fn every_reported_fault_of_reading_is_read_right() {
    let cases = cases();
    assert!(cases.len() > 20);
    for case in cases {
        let id = &case["case"];
        let layer = match (read(&case), case["fault"].as_str()) {
            (Err(fault), Some(expected)) => {
                assert!(fault.message.contains(expected) && fault.at.is_some(), "{id}: {fault:?}");
                continue;
            }
            (Ok(layer), None) => layer,
            (found, expected) => panic!("{id}: {:?} instead of {expected:?}", found.err()),
        };
        let expected: BTreeMap<String, String> = serde_json::from_value(case["expect"].clone()).unwrap();
        let found: BTreeMap<String, String> = layer
            .servers
            .iter()
            .map(|(name, declared)| (name.as_str().to_owned(), outcome(declared)))
            .collect();
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{id}");
        for (name, expected) in expected {
            let (kind, needle) = expected.split_once(": ").unwrap_or((&expected, ""));
            let found = &found[&name];
            assert!(
                found.starts_with(kind) && found.contains(needle),
                "{id} {name}: {found} instead of {expected}"
            );
        }
    }
}

#[test]
fn every_spelling_of_one_endpoint_is_one_connection() {
    let case = cases().into_iter().find(|case| case["case"] == "C-06").unwrap();
    let layer = read(&case).unwrap();
    let fingerprint = |name: &str| layer.servers[name].spec.as_ref().unwrap().fingerprint;
    for name in ["b", "c", "d", "e", "f"] {
        assert_eq!(fingerprint(name), fingerprint("a"), "{name}");
    }
}

#[test]
fn every_case_of_watching_and_reading_has_its_row_and_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let table = fs::read_to_string(root.join("docs/cases.md")).unwrap();
    let rows: Vec<_> =
        table.lines().filter(|line| line.starts_with("| W-") || line.starts_with("| C-")).collect();
    assert!(rows.len() >= 48, "{}", rows.len());
    let mut sources = String::new();
    for directory in ["src", "tests"] {
        collect(&root.join(directory), &mut sources);
    }
    for row in rows {
        let test = row.split('|').nth(3).unwrap();
        let names: Vec<_> = test.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty() || test.contains("not applicable"), "{row}");
        for name in names {
            let name = name.rsplit("::").next().unwrap();
            assert!(sources.contains(&format!("fn {name}(")), "no test {name}: {row}");
        }
    }
}

fn collect(directory: &Path, out: &mut String) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir()
            && !path.ends_with("node_modules")
            && !path.ends_with(".venv")
            && !path.ends_with(".tools")
        {
            collect(&path, out);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            *out += &fs::read_to_string(&path).unwrap();
        }
    }
}
