//! What holds for every text that may stand in a file of settings: the same for the fuzzer and for the replay of its corpus.

use std::path::Path;

use mcp_reconciler::controller::admit::Own;
use mcp_reconciler::controller::resolve::{Desired, resolve};
use mcp_reconciler::controller::snapshot::{
    Approvals, LayerReading, Reading, Readings, Snapshot, TrustVerdict, Watching,
};
use mcp_reconciler::model::{Moment, Root, Scope};
use mcp_reconciler::sources::digest::{Form, digest};
use mcp_reconciler::sources::entry::Surroundings;
use mcp_reconciler::sources::expand::{Variables, expand, expand_as_qwen_code};
use mcp_reconciler::sources::node::{Fault, Node, Value};
use mcp_reconciler::sources::{json, settings, yaml};

/// The first byte chooses the format; the rest is the file.
pub fn hold(data: &[u8]) {
    let Some((format, rest)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    let variables =
        Variables::new(&[("A".to_owned(), "x".to_owned()), ("E".to_owned(), String::new())].into(), []);
    expansion(text, &variables);
    let (parsed, name) =
        if format % 2 == 0 { (json::parse(text), "/s.json") } else { (yaml::parse(text), "/s.yaml") };
    let node = match parsed {
        Ok(node) => node,
        Err(fault) => return located(&fault, text),
    };
    let root = Root::new(Path::new("/"), Path::new("/w"));
    let mut layers = Vec::new();
    for scope in Scope::ALL {
        let around =
            Surroundings { path: Path::new(name), scope, root: &root, home: None, variables: &variables };
        let layer = if scope.has_lists() {
            settings::layer(&node, around)
        } else {
            settings::servers_layer(&node, around)
        };
        match layer {
            Ok(layer) => {
                for declared in layer.servers.values() {
                    // A gated entry that can be used has what an approval is bound to.
                    assert!(!scope.is_gated() || declared.spec.is_err() || declared.digest.is_some());
                }
                let reading = Reading::Good(layer.into());
                layers.push(LayerReading { scope, rank: 0, path: name.into(), explicit: false, reading });
            }
            Err(fault) => located(&fault, text),
        }
    }
    digests(&node, &variables);
    merged(layers);
}

/// A fault's place is in the file.
fn located(fault: &Fault, text: &str) {
    if let Some((line, column)) = fault.at {
        assert!(line >= 1 && column >= 1, "{fault:?}");
        // In YAML a carriage return alone ends a line as well.
        assert!(line <= text.matches(['\n', '\r']).count() + 2, "{fault:?}");
    }
}

/// Expansion ends, and a text without references is left alone.
fn expansion(text: &str, variables: &Variables) {
    let _ = expand(text, variables, None);
    let hashed = expand_as_qwen_code(text, variables);
    if !text.contains('$') {
        assert_eq!(hashed, text);
        if !text.starts_with("~/") {
            assert_eq!(expand(text, variables, None).as_deref(), Ok(text));
        }
    }
}

/// The order of an entry's members does not count.
fn digests(node: &Node, variables: &Variables) {
    let Value::Map(map) = &node.value else { return };
    let reversed = map.iter().rev().map(|(key, node)| (key.clone(), node.clone())).collect();
    for form in [Form::McpJson, Form::Settings(variables)] {
        let (there, back) = (digest(map, form, "f"), digest(&reversed, form, "f"));
        if let (Ok(there), Ok(back)) = (there, back) {
            assert_eq!(there.to_hex(), back.to_hex());
        }
    }
}

/// Merging the same documents again changes nothing, and nothing gated is admitted without an approval.
fn merged(layers: Vec<LayerReading>) {
    let readings = Readings {
        layers,
        approvals: ("/a".into(), Reading::Good(Approvals::default().into())),
        trust: ("/t".into(), Reading::<TrustVerdict>::Absent),
        watching: Watching { active: true, message: String::new() },
    };
    let snapshot = Snapshot::advance(None, readings, Moment::START);
    let own = Own::default();
    let first = resolve(&snapshot, None, &own, &Desired::default());
    for wanted in first.servers.values() {
        assert!(!wanted.scope.is_gated() || wanted.admitted().is_none());
    }
    assert_eq!(resolve(&snapshot, None, &own, &first).generation, first.generation);
}
