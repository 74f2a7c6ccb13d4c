//! Owns the JSON Schema of the settings files, for editors. What it describes is decided in `settings` and `entry`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

/// The MCP part of a settings file. Other keys belong to other programs and are not looked at.
#[derive(JsonSchema)]
#[schemars(title = "MCP settings", rename_all = "camelCase")]
pub struct Settings {
    /// The servers, by name.
    pub mcp_servers: Option<BTreeMap<String, Entry>>,
    /// The servers, by name, in a file of VS Code's: looked at in a .mcp.json and in --config files, and only where there
    /// is no mcpServers.
    pub servers: Option<BTreeMap<String, Entry>>,
    #[serde(default)]
    pub mcp: Mcp,
    #[serde(default)]
    pub security: Security,
}

/// Which servers may connect.
#[derive(Default, JsonSchema)]
pub struct Mcp {
    /// Names or globs (* and ?) of the servers that may connect. Absent allows all, an empty list none.
    #[serde(default)]
    pub allowed: Vec<String>,
    /// Names or globs of servers that may not connect; wins over allowed.
    #[serde(default)]
    pub excluded: Vec<String>,
}

#[derive(Default, JsonSchema)]
#[schemars(rename_all = "camelCase")]
pub struct Security {
    #[serde(default)]
    pub folder_trust: FolderTrust,
}

/// Whether a workspace must be trusted before anything connects; counts in system defaults, user and system files only.
#[derive(Default, JsonSchema)]
pub struct FolderTrust {
    #[serde(default)]
    pub enabled: bool,
}

/// One server. It has a command, or a URL. Texts may hold $NAME, ${NAME}, ${NAME:-default}, $$ and a leading ~/.
#[derive(JsonSchema)]
#[schemars(rename_all = "camelCase")]
pub struct Entry {
    /// The program of a server that speaks over stdin and stdout. A relative path counts from the workspace.
    pub command: Option<String>,
    pub args: Option<Vec<String>>,
    /// Variables of the child process, besides a base environment.
    pub env: Option<BTreeMap<String, Scalar>>,
    /// The working directory; the workspace where none is named.
    pub cwd: Option<String>,
    /// The URL of a server over HTTP. Without a type, streamable HTTP is tried first.
    pub url: Option<String>,
    /// The URL of a streamable HTTP server.
    pub http_url: Option<String>,
    /// Headers of every request.
    pub headers: Option<BTreeMap<String, Scalar>>,
    /// How the server is reached, where command and url do not say it.
    #[schemars(rename = "type")]
    pub kind: Option<Kind>,
    /// Another spelling of type.
    pub transport: Option<Kind>,
    /// How long one request may take, in milliseconds.
    #[schemars(range(min = 1))]
    pub timeout: Option<f64>,
    /// How long connecting and the first listing may take in all, in milliseconds.
    #[schemars(rename = "discoveryTimeoutMs", range(min = 100, max = 300_000))]
    pub discovery_timeout_ms: Option<f64>,
    /// The only tools that are offered, by the server's own names.
    pub include_tools: Option<Vec<String>>,
    /// Tools that are not offered; wins over includeTools.
    pub exclude_tools: Option<Vec<String>>,
    pub disabled: Option<bool>,
    pub enabled: Option<bool>,
    pub description: Option<String>,
    /// Looked at by qwen-code only.
    pub trust: Option<bool>,
    /// Looked at by qwen-code only.
    pub always_load_tools: Option<Value>,
    /// Understood, and refused: no transport here serves it.
    pub tcp: Option<String>,
    /// Looked at by qwen-code only.
    pub oauth: Option<Value>,
    /// Looked at by qwen-code only.
    pub auth_provider_type: Option<String>,
    /// Looked at by qwen-code only.
    pub target_audience: Option<String>,
    /// Looked at by qwen-code only.
    pub target_service_account: Option<String>,
    /// Looked at by qwen-code only.
    pub version_negotiation: Option<String>,
    /// Looked at by qwen-code only.
    #[schemars(rename = "agentPluginV1")]
    pub agent_plugin_v1: Option<Value>,
    /// Looked at by qwen-code only.
    pub extension_name: Option<String>,
    /// Looked at by qwen-code only.
    pub scope: Option<String>,
}

/// Numbers and booleans count as their JSON text.
#[derive(JsonSchema)]
#[serde(untagged)]
pub enum Scalar {
    Text(String),
    Number(f64),
    Bool(bool),
}

/// Case does not count.
#[derive(JsonSchema)]
pub enum Kind {
    #[schemars(rename = "stdio")]
    Stdio,
    #[schemars(rename = "http")]
    Http,
    #[schemars(rename = "streamable-http")]
    StreamableHttp,
    #[schemars(rename = "streamableHttp")]
    StreamableHttpCamel,
    #[schemars(rename = "streamable_http")]
    StreamableHttpSnake,
    #[schemars(rename = "sse")]
    Sse,
    #[schemars(rename = "sdk")]
    Sdk,
}

/// The schema, as draft 07, which editors know.
pub fn schema() -> Value {
    SchemaSettings::draft07().into_generator().into_root_schema_for::<Settings>().to_value()
}

#[cfg(test)]
mod tests {
    use super::super::entry;
    use super::*;

    #[test]
    fn the_schema_that_is_committed_is_current() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("schema/settings.schema.json");
        let current = format!("{:#}\n", schema());
        if std::env::var_os("UPDATE_SCHEMA").is_some() {
            std::fs::write(&path, &current).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(committed, current, "run UPDATE_SCHEMA=1 cargo test --lib schema");
    }

    #[test]
    fn the_schema_and_the_reader_know_the_same_keys() {
        let schema = schema();
        let properties = schema["definitions"]["Entry"]["properties"].as_object().unwrap();
        let mut keys: Vec<_> = properties.keys().map(String::as_str).collect();
        keys.sort_unstable();
        assert_eq!(keys, entry::KEYS);
    }
}
