//! Decides what a settings document asks for: its servers, its lists of names, and whether folders need trust.

use std::collections::BTreeMap;

use super::entry::{Surroundings, declare};
use super::node::{Fault, Map, Node};
use crate::controller::snapshot::{Declared, Layer};
use crate::model::ServerName;

/// The layer that a settings document is. Keys of others (themes, models) are not looked at.
///
/// # Errors
/// When something that decides who may connect cannot be understood: a bad list must not mean "allow all".
pub fn layer(root: &Node, around: Surroundings<'_>) -> Result<Layer, Fault> {
    let root = root.map("the document")?;
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
    Ok(Layer {
        servers: servers(root, around)?,
        allowed: list("allowed")?,
        excluded: list("excluded")?.unwrap_or_default(),
        folder_trust,
    })
}

/// The layer that a `.mcp.json` is: servers alone.
///
/// # Errors
/// When it has no map of servers.
pub fn project_layer(root: &Node, around: Surroundings<'_>) -> Result<Layer, Fault> {
    Ok(Layer { servers: servers(root.map("the document")?, around)?, ..Layer::default() })
}

fn servers(root: &Map, around: Surroundings<'_>) -> Result<BTreeMap<ServerName, Declared>, Fault> {
    let mut out = BTreeMap::new();
    let Some(node) = root.get("mcpServers").filter(|node| !node.is_null()) else { return Ok(out) };
    for (key, entry) in node.map("mcpServers")? {
        let name = ServerName::new(key);
        let declared = declare(name.as_str(), entry, around);
        if out.insert(name.clone(), declared).is_some() && !name.as_str().is_empty() {
            let message = format!("mcpServers: the name {:?} stands here a second time", name.as_str());
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
    use crate::model::{Root, Scope};

    fn read(text: &str) -> Result<Layer, Fault> {
        let root = Root::new("/".as_ref(), "/w".as_ref());
        let variables = Variables::default();
        let path = Path::new("/s.json");
        layer(
            &json::parse(text).unwrap(),
            Surroundings { path, scope: Scope::User, root: &root, home: None, variables: &variables },
        )
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
}
