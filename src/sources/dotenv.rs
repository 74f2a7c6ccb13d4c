//! Decides what a `.env` file means: the grammar of the Node package dotenv, which qwen-code reads it with.

use std::collections::BTreeMap;

/// The variables that `text` sets. A line that sets none is passed over; of a name that is set twice the last counts.
pub fn parse(text: &str) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let line = &rest[..rest.find('\n').unwrap_or(rest.len())];
        let (consumed, pair) = match assignment(line) {
            Some((name, at)) => {
                let (value, len) = value(&rest[at..]);
                (at + len, Some((name.to_owned(), value)))
            }
            None => (line.len(), None),
        };
        out.extend(pair);
        // What follows a value on its line is a comment.
        rest = rest[consumed..].split_once('\n').map_or("", |(_, after)| after);
    }
    out
}

/// The name that `line` sets and where its value begins.
fn assignment(line: &str) -> Option<(&str, usize)> {
    let start = line.trim_start();
    let start = match start.strip_prefix("export") {
        Some(rest) if rest.starts_with([' ', '\t']) => rest.trim_start(),
        Some(_) | None => start,
    };
    let len = start.find(|c: char| !(c.is_ascii_alphanumeric() || "_.-".contains(c))).unwrap_or(start.len());
    let (name, rest) = start.split_at(len);
    let rest = rest.trim_start();
    (!name.is_empty() && rest.starts_with('=')).then(|| (name, line.len() - rest.len() + 1))
}

/// The value at the start of `text`, and how many bytes it takes. A quoted one may span lines.
fn value(text: &str) -> (String, usize) {
    let blank = text.len() - text.trim_start_matches([' ', '\t']).len();
    let text = &text[blank..];
    if let Some(quote) = text.chars().next().filter(|c| "'\"`".contains(*c))
        && let Some(end) = closing(&text[1..], quote)
    {
        let inner = &text[1..=end];
        let value =
            if quote == '"' { inner.replace("\\n", "\n").replace("\\r", "\r") } else { inner.to_owned() };
        return (value, blank + end + 2);
    }
    let line = &text[..text.find('\n').unwrap_or(text.len())];
    let value = &line[..line.find('#').unwrap_or(line.len())];
    (value.trim().to_owned(), blank + line.len())
}

fn closing(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let found = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        found.then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_of_line_sets_what_dotenv_would_set() {
        let text = "# c\nA=1\nexport B = two words # c\nC='a # b' # c\nD=\"x\\ny\"\n\nE=\nnonsense\nF=`m\nn`\nG=a\\'b\nA=2\r\nH=\"open\n";
        let expected = [
            ("A", "2"),
            ("B", "two words"),
            ("C", "a # b"),
            ("D", "x\ny"),
            ("E", ""),
            ("F", "m\nn"),
            ("G", "a\\'b"),
            ("H", "\"open"),
        ];
        assert_eq!(parse(text), expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    }
}
