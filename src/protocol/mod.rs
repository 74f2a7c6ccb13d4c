//! MCP on the wire, lossless: only the fields that route are read, everything else passes as the peer's own text.

pub mod jsonrpc;
pub mod mcp;
pub mod object;

pub use jsonrpc::{ErrorObject, Id, Message, ParseError, Reply};
pub use object::{Object, RawJson};
