//! Decides what a settings document asks for: its servers, its lists of names, and whether folders need trust.

use std::collections::BTreeMap;

use super::entry::{Surroundings, declare};
use super::node::{Fault, Map, Node};
use crate::controller::snapshot::{Declared, Layer, SourceError};
use crate::model::{Scope, ServerName};

/// Keys of a settings document that are looked at.
const KEYS: [&str; 3] = ["mcp", "mcpServers", "security"];

/// The layer that a settings document is. Keys of others (themes, models) are not looked at.
///
/// # Errors
/// When something that decides who may connect cannot be understood: a bad list must not mean "allow all".
pub fn layer(document: &Node, around: Surroundings<'_>) -> Result<Layer, Fault> {
    let root = document.map("the document")?;
    let mcp = section(root, "mcp")?;
    let list = |key: &str| names(mcp, key);
    let security = section(root, "security")?;
    let folder_trust = match security.and_then(|map| map.get("folderTrust")) {
        None => None,
        Some(node) => {
            let enabled = node.map("security.folderTrust")?.get("enabled");
            enabled.map(|node| node.bool("security.folderTrust.enabled")).transpose()?
        }
    };
    let mut warnings = Vec::new();
    if let Some(node) = mcp.and_then(|mcp| mcp.get("serverCommand")) {
        let message = "mcp.serverCommand is a shell's command line and never run here; use mcpServers";
        warnings.push(Fault::at(node.at, message));
    }
    // An operator's file is about servers and nothing else.
    let servers = match around.scope {
        Scope::Config => {
            if !root.is_empty() && !KEYS.iter().chain(&["servers"]).any(|key| root.contains_key(*key)) {
                warnings.push(nothing_found(document));
            }
            servers(root, &["mcpServers", "servers"], around, &mut warnings)?
        }
        Scope::Extension
        | Scope::SystemDefaults
        | Scope::User
        | Scope::Project
        | Scope::Workspace
        | Scope::System => servers(root, &["mcpServers"], around, &mut warnings)?,
    };
    Ok(Layer {
        servers,
        allowed: list("allowed")?,
        excluded: list("excluded")?.unwrap_or_default(),
        folder_trust,
        warnings: told(warnings, around),
    })
}

/// The layer that a `.mcp.json` or an extension is: servers alone.
///
/// # Errors
/// When it has no map of servers.
pub fn servers_layer(document: &Node, around: Surroundings<'_>) -> Result<Layer, Fault> {
    let root = document.map("the document")?;
    let mut warnings = Vec::new();
    let keys: &[&str] =
        if around.scope == Scope::Project { &["mcpServers", "servers"] } else { &["mcpServers"] };
    if around.scope == Scope::Project && !root.is_empty() && !keys.iter().any(|key| root.contains_key(*key)) {
        warnings.push(nothing_found(document));
    }
    let servers = servers(root, keys, around, &mut warnings)?;
    Ok(Layer { servers, warnings: told(warnings, around), ..Layer::default() })
}

fn nothing_found(document: &Node) -> Fault {
    Fault::at(document.at, "no servers here: the key mcpServers was looked for")
}

fn told(warnings: Vec<Fault>, around: Surroundings<'_>) -> Vec<SourceError> {
    let told = |Fault { at, message }| SourceError { path: around.path.to_owned(), at, message };
    warnings.into_iter().map(told).collect()
}

/// The servers at the first of `keys` that is there; the others are dialects of other programs.
fn servers(
    root: &Map,
    keys: &[&str],
    around: Surroundings<'_>,
    warnings: &mut Vec<Fault>,
) -> Result<BTreeMap<ServerName, Declared>, Fault> {
    let mut out = BTreeMap::new();
    let mut found =
        keys.iter().filter_map(|key| Some((*key, root.get(*key).filter(|node| !node.is_null())?)));
    let Some((key, node)) = found.next() else { return Ok(out) };
    for (other, node) in found {
        warnings.push(Fault::at(node.at, format!("{other} is not looked at, because {key} is there")));
    }
    for (name, entry) in node.map(key)? {
        let name = ServerName::new(name);
        warnings.extend(super::entry::warnings(name.as_str(), entry, around));
        let declared = declare(name.as_str(), entry, around);
        if out.insert(name.clone(), declared).is_some() && !name.as_str().is_empty() {
            let message = format!("{key}: the name {:?} stands here a second time", name.as_str());
            return Err(Fault::at(entry.at, message));
        }
    }
    Ok(out)
}

/// The map at `key`; a wrongly typed or null one is bad.
fn section<'a>(root: &'a Map, key: &str) -> Result<Option<&'a Map>, Fault> {
    root.get(key).map(|node| node.map(key)).transpose()
}

