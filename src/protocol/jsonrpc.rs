//! JSON-RPC 2.0 messages, with parameters and results left as text.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;

use super::object::{RawJson, raw};

/// A request's id: a string or a number, the latter by its text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Id {
    Number(Box<str>),
    String(Box<str>),
}

impl Id {
    /// The id that `json` is, if it is a string or a number.
    pub fn parse(json: &RawValue) -> Option<Id> {
        let text = json.get();
        match text.as_bytes().first()? {
            b'"' => Some(Id::String(serde_json::from_str::<Box<str>>(text).ok()?)),
            b'-' | b'0'..=b'9' => Some(Id::Number(text.into())),
            _ => None,
        }
    }

    /// The number, where the id is one that this program gave out.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Id::Number(text) => text.parse().ok(),
            Id::String(_) => None,
        }
    }
}

impl From<u64> for Id {
    fn from(id: u64) -> Self {
        Id::Number(id.to_string().into())
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Id::Number(text) => f.write_str(text),
            Id::String(text) => write!(f, "{text:?}"),
        }
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            // The text was a JSON number when it came in.
            Id::Number(text) => RawValue::from_string(text.to_string())
                .map_err(serde::ser::Error::custom)?
                .serialize(serializer),
            Id::String(text) => serializer.serialize_str(text),
        }
    }
}

/// The error of a failed request.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ErrorObject {
    /// A number in all that is well-formed; kept as text so that an odd one passes.
    pub code: RawJson,
    #[serde(default)]
    pub message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<RawJson>,
}

impl ErrorObject {
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        ErrorObject { code: raw(&code), message: message.into(), data: None }
    }

    /// The code, where it is a number.
    pub fn code(&self) -> Option<i64> {
        self.code.get().parse().ok()
    }
}

impl fmt::Display for ErrorObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {}: {}", self.code, self.message)
    }
}

/// What a request ends with.
pub type Reply = Result<RawJson, ErrorObject>;

/// One message.
#[derive(Debug, Clone)]
pub enum Message {
    Request {
        id: Id,
        method: String,
        params: Option<RawJson>,
    },
    Notification {
        method: String,
        params: Option<RawJson>,
    },
    /// `id` is absent only in an error about something whose id could not be read.
    Response {
        id: Option<Id>,
        reply: Reply,
    },
}

/// Why a text is not a message.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    #[error("not JSON: {0}")]
    Json(#[source] serde_json::Error),
    #[error("not a JSON-RPC message: {0}")]
    Shape(&'static str),
}

impl ParseError {
    /// The JSON-RPC code that tells the sender.
    pub const fn code(&self) -> i64 {
        match self {
            ParseError::Json(_) => super::mcp::code::PARSE_ERROR,
            ParseError::Shape(_) => super::mcp::code::INVALID_REQUEST,
        }
    }
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, default)]
    jsonrpc: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(default)]
    params: Option<RawJson>,
    #[serde(default, deserialize_with = "present")]
    result: Option<RawJson>,
    #[serde(default)]
    error: Option<ErrorObject>,
}

/// Tells `"result": null` from no result.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<RawJson>, D::Error> {
    RawJson::deserialize(deserializer).map(Some)
}

