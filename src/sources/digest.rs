//! Decides the digest that an approval is bound to: qwen-code's, to the byte, so that one decision serves both programs.

use sha2::{Digest, Sha256};

use super::expand::{Variables, expand_as_qwen_code};
use super::node::{Fault, Map, Node, Value};
use crate::model::ApprovalDigest;

/// Keys of an entry that are not hashed.
const UNHASHED: [&str; 3] = ["scope", "extensionName", "description"];

/// Which of qwen-code's forms an entry has when it is hashed.
#[derive(Clone, Copy)]
pub enum Form<'a> {
    /// Of a settings file: after its own expansion.
    Settings(&'a Variables),
    /// Of a `.mcp.json`: as it stands, with the `type` of Claude's shape taken out.
    McpJson,
}

/// The digest of `entry`.
///
/// # Errors
/// When the entry has no form that every reader agrees on: a `__proto__` key, or a number that ECMAScript prints
/// otherwise than the file does.
pub fn digest(entry: &Map, form: Form<'_>, field: &str) -> Result<ApprovalDigest, Fault> {
    let members: Vec<(&str, &Node)> = entry
        .iter()
        .map(|(key, node)| (key.as_str(), node))
        .filter(|(key, _)| !UNHASHED.contains(key))
        .collect();
    let members = match form {
        Form::Settings(_) => members,
        Form::McpJson => without_type(members),
    };
    let mut out = String::new();
    map(members, form, field, &mut out)?;
    Ok(ApprovalDigest::new(Sha256::digest(out.as_bytes()).into()))
}

/// What `type` says is put into the key of the URL.
fn without_type<'a>(members: Vec<(&'a str, &'a Node)>) -> Vec<(&'a str, &'a Node)> {
    let get = |key: &str| members.iter().find(|(name, _)| *name == key).map(|(_, node)| &node.value);
    let is = |node: Option<&Value>, text: &str| matches!(node, Some(Value::Text(found)) if found == text);
    let kind = get("type");
    let has_other = ["command", "httpUrl", "tcp"].iter().any(|key| get(key).is_some());
    let http = is(kind, "http") && !has_other && matches!(get("url"), Some(Value::Text(_)));
    if is(kind, "sdk") {
        return members;
    }
    let rename = |key| if http && key == "url" { "httpUrl" } else { key };
    members.iter().filter(|(key, _)| *key != "type").map(|(key, node)| (rename(*key), *node)).collect()
}

fn value(node: &Node, form: Form<'_>, field: &str, out: &mut String) -> Result<(), Fault> {
    match &node.value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(text) => {
            if !text.parse().is_ok_and(|number: f64| ryu_js::Buffer::new().format(number) == &**text) {
                let message =
                    format!("{field}: write the number as ECMAScript prints it; readers differ on this form");
                return Err(Fault::at(node.at, message));
            }
            out.push_str(text);
        }
        Value::Text(text) => match form {
            Form::Settings(variables) => string(&expand_as_qwen_code(text, variables), out),
            Form::McpJson => string(text, out),
        },
        Value::List(list) => {
            out.push('[');
            for (i, element) in list.iter().enumerate() {
                out.push_str(if i > 0 { "," } else { "" });
                value(element, form, &format!("{field}[{i}]"), out)?;
            }
            out.push(']');
        }
        Value::Map(members) => {
            map(members.iter().map(|(key, node)| (key.as_str(), node)).collect(), form, field, out)?;
        }
    }
    Ok(())
}

fn map(mut members: Vec<(&str, &Node)>, form: Form<'_>, field: &str, out: &mut String) -> Result<(), Fault> {
    if let Some((_, node)) = members.iter().find(|(key, _)| *key == "__proto__") {
        return Err(Fault::at(node.at, format!("{field}: the key __proto__ is not allowed")));
    }
    // ECMAScript's order of an object filled in sorted order: integers by value, then the rest by UTF-16.
    members.sort_by(|(a, _), (b, _)| {
        let (a_index, b_index) = (index(a), index(b));
        (a_index.is_none(), a_index)
            .cmp(&(b_index.is_none(), b_index))
            .then_with(|| a.encode_utf16().cmp(b.encode_utf16()))
    });
    out.push('{');
    for (i, (key, node)) in members.into_iter().enumerate() {
        out.push_str(if i > 0 { "," } else { "" });
        string(key, out);
        out.push(':');
        value(node, form, &format!("{field}.{key}"), out)?;
    }
    out.push('}');
    Ok(())
}