/// The list of names at `mcp.<key>`. Blank ones do not count.
fn names(mcp: Option<&Map>, key: &str) -> Result<Option<Vec<String>>, Fault> {
    let Some(node) = mcp.and_then(|mcp| mcp.get(key)) else { return Ok(None) };
    let names = node.texts(&format!("mcp.{key}"))?;
    Ok(Some(names.into_iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::expand::Variables;
    use super::super::json;
    use super::*;
    use crate::model::Root;

    fn read(text: &str) -> Result<Layer, Fault> {
        read_as(Scope::User, text)
    }

    fn read_as(scope: Scope, text: &str) -> Result<Layer, Fault> {
        let root = Root::new("/".as_ref(), "/w".as_ref());
        let variables = Variables::default();
        let path = Path::new("/s.json");
        let around = Surroundings { path, scope, root: &root, home: None, variables: &variables };
        let document = json::parse(text).unwrap();
        if scope == Scope::Project { servers_layer(&document, around) } else { layer(&document, around) }
    }

    #[test]
    fn a_document_of_other_keys_asks_for_nothing() {
        let layer = read(r#"{"theme":"x","mcp":{},"security":{"auth":{}}}"#).unwrap();
        assert!(layer.servers.is_empty() && layer.allowed.is_none() && layer.excluded.is_empty());
        assert_eq!(layer.folder_trust, None);
    }

    #[test]
    fn lists_of_names_are_trimmed_and_absent_is_not_empty() {
        let layer = read(
            r#"{"mcp":{"allowed":[" a ",""],"excluded":["b"]},"security":{"folderTrust":{"enabled":true}}}"#,
        );
        let layer = layer.unwrap();
        assert_eq!((layer.allowed, layer.excluded), (Some(vec!["a".into()]), vec!["b".into()]));
        assert_eq!(layer.folder_trust, Some(true));
        assert_eq!(read(r#"{"mcp":{"allowed":[]}}"#).unwrap().allowed, Some(vec![]));
    }

    #[test]
    fn what_decides_who_may_connect_must_be_well_formed() {
        for text in [
            "[]",
            r#"{"mcp":null}"#,
            r#"{"mcp":{"allowed":null}}"#,
            r#"{"mcp":{"allowed":"a"}}"#,
            r#"{"mcp":{"excluded":[1]}}"#,
            r#"{"mcpServers":[]}"#,
            r#"{"mcpServers":"x"}"#,
            r#"{"mcpServers":{"a":{"command":"c"}," a":{"command":"d"}}}"#,
            r#"{"security":{"folderTrust":{"enabled":"yes"}}}"#,
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        assert!(read(r#"{"mcpServers":null}"#).unwrap().servers.is_empty());
    }

    #[test]
    fn one_bad_entry_stops_no_other() {
        let layer = read(r#"{"mcpServers":{"a":{"command":"c"},"b":null,"c":"x","":{}," ":{}}}"#).unwrap();
        let usable: Vec<_> = layer.servers.iter().map(|(name, d)| (name.as_str(), d.spec.is_ok())).collect();
        assert_eq!(usable, [("", false), ("a", true), ("b", false), ("c", false)]);
    }

    #[test]
    fn servers_are_found_under_the_keys_of_each_kind_of_file() {
        let names = |scope, text| {
            let layer = read_as(scope, text).unwrap();
            let names: Vec<_> = layer.servers.keys().map(|name| name.as_str().to_owned()).collect();
            let warnings: Vec<_> = layer.warnings.into_iter().map(|warning| warning.message).collect();
            (names.join(","), warnings.join(","))
        };
        let vscode = r#"{"servers":{"a":{"command":"c"}}}"#;
        let both = r#"{"servers":{"a":{"command":"c"}},"mcpServers":{"b":{"command":"c"}}}"#;
        let ignored = "servers is not looked at, because mcpServers is there";
        let sought = "no servers here: the key mcpServers was looked for";
        for scope in [Scope::Project, Scope::Config] {
            assert_eq!(names(scope, vscode), ("a".into(), String::new()));
            assert_eq!(names(scope, both), ("b".into(), ignored.into()));
            assert_eq!(names(scope, r#"{"mcp_servers":{}}"#), (String::new(), sought.into()));
            assert_eq!(names(scope, "{}"), (String::new(), String::new()));
        }
        assert_eq!(names(Scope::User, vscode), (String::new(), String::new()));
    }

    #[test]
    fn a_server_command_is_never_run_and_told() {
        let layer = read(r#"{"mcp":{"serverCommand":"node x.js"}}"#).unwrap();
        assert!(layer.servers.is_empty());
        assert!(layer.warnings[0].message.contains("never run here"));
    }
}
