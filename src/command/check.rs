//! Decides what is told of files that are checked: every error and every likely slip, with its place, and no value.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use annotate_snippets::{AnnotationKind, Level, Origin, Renderer, Snippet};
use serde::Serialize;

use crate::controller::snapshot::{LayerReading, Reading, Readings, SourceError};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    Error,
    Warning,
}

/// One thing to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub severity: Severity,
    pub path: PathBuf,
    pub line: Option<usize>,
    pub column: Option<usize>,
    pub message: String,
}

impl Finding {
    fn new(severity: Severity, error: &SourceError) -> Self {
        let SourceError { path, at, message } = error.clone();
        Finding { severity, path, line: at.map(|at| at.0), column: at.map(|at| at.1), message }
    }
}

/// Everything there is to tell of all sources, by file and place.
pub fn findings(readings: &Readings) -> Vec<Finding> {
    let mut out: Vec<Finding> = readings.layers.iter().flat_map(of_layer).collect();
    let stores = [bad(&readings.approvals.1), bad(&readings.trust.1)];
    out.extend(stores.into_iter().flatten().map(|error| Finding::new(Severity::Error, error)));
    out.sort_by(|a, b| (&a.path, a.line, a.column, a.severity).cmp(&(&b.path, b.line, b.column, b.severity)));
    out
}

fn bad<T>(reading: &Reading<T>) -> Option<&SourceError> {
    match reading {
        Reading::Bad(error) => Some(error),
        Reading::Absent | Reading::Good(_) => None,
    }
}

/// What there is to tell of one document.
pub fn of_layer(layer: &LayerReading) -> Vec<Finding> {
    match &layer.reading {
        Reading::Bad(error) => vec![Finding::new(Severity::Error, error)],
        Reading::Absent if layer.explicit => {
            let message = "no such file".to_owned();
            vec![Finding::new(Severity::Error, &SourceError { path: layer.path.clone(), at: None, message })]
        }
        Reading::Absent => Vec::new(),
        Reading::Good(content) => {
            let unusable = content.servers.values().filter_map(|declared| declared.spec.as_ref().err());
            let errors = unusable.map(|unusable| Finding::new(Severity::Error, &unusable.error));
            errors.chain(content.warnings.iter().map(|w| Finding::new(Severity::Warning, w))).collect()
        }
    }
}

/// Whether the files may be used as they are.
pub fn passes(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.severity == Severity::Warning)
}

/// The findings for a person, each with the line it is about. `texts` are the files; values in them are masked.
pub fn render(findings: &[Finding], texts: &BTreeMap<PathBuf, String>, colour: bool) -> String {
    let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
    findings.iter().map(|finding| format!("{}\n\n", renderer.render(&[group(finding, texts)]))).collect()
}

fn group<'a>(finding: &'a Finding, texts: &BTreeMap<PathBuf, String>) -> annotate_snippets::Group<'a> {
    let level = match finding.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let title = level.primary_title(finding.message.as_str());
    let path = finding.path.display().to_string();
    let source = texts.get(&finding.path).and_then(|text| text.lines().nth(finding.line?.checked_sub(1)?));
    match (source, finding.line, finding.column) {
        (Some(source), Some(line), Some(column)) => {
            let masked = mask(source, is_yaml(&finding.path));
            let start = masked.char_indices().nth(column - 1).map_or(masked.len(), |(at, _)| at);
            let end = masked[start..].chars().next().map_or(start, |c| start + c.len_utf8());
            let snippet = Snippet::source(masked).line_start(line).path(path);
            title.element(snippet.annotation(AnnotationKind::Primary.span(start..end)))
        }
        _ => title.element(Origin::path(path)),
    }
}

fn is_yaml(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}

/// A line in which every value is stars, character by character, so that places stay. Keys and brackets are kept.
fn mask(line: &str, yaml: bool) -> String {
    if yaml { mask_yaml(line) } else { mask_json(line) }
}

fn mask_json(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(c) = rest.chars().next() {
        if c == '"' {
            let end = string_end(rest);
            let (text, after) = rest.split_at(end);
            let is_key = text.len() > 1 && text.ends_with('"') && after.trim_start().starts_with(':');
            out.push_str(&if is_key { text.to_owned() } else { stars(text, &['"']) });
            rest = after;
        } else {
            out.push_str(&stars(c.encode_utf8(&mut [0; 4]), &['{', '}', '[', ']', ',', ':', ' ', '\t']));
            rest = &rest[c.len_utf8()..];
        }
    }
    out
}

/// Where the string that begins `text` ends, its quote included; the line's end when it is not closed.
fn string_end(text: &str) -> usize {
    let mut escaped = false;
    text.char_indices()
        .skip(1)
        .find_map(|(at, c)| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends.then_some(at + 1)
        })
        .unwrap_or(text.len())
}

/// Only the key that begins the line is kept.
fn mask_yaml(line: &str) -> String {
    let indent = line.len() - line.trim_start_matches([' ', '-', '\t']).len();
    let body = &line[indent..];
    let word = |c: char| c.is_alphanumeric() || "_-.\"'".contains(c);
    let key = body.find(|c| !word(c)).unwrap_or(body.len());
    let is_key = body[key..].starts_with(':') && body[key + 1..].chars().next().is_none_or(|c| c == ' ');
    let kept = if is_key { indent + key + 1 } else { indent };
    format!("{}{}", &line[..kept], stars(&line[kept..], &['{', '}', '[', ']', ',', ' ', '\t']))
}

fn stars(text: &str, kept: &[char]) -> String {
    text.chars().map(|c| if kept.contains(&c) { c } else { '*' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_masked_and_keys_and_places_kept() {
        for (line, yaml, masked) in [
            (
                r#"  "env": { "KEY": "canary", "N": 42 }, // canary"#,
                false,
                r#"  "env": { "KEY": "******", "N": ** }, ** ******"#,
            ),
            (r#"["canary\" \"x", true]"#, false, r#"["*******"**"*", ****]"#),
            (r#""open: canary"#, false, r#""************"#),
            ("    KEY: canary value", true, "    KEY: ****** *****"),
            ("  - canary", true, "  - ******"),
            ("  url: http://canary:80/x", true, "  url: ******************"),
            ("canary: canary:x", true, "canary: ********"),
            ("http://canary", true, "*************"),
        ] {
            assert_eq!(mask(line, yaml), masked, "{line}");
        }
    }

    #[test]
    fn a_finding_shows_its_line_with_the_place_marked() {
        let error = SourceError { path: "/s.json".into(), at: Some((2, 11)), message: "args: a list".into() };
        let texts = [(PathBuf::from("/s.json"), "{\n  \"args\": \"canary\"\n}".to_owned())].into();
        let text = render(&[Finding::new(Severity::Error, &error)], &texts, false);
        assert!(text.starts_with("error: args: a list\n"), "{text}");
        assert!(text.contains("/s.json:2:11") && text.contains("\"args\": \"******\""), "{text}");
        assert!(!text.contains("canary"));
    }
}
