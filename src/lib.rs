//! mcp-reconciler.

pub mod controller;
pub mod model;
pub mod protocol;
pub mod sinks;
pub mod sources;