impl Message {
    /// Reads one message.
    ///
    /// # Errors
    /// When `text` is not JSON, or not a JSON-RPC 2.0 request, notification or response.
    pub fn parse(text: &[u8]) -> Result<Message, ParseError> {
        let wire: Wire<'_> = serde_json::from_slice(text).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => {
                ParseError::Shape("an object with method, result or error is needed")
            }
            serde_json::error::Category::Io
            | serde_json::error::Category::Syntax
            | serde_json::error::Category::Eof => ParseError::Json(error),
        })?;
        if wire.jsonrpc.as_deref() != Some("2.0") {
            return Err(ParseError::Shape("jsonrpc must be \"2.0\""));
        }
        let has_id = wire.id.is_some_and(|id| id.get() != "null");
        let id = wire.id.and_then(Id::parse);
        if has_id && id.is_none() {
            return Err(ParseError::Shape("id must be a string or a number"));
        }
        match (wire.method, wire.result, wire.error) {
            (Some(method), None, None) => Ok(match id {
                Some(id) => Message::Request { id, method: method.into_owned(), params: wire.params },
                None => Message::Notification { method: method.into_owned(), params: wire.params },
            }),
            (None, Some(result), None) => Ok(Message::Response { id, reply: Ok(result) }),
            (None, None, Some(error)) => Ok(Message::Response { id, reply: Err(error) }),
            (Some(_), _, _) | (None, Some(_), Some(_)) | (None, None, None) => {
                Err(ParseError::Shape("exactly one of method, result and error is needed"))
            }
        }
    }

    /// The message as one line of JSON, without the line's end.
    pub fn to_json(&self) -> String {
        #[derive(Serialize)]
        struct Out<'a> {
            jsonrpc: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            id: Option<&'a Id>,
            #[serde(skip_serializing_if = "Option::is_none")]
            method: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            params: Option<&'a RawValue>,
            #[serde(skip_serializing_if = "Option::is_none")]
            result: Option<&'a RawValue>,
            #[serde(skip_serializing_if = "Option::is_none")]
            error: Option<&'a ErrorObject>,
        }
        let empty = Out { jsonrpc: "2.0", id: None, method: None, params: None, result: None, error: None };
        let out = match self {
            Message::Request { id, method, params } => {
                Out { id: Some(id), method: Some(method), params: params.as_deref(), ..empty }
            }
            Message::Notification { method, params } => {
                Out { method: Some(method), params: params.as_deref(), ..empty }
            }
            Message::Response { id, reply } => match reply {
                Ok(result) => Out { id: id.as_ref(), result: Some(result), ..empty },
                Err(error) => Out { id: id.as_ref(), error: Some(error), ..empty },
            },
        };
        let json = serde_json::to_string(&out).expect("plain data always serialises");
        // A peer may lay its JSON out over lines; inside strings a line's end is always escaped.
        if json.contains(['\n', '\r']) { json.replace(['\n', '\r'], " ") } else { json }
    }

    /// A response to `id`.
    pub fn response(id: Id, reply: Reply) -> Message {
        Message::Response { id: Some(id), reply }
    }

    /// A notification of `method` with `params`.
    pub fn notification(method: &str, params: Option<RawJson>) -> Message {
        Message::Notification { method: method.to_owned(), params }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(text: &str) -> String {
        Message::parse(text.as_bytes()).unwrap().to_json()
    }

    #[test]
    fn messages_keep_the_text_of_params_results_and_errors() {
        for text in [
            r#"{"jsonrpc":"2.0","id":"a\"b","method":"m","params":{"z":1.50,"a":[ 1e400 ]}}"#,
            r#"{"jsonrpc":"2.0","method":"n"}"#,
            r#"{"jsonrpc":"2.0","id":12345678901234567890123,"result":null}"#,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"no","data":{"b":1,"a":2}}}"#,
        ] {
            assert_eq!(round_trip(text), text);
        }
    }

    #[test]
    fn a_message_is_one_line_whatever_its_sender_laid_out() {
        let text = "{\"jsonrpc\":\"2.0\",\"method\":\"n\",\"params\":{\r\n\"a\":\"x\\ny\"}}";
        assert_eq!(round_trip(text), "{\"jsonrpc\":\"2.0\",\"method\":\"n\",\"params\":{  \"a\":\"x\\ny\"}}");
    }

    #[test]
    fn what_is_not_a_message_says_whether_it_is_json() {
        for (text, code) in [
            ("nonsense", -32700),
            ("[]", -32600),
            (r#"{"jsonrpc":"1.0","method":"m"}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":{},"method":"m"}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":1}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":""}}"#, -32600),
        ] {
            assert_eq!(Message::parse(text.as_bytes()).unwrap_err().code(), code, "{text}");
        }
    }
}
