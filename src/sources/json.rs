//! Decides what JSON is accepted: comments and trailing commas, nothing looser, and no key twice.

use std::cell::Cell;

use jsonc_parser::ast::{ObjectPropName, Value as Ast};
use jsonc_parser::common::Ranged;
use jsonc_parser::{CollectOptions, ParseOptions, parse_to_ast};

use super::node::{Fault, Map, Node, Place, Value};

const OPTIONS: ParseOptions = ParseOptions {
    allow_comments: true,
    allow_loose_object_property_names: false,
    allow_trailing_commas: true,
    allow_missing_commas: false,
    allow_single_quoted_strings: false,
    allow_hexadecimal_numbers: false,
    allow_unary_plus_numbers: false,
    allow_bare_decimal_point_numbers: false,
    allow_non_finite_numbers: false,
    allow_extended_string_escapes: false,
};

/// Reads `text`.
///
/// # Errors
/// When it is not JSON, or a map has a key twice: which of the two counts would differ between readers.
pub fn parse(text: &str) -> Result<Node, Fault> {
    let lines = Lines::new(text);
    let parsed = parse_to_ast(text, &CollectOptions::default(), &OPTIONS).map_err(|error| {
        Fault::at(lines.place(error.range().start), format!("not JSON: {}", error.kind()))
    })?;
    match parsed.value {
        Some(value) => node(value, &lines),
        None => Err(Fault::whole("it holds no value; write {} to ask for nothing")),
    }
}

/// Where a comma stands that qwen-code does not read: it takes the whole file for broken then.
pub fn trailing_comma(text: &str) -> Option<Fault> {
    let options = ParseOptions { allow_trailing_commas: false, ..OPTIONS };
    let error = parse_to_ast(text, &CollectOptions::default(), &options).err()?;
    let message = "a comma stands before the closing bracket: qwen-code cannot read this file and replaces it with {} \
                   when it starts";
    Some(Fault::at(Lines::new(text).place(error.range().start), message))
}

fn node(value: Ast<'_>, lines: &Lines<'_>) -> Result<Node, Fault> {
    let at = lines.place(value.start());
    let value = match value {
        Ast::NullKeyword(_) => Value::Null,
        Ast::BooleanLit(lit) => Value::Bool(lit.value),
        Ast::NumberLit(lit) => Value::Number(lit.value.into()),
        Ast::StringLit(lit) => Value::Text(lit.value.into_owned()),
        Ast::Array(array) => Value::List(
            array.elements.into_iter().map(|element| node(element, lines)).collect::<Result<_, _>>()?,
        ),
        Ast::Object(object) => {
            let mut map = Map::with_capacity(object.properties.len());
            for property in object.properties {
                let at = lines.place(property.start());
                let key = match property.name {
                    ObjectPropName::String(lit) => lit.value.into_owned(),
                    ObjectPropName::Word(lit) => lit.value.to_owned(),
                };
                let member = node(property.value, lines)?;
                if map.contains_key(&key) {
                    return Err(Fault::at(at, format!("the key {key:?} stands here a second time")));
                }
                map.insert(key, member);
            }
            Value::Map(map)
        }
    };
    Ok(Node { at, value })
}

/// Finds places without counting from the start: neither a file of many lines nor one long line is counted twice.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
    /// The offset that was last asked for, and its place: the next one mostly comes soon after it.
    last: Cell<(usize, Place)>,
}

impl<'a> Lines<'a> {
    fn new(text: &'a str) -> Self {
        let starts = std::iter::once(0).chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Lines { text, starts, last: Cell::new((0, (1, 1))) }
    }

    fn place(&self, offset: usize) -> Place {
        let line = self.starts.partition_point(|start| *start <= offset);
        let (from, column) = match self.last.get() {
            (last, (same, column)) if same == line && last <= offset => (last, column),
            _ => (self.starts[line - 1], 1),
        };
        let place = (line, column + self.text[from..offset].chars().count());
        self.last.set((offset, place));
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_trailing_commas_pass_and_places_are_kept() {
        let root = parse("// who\n{ \"a\": [1.50, /* two */ true,],\n  \"ü\": \"x\", \"b\": null }").unwrap();
        let map = root.map("").unwrap();
        assert_eq!((root.at, map["a"].at, map["b"].at), ((2, 1), (2, 8), (3, 18)));
        assert!(matches!(&map["a"].list("a").unwrap()[0].value, Value::Number(text) if &**text == "1.50"));
    }

    #[test]
    fn anything_looser_is_bad_with_its_place() {
        for (text, at) in [
            ("{\"a\": 1", Some((1, 1))),
            ("{\n  a: 1}", Some((2, 3))),
            ("{\"a\": 'x'}", Some((1, 7))),
            ("{\"a\": 0x10}", Some((1, 7))),
            ("{\"a\": 1 \"b\": 2}", Some((1, 8))),
            ("{\"a\": NaN}", Some((1, 7))),
            ("{}{}", Some((1, 3))),
            ("// nothing", None),
        ] {
            assert_eq!(parse(text).unwrap_err().at, at, "{text}");
        }
        assert!(parse(&"[".repeat(200_000)).is_err());
    }

    #[test]
    fn a_long_line_and_characters_of_several_bytes_are_counted_once_and_right() {
        let root = parse("[\"ü\", {\"数\": 1, \"b\": [2]},\n 3]").unwrap();
        let list = root.list("").unwrap();
        let map = list[1].map("").unwrap();
        assert_eq!((list[1].at, map["数"].at, map["b"].at, list[2].at), ((1, 7), (1, 13), (1, 21), (2, 2)));
    }

    #[test]
    fn a_key_that_stands_twice_is_named_with_its_second_place() {
        let fault = parse("{\"a\": {\"k\": 1,\n \"k\": 2}}").unwrap_err();
        assert_eq!(fault, Fault::at((2, 2), "the key \"k\" stands here a second time"));
    }

    #[test]
    fn errors_hold_no_value_of_the_file() {
        for text in ["{\"a\": \"canary", "{\"a\": canary}", "{\"a\": 12canary}", "{\"a\": \"\\qcanary\"}"] {
            assert!(!parse(text).unwrap_err().message.contains("canary"), "{text}");
        }
    }
}
