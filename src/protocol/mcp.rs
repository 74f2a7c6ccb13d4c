//! The names and numbers of the Model Context Protocol that this program reads or writes.

/// The newest revision that opens with `initialize`.
pub const LATEST_INITIALIZE: &str = "2025-11-25";

/// The revisions that open with `initialize`, newest first.
pub const INITIALIZE_VERSIONS: [&str; 4] = [LATEST_INITIALIZE, "2025-06-18", "2025-03-26", "2024-11-05"];

/// The `_meta` key under which this sidecar says which process it is, so that it knows itself when it meets itself.
pub const INSTANCE_META: &str = "io.github.mcp-reconciler/instance";

pub mod method {
    pub const INITIALIZE: &str = "initialize";
    pub const INITIALIZED: &str = "notifications/initialized";
    pub const PING: &str = "ping";
    pub const TOOLS_LIST: &str = "tools/list";
    pub const TOOLS_CALL: &str = "tools/call";
    pub const PROMPTS_LIST: &str = "prompts/list";
    pub const RESOURCES_LIST: &str = "resources/list";
    pub const ROOTS_LIST: &str = "roots/list";
    pub const PROGRESS: &str = "notifications/progress";
    pub const CANCELLED: &str = "notifications/cancelled";
    pub const TOOLS_LIST_CHANGED: &str = "notifications/tools/list_changed";
    pub const PROMPTS_LIST_CHANGED: &str = "notifications/prompts/list_changed";
    pub const RESOURCES_LIST_CHANGED: &str = "notifications/resources/list_changed";
}

pub mod header {
    pub const SESSION_ID: &str = "mcp-session-id";
    pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
}

/// JSON-RPC error codes.
pub mod code {
    pub const PARSE_ERROR: i64 = -32700;
    pub const INVALID_REQUEST: i64 = -32600;
    pub const METHOD_NOT_FOUND: i64 = -32601;
    pub const INVALID_PARAMS: i64 = -32602;
    pub const INTERNAL_ERROR: i64 = -32603;
}
