//! Decides what YAML is accepted: one document, no key twice, no more than a budget of nodes.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_yaml::{Error, Spanned};

use super::node::{Fault, Map, Node, Place, Value};

/// Reads `text`.
///
/// # Errors
/// When it is not YAML, holds several documents, or a map has a key twice.
pub fn parse(text: &str) -> Result<Node, Fault> {
    // A snippet of the file would put its values, and so secrets, into logs.
    let options = serde_yaml::options! { with_snippet: false };
    serde_yaml::from_str_with_options::<Node>(text, options).map_err(|error| fault(&error))
}

fn fault(error: &Error) -> Fault {
    let mut innermost = error;
    while let Error::AliasError { error, .. } = innermost {
        innermost = error;
    }
    // Texts of the other kinds can quote the file.
    let message = if let Error::DuplicateMappingKey { key, .. } = innermost {
        let key = key.as_deref().map(|key| format!("{key:?} ")).unwrap_or_default();
        format!("the key {key}stands here a second time")
    } else if matches!(innermost, Error::MultipleDocuments { .. }) {
        "more than one document in one file".to_owned()
    } else if matches!(
        innermost,
        Error::Budget { .. }
            | Error::AliasReplayLimitExceeded { .. }
            | Error::AliasExpansionLimitExceeded { .. }
            | Error::AliasReplayCounterOverflow { .. }
            | Error::AliasReplayStackDepthExceeded { .. }
    ) {
        "not YAML: larger or deeper than is allowed".to_owned()
    } else if matches!(innermost, Error::Eof { .. }) {
        "it holds no value; write {} to ask for nothing".to_owned()
    } else {
        "not YAML: the structure is wrong here or just before".to_owned()
    };
    Fault { at: error.location().and_then(place), message }
}

fn place(location: serde_yaml::Location) -> Option<Place> {
    let (line, column) = (usize::try_from(location.line()).ok()?, usize::try_from(location.column()).ok()?);
    (line > 0).then_some((line, column.max(1)))
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Node { at: place(spanned.referenced).unwrap_or((1, 1)), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.to_string().into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.to_string().into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Number(ryu_js::Buffer::new().format(value).into()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_string<E: de::Error>(self, value: String) -> Result<Value, E> {
        Ok(Value::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = seq.next_element()? {
            list.push(node);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some((key, node)) = access.next_entry()? {
            map.insert(key, node);
        }
        Ok(Value::Map(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_kinds_and_places() {
        let root = parse("# who\na:\n  - 1\n  - x\nb: {c: true, d: ~}\ne: \"8080\"\n").unwrap();
        let map = root.map("").unwrap();
        let list = map["a"].list("a").unwrap();
        assert!(matches!(&list[0].value, Value::Number(text) if &**text == "1"));
        assert_eq!((list[1].text("a").unwrap(), list[1].at), ("x", (4, 5)));
        assert!(map["b"].map("b").unwrap()["c"].bool("c").unwrap());
        assert!(map["b"].map("b").unwrap()["d"].is_null());
        assert_eq!(map["e"].text("e").unwrap(), "8080");
    }

    #[test]
    fn line_ends_of_either_kind_mean_the_same() {
        let root = parse("a:\r\n  b: x\r\n").unwrap();
        assert_eq!(root.map("").unwrap()["a"].map("a").unwrap()["b"].text("b").unwrap(), "x");
        assert_eq!(parse("a: 1\r\na: 2\r\n").unwrap_err().at, Some((2, 1)));
    }

    #[test]
    fn what_is_bad_names_its_place_and_no_value() {
        for (text, line) in [
            ("a: 1\nk: 1\nk: 2\n", 3),
            ("a: 1\n---\nb: 2\n", 3),
            ("a: [1, 2\nb: canary\n", 2),
            ("a: *canary\n", 1),
        ] {
            let fault = parse(text).unwrap_err();
            assert_eq!(fault.at.map(|at| at.0), Some(line), "{text} {fault:?}");
            assert!(!fault.message.contains("canary"), "{text}");
        }
    }

    #[test]
    fn a_nesting_bomb_is_refused_by_its_budget() {
        let mut text = "a: &a [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for (name, below) in "bcdefghij".chars().zip("abcdefghi".chars()) {
            text += &format!("{name}: &{name} [{}]\n", vec![format!("*{below}"); 10].join(","));
        }
        assert!(parse(&text).unwrap_err().message.contains("larger or deeper"));
    }
}