/// The array index that `key` is for ECMAScript, if it is one.
fn index(key: &str) -> Option<u32> {
    let index = key.parse::<u32>().ok()?;
    (index < u32::MAX && index.to_string() == key).then_some(index)
}

fn string(text: &str, out: &mut String) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

#[cfg(test)]
mod tests {
    use super::super::json;
    use super::*;

    fn hex(text: &str, form: Form<'_>) -> Result<String, Fault> {
        digest(json::parse(text).unwrap().map("").unwrap(), form, "mcpServers.a").map(|d| d.to_hex())
    }

    fn plain(text: &str) -> String {
        hex(text, Form::McpJson).unwrap()
    }

    #[test]
    fn the_digest_is_the_one_that_qwen_code_stores() {
        assert_eq!(
            plain(r#"{"command":"node","args":["/srv/mcp/server.cjs","k1"],"trust":true}"#),
            "988be5cc541b971888029d4623a6959844b5d14db39b2c602f2e441355ea5799"
        );
    }

    #[test]
    fn the_canonical_form_is_ecmascripts() {
        let node = json::parse(
            r#"{"b":1,"10":"é\u2028\u0001\"","a":{"z":null,"y":[true,1.5]},"9":-2,"01":1e21,"\uffff":1,"😀":2}"#,
        );
        let root = node.unwrap();
        let mut out = String::new();
        value(&root, Form::McpJson, "", &mut out).unwrap_err();
        let root = json::parse(
            r#"{"b":1,"10":"é\u2028\u0001\"","a":{"z":null,"y":[true,1.5]},"9":-2,"\uffff":1,"😀":2}"#,
        );
        let mut out = String::new();
        value(&root.unwrap(), Form::McpJson, "", &mut out).unwrap();
        let expected = "{\"9\":-2,\"10\":\"é\u{2028}\\u0001\\\"\",\"a\":{\"y\":[true,1.5],\"z\":null},\"b\":1,\"😀\":2,\"\u{ffff}\":1}";
        assert_eq!(out, expected);
    }

    #[test]
    fn formatting_key_order_and_description_do_not_count_and_everything_else_does() {
        let base = plain(r#"{"command":"a","timeout":5}"#);
        assert_eq!(plain("{ // c\n\"timeout\": 5, \"description\": \"d\", \"command\": \"a\" }"), base);
        assert_ne!(plain(r#"{"command":"a","timeout":6}"#), base);
        assert_ne!(plain(r#"{"command":"a","timeout":5,"args":[]}"#), base);
    }

    #[test]
    fn claudes_shape_is_hashed_as_qwen_code_rewrites_it() {
        assert_eq!(plain(r#"{"type":"http","url":"u"}"#), plain(r#"{"httpUrl":"u"}"#));
        assert_eq!(plain(r#"{"type":"sse","url":"u"}"#), plain(r#"{"url":"u"}"#));
        assert_eq!(plain(r#"{"type":"stdio","command":"c"}"#), plain(r#"{"command":"c"}"#));
        assert_ne!(plain(r#"{"type":"sdk","name":"c"}"#), plain(r#"{"name":"c"}"#));
    }

    #[test]
    fn a_settings_entry_is_hashed_expanded_and_a_project_entry_as_it_stands() {
        let variables = Variables::new(&[("A".to_owned(), "x".to_owned())].into(), []);
        let settings = |text| hex(text, Form::Settings(&variables)).unwrap();
        assert_eq!(settings(r#"{"command":"${A}"}"#), plain(r#"{"command":"x"}"#));
        assert_ne!(plain(r#"{"command":"${A}"}"#), plain(r#"{"command":"x"}"#));
    }

    #[test]
    fn what_readers_could_disagree_on_is_refused_with_its_place() {
        for text in [
            r#"{"__proto__":{}}"#,
            r#"{"a":1.0}"#,
            r#"{"a":[9007199254740993]}"#,
            r#"{"a":1e400}"#,
            r#"{"a":-0}"#,
        ] {
            assert!(hex(text, Form::McpJson).unwrap_err().at.is_some(), "{text}");
        }
    }
}
