//! Decides what references in an entry's texts mean: `$NAME`, `${NAME}`, `${NAME:-default}`, `$$` and a leading `~/`.

use std::collections::BTreeMap;
use std::path::Path;

/// The variables that references see.
#[derive(Clone, Default)]
pub struct Variables(BTreeMap<String, String>);

/// Names that qwen-code never expands.
const NEVER: [&str; 2] = ["SESSION_ID", "QWEN_CODE_SESSION_ID"];

impl Variables {
    /// `environment`, with the gaps filled by `files`, the earlier before the later.
    pub fn new(
        environment: &BTreeMap<String, String>,
        files: impl IntoIterator<Item = BTreeMap<String, String>>,
    ) -> Self {
        let mut all = environment.clone();
        for (name, value) in files.into_iter().flatten() {
            all.entry(name).or_insert(value);
        }
        all.retain(|name, _| !NEVER.contains(&name.as_str()));
        Variables(all)
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// Why a text cannot be expanded. Names variables, never values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpandError {
    #[error("the variable {0} is not set; set it, or write ${{{0}:-default}}")]
    Unset(String),
    #[error("a reference is malformed; write ${{NAME}}, ${{NAME:-default}} or $$ for a dollar sign")]
    Malformed,
    #[error("~/ cannot be expanded: HOME is not set")]
    NoHome,
}

/// The deepest nesting of defaults in defaults.
const MAX_DEPTH: usize = 16;

/// Expands the references in `text`. A bare `$NAME` that is not set stays as it is.
///
/// # Errors
/// When a `${NAME}` without default is not set, or a `${` is malformed.
pub fn expand(text: &str, variables: &Variables, home: Option<&Path>) -> Result<String, ExpandError> {
    let (mut out, rest) = match text.strip_prefix("~/") {
        Some(rest) => (format!("{}/", home.ok_or(ExpandError::NoHome)?.display()), rest),
        None => (String::with_capacity(text.len()), text),
    };
    references(rest, variables, MAX_DEPTH, &mut out)?;
    Ok(out)
}

fn references(
    mut text: &str,
    variables: &Variables,
    depth: usize,
    out: &mut String,
) -> Result<(), ExpandError> {
    while let Some(at) = text.find('$') {
        out.push_str(&text[..at]);
        let rest = &text[at + 1..];
        text = if let Some(rest) = rest.strip_prefix('$') {
            out.push('$');
            rest
        } else if let Some(rest) = rest.strip_prefix('{') {
            let end = closing(rest).ok_or(ExpandError::Malformed)?;
            braced(&rest[..end], variables, depth, out)?;
            &rest[end + 1..]
        } else {
            let name = name_at_start(rest);
            match variables.get(name) {
                Some(value) => out.push_str(value),
                None => out.extend(["$", name]),
            }
            &rest[name.len()..]
        };
    }
    out.push_str(text);
    Ok(())
}

/// What stands between the braces of one reference.
fn braced(inner: &str, variables: &Variables, depth: usize, out: &mut String) -> Result<(), ExpandError> {
    let name = name_at_start(inner);
    if name.is_empty() || depth == 0 {
        return Err(ExpandError::Malformed);
    }
    match (inner[name.len()..].strip_prefix(":-"), variables.get(name)) {
        (None, _) if inner.len() > name.len() => Err(ExpandError::Malformed),
        (None, None) => Err(ExpandError::Unset(name.to_owned())),
        (Some(default), None | Some("")) => references(default, variables, depth - 1, out),
        (Some(_) | None, Some(value)) => {
            out.push_str(value);
            Ok(())
        }
    }
}

/// Where the brace that was opened before `text` is closed.
fn closing(text: &str) -> Option<usize> {
    let mut open = 0_usize;
    let mut previous = ' ';
    for (at, c) in text.char_indices() {
        match c {
            '{' if previous == '$' => open += 1,
            '}' if open == 0 => return Some(at),
            '}' => open -= 1,
            _ => {}
        }
        previous = c;
    }
    None
}

fn name_at_start(text: &str) -> &str {
    let word =
        |(i, c): &(usize, char)| c.is_ascii_alphabetic() || *c == '_' || (*i > 0 && c.is_ascii_digit());
    let len = text.char_indices().take_while(word).map(|(i, c)| i + c.len_utf8()).last().unwrap_or(0);
    &text[..len]
}

/// Expands as qwen-code does before it hashes an entry: `$NAME` and `${NAME}`, no escape and no default; what is not
/// set stays as it is.
pub fn expand_as_qwen_code(text: &str, variables: &Variables) -> String {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        let bare = &after[..after.find(|c| !word(c)).unwrap_or(after.len())];
        let braced = after.strip_prefix('{').and_then(|inner| inner.split_once('}')).map(|(name, _)| name);
        let (name, len) = match (bare, braced) {
            ("", Some(name)) if !name.is_empty() => (name, name.len() + 2),
            (bare, _) => (bare, bare.len()),
        };
        match variables.get(name) {
            Some(value) => out.push_str(value),
            None => out.push_str(&rest[at..=at + len]),
        }
        rest = &after[len..];
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables() -> Variables {
        let environment = [("A", "x"), ("EMPTY", ""), ("SESSION_ID", "never"), ("D", "$A")];
        Variables::new(&environment.map(|(k, v)| (k.to_owned(), v.to_owned())).into(), [])
    }

    #[test]
    fn each_form_of_reference_means_one_thing() {
        let unset = |name: &str| Err(ExpandError::Unset(name.to_owned()));
        for (text, expected) in [
            ("$A/${A}", Ok("x/x".to_owned())),
            ("$UNSET", Ok("$UNSET".to_owned())),
            ("${UNSET}", unset("UNSET")),
            ("${SESSION_ID}", unset("SESSION_ID")),
            ("${UNSET:-d}${EMPTY:-e}${A:-f}", Ok("dex".to_owned())),
            ("${UNSET:-}|${EMPTY}", Ok("|".to_owned())),
            ("${UNSET:-${A}}", Ok("x".to_owned())),
            ("${UNSET:-a{b}c", Ok("a{bc".to_owned())),
            ("$${A} $$A $$", Ok("${A} $A $".to_owned())),
            ("5$ $1 a$", Ok("5$ $1 a$".to_owned())),
            ("$D", Ok("$A".to_owned())),
            ("${}", Err(ExpandError::Malformed)),
            ("${A", Err(ExpandError::Malformed)),
            ("${env:A}", Err(ExpandError::Malformed)),
            ("${A-b}", Err(ExpandError::Malformed)),
            ("~/bin ~/", Ok("/home/me/bin ~/".to_owned())),
            ("a~/b", Ok("a~/b".to_owned())),
        ] {
            assert_eq!(expand(text, &variables(), Some(Path::new("/home/me"))), expected, "{text}");
        }
        assert_eq!(expand("~/x", &variables(), None), Err(ExpandError::NoHome));
    }

    #[test]
    fn defaults_nested_without_end_are_refused() {
        let text = format!("{}x{}", "${U:-".repeat(1000), "}".repeat(1000));
        assert_eq!(expand(&text, &variables(), None), Err(ExpandError::Malformed));
    }

    #[test]
    fn the_hashed_form_leaves_what_qwen_code_does_not_know() {
        for (text, expected) in [
            ("$A ${A} $$A", "x x $x"),
            ("${A:-d} $U ${U} ~/ $", "${A:-d} $U ${U} ~/ $"),
            ("$1 ${} ${", "$1 ${} ${"),
            ("${EMPTY}|", "|"),
        ] {
            assert_eq!(expand_as_qwen_code(text, &variables()), expected, "{text}");
        }
    }

    #[test]
    fn files_fill_gaps_in_their_order_and_override_nothing() {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let all = Variables::new(
            &map(&[("A", "env")]),
            [map(&[("A", "1"), ("B", "1")]), map(&[("B", "2"), ("C", "2")])],
        );
        assert_eq!((all.get("A"), all.get("B"), all.get("C")), (Some("env"), Some("1"), Some("2")));
    }
}
