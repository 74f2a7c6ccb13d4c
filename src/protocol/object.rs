//! A JSON object whose members keep their order and their text.

use indexmap::IndexMap;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

/// JSON as its sender wrote it.
pub type RawJson = Box<RawValue>;

/// The members of one object, in order, each as its sender wrote it.
#[derive(Debug, Clone, Default, Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Object(pub IndexMap<String, RawJson>);

impl Object {
    /// Reads one level of `json`.
    ///
    /// # Errors
    /// When `json` is not an object.
    pub fn parse(json: &RawValue) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json.get())
    }

    /// The member `key`, read as a `T`; nothing when it is absent or of another shape.
    pub fn get<T: DeserializeOwned>(&self, key: &str) -> Option<T> {
        serde_json::from_str(self.0.get(key)?.get()).ok()
    }

    /// Puts `value` at `key`, in its place if it is there already, else last.
    pub fn set<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        self.0.insert(key.to_owned(), raw(value));
    }

    /// The object as text.
    pub fn to_raw(&self) -> RawJson {
        raw(self)
    }
}

/// `value` as JSON text.
///
/// # Panics
/// Never for what this program serialises: maps have string keys and no serialiser of ours fails.
pub fn raw<T: Serialize + ?Sized>(value: &T) -> RawJson {
    serde_json::value::to_raw_value(value).expect("plain data always serialises")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_members_key_order_and_big_numbers_survive_a_change_of_one_member() {
        let text = r#"{"z":1e400,"name":"old","big":18446744073709551617.10,"a":{"y":1,"x":[ 1 ]}}"#;
        let mut object = Object::parse(&RawValue::from_string(text.to_owned()).unwrap()).unwrap();
        object.set("name", "new");
        assert_eq!(object.to_raw().get(), text.replace("old", "new"));
    }
}
