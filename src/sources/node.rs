//! Owns the form that JSON and YAML share once read: values with the place where each stands.

use std::fmt;

use indexmap::IndexMap;

/// Line and column, from 1.
pub type Place = (usize, usize);

/// The members of a map, in the file's order.
pub type Map = IndexMap<String, Node>;

/// One value of a file.
#[derive(Clone)]
pub struct Node {
    pub at: Place,
    pub value: Value,
}

#[derive(Clone)]
pub enum Value {
    Null,
    Bool(bool),
    /// As the file writes it, where the format keeps that.
    Number(Box<str>),
    Text(String),
    List(Vec<Node>),
    Map(Map),
}

impl Value {
    /// What the value is, never its content.
    pub const fn kind(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "true or false",
            Value::Number(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }
}

/// Values can be secrets: only their kind shows.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {}:{}", self.value, self.at.0, self.at.1)
    }
}

/// What is wrong in a file, and where. Never holds a value of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub at: Option<Place>,
    pub message: String,
}

impl Fault {
    /// A fault of the file as a whole.
    pub fn whole(message: impl Into<String>) -> Self {
        Fault { at: None, message: message.into() }
    }

    pub fn at(at: Place, message: impl Into<String>) -> Self {
        Fault { at: Some(at), message: message.into() }
    }
}

impl Node {
    /// That `field` needs `expected` and is something else.
    pub fn expected(&self, field: &str, expected: &str) -> Fault {
        Fault::at(self.at, format!("{field}: {expected} is needed, found {}", self.value.kind()))
    }

    /// # Errors
    /// When it is no map.
    pub fn map(&self, field: &str) -> Result<&Map, Fault> {
        match &self.value {
            Value::Map(map) => Ok(map),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::List(_) => {
                Err(self.expected(field, "a map"))
            }
        }
    }

    /// # Errors
    /// When it is no list.
    pub fn list(&self, field: &str) -> Result<&[Node], Fault> {
        match &self.value {
            Value::List(list) => Ok(list),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Text(_) | Value::Map(_) => {
                Err(self.expected(field, "a list"))
            }
        }
    }

    /// # Errors
    /// When it is no text.
    pub fn text(&self, field: &str) -> Result<&str, Fault> {
        match &self.value {
            Value::Text(text) => Ok(text),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::List(_) | Value::Map(_) => {
                Err(self.expected(field, "text"))
            }
        }
    }

    /// # Errors
    /// When it is neither true nor false.
    pub fn bool(&self, field: &str) -> Result<bool, Fault> {
        match &self.value {
            Value::Bool(value) => Ok(*value),
            Value::Null | Value::Number(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => {
                Err(self.expected(field, "true or false"))
            }
        }
    }

    /// # Errors
    /// When it is not a list of texts.
    pub fn texts(&self, field: &str) -> Result<Vec<String>, Fault> {
        let list = self.list(field)?.iter().enumerate();
        list.map(|(i, node)| node.text(&format!("{field}[{i}]")).map(str::to_owned)).collect()
    }

    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }
}
