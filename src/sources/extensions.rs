//! Decides which extensions of qwen-code add servers here, and what their own variables mean.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::node::{Fault, Map, Node, Value};
use crate::model::Root;

/// The file in an extension's directory that says what it adds.
pub const FILE: &str = "qwen-extension.json";

/// The file that says which extensions are disabled where.
pub const ENABLEMENT: &str = "extension-enablement.json";

/// The files of the extensions in `directory`, in byte order; none when there is no such directory.
///
/// # Errors
/// When the directory cannot be listed.
pub fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let hidden = path.file_name().is_none_or(|name| name.as_bytes().starts_with(b"."));
        if !hidden && path.is_dir() {
            files.push(path.join(FILE));
        }
    }
    files.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    Ok(files)
}

/// Whether the extension `name` is enabled in `root`: by the last rule that matches, and where none does.
///
/// # Errors
/// When the rules cannot be understood.
pub fn is_enabled(enablement: &Node, name: &str, root: &Root) -> Result<bool, Fault> {
    let Some(rules) = enablement.map("the enablement file")?.get(name) else { return Ok(true) };
    let Some(overrides) = rules.map(name)?.get("overrides") else { return Ok(true) };
    let spellings: Vec<String> = std::iter::once(root.path().to_owned())
        .chain(fs::canonicalize(root.path()))
        .map(|path| format!("{}/", path.display()).replace("//", "/"))
        .collect();
    let mut enabled = true;
    for rule in overrides.texts(&format!("{name}.overrides"))? {
        let (disables, pattern) = match rule.strip_prefix('!') {
            Some(pattern) => (true, pattern),
            None => (false, rule.as_str()),
        };
        if spellings.iter().any(|path| matches(pattern, path)) {
            enabled = !disables;
        }
    }
    Ok(enabled)
}

/// A rule is a directory with its slash; a `*` after it covers all below.
fn matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(base) => path.starts_with(base) || path == base.trim_end_matches('/'),
        None => path == pattern,
    }
}

/// The extension's own name.
///
/// # Errors
/// When its file has none.
pub fn name(root: &Node) -> Result<&str, Fault> {
    match root.map("the document")?.get("name") {
        Some(node) => node.text("name"),
        None => Err(Fault::at(root.at, "name: text is needed, and there is none")),
    }
}

/// `node` with the variables that only extensions know replaced; all others stay for what comes after.
pub fn hydrate(node: &Node, extension: &Path, root: &Root) -> Node {
    let value = match &node.value {
        Value::Text(text) => {
            let mut text = text.clone();
            for (variable, value) in [
                ("${extensionPath}", extension.display().to_string()),
                ("${CLAUDE_PLUGIN_ROOT}", extension.display().to_string()),
                ("${workspacePath}", root.to_string()),
                ("${/}", "/".to_owned()),
                ("${pathSeparator}", "/".to_owned()),
            ] {
                text = text.replace(variable, &value);
            }
            Value::Text(text)
        }
        Value::List(list) => Value::List(list.iter().map(|node| hydrate(node, extension, root)).collect()),
        Value::Map(map) => Value::Map(
            map.iter().map(|(key, node)| (key.clone(), hydrate(node, extension, root))).collect::<Map>(),
        ),
        Value::Null | Value::Bool(_) | Value::Number(_) => node.value.clone(),
    };
    Node { at: node.at, value }
}

#[cfg(test)]
mod tests {
    use super::super::json;
    use super::*;

    #[test]
    fn the_last_rule_that_matches_the_workspace_decides() {
        let root = Root::new("/".as_ref(), "/none/home/w".as_ref());
        for (overrides, enabled) in [
            ("[]", true),
            (r#"["!/none/home/w/"]"#, false),
            (r#"["!/none/home/"]"#, true),
            (r#"["!/none/home/*"]"#, false),
            (r#"["!/none/home/*", "/none/home/w/"]"#, true),
            (r#"["/none/home/w/", "!/none/home/*"]"#, false),
            (r#"["!/none/home/w/*"]"#, false),
            (r#"["!/none/other/*"]"#, true),
        ] {
            let text = format!("{{\"x\": {{\"overrides\": {overrides}}}}}");
            assert_eq!(is_enabled(&json::parse(&text).unwrap(), "x", &root), Ok(enabled), "{overrides}");
            assert_eq!(is_enabled(&json::parse(&text).unwrap(), "y", &root), Ok(true));
        }
        for text in ["[]", r#"{"x": 1}"#, r#"{"x": {"overrides": "!/"}}"#] {
            assert!(is_enabled(&json::parse(text).unwrap(), "x", &root).is_err(), "{text}");
        }
    }

    #[test]
    fn an_extensions_own_variables_are_replaced_and_all_others_left() {
        let node = json::parse(r#"{"a": ["${extensionPath}${/}x", "${HOME} ${workspacePath}"]}"#).unwrap();
        let hydrated = hydrate(&node, Path::new("/e"), &Root::new("/".as_ref(), "/w".as_ref()));
        let texts = hydrated.map("").unwrap()["a"].texts("a").unwrap();
        assert_eq!(texts, ["/e/x", "${HOME} /w"]);
    }
}
