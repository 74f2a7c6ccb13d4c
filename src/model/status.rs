//! The one document that `/status`, `status --output json` and `--reconcile-once --output json` print.

use std::path::PathBuf;

use serde::Serialize;

use super::server::{Scope, ServerName};
use super::time::Moment;

/// The version of the document's shape.
pub const SCHEMA_VERSION: u32 = 1;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Status {
    #[serde(rename = "schemaVersion")]
    pub schema_version: u32,
    pub version: &'static str,
    pub pid: u32,
    pub workspace: PathBuf,
    /// Rises by one whenever the desired state changes.
    pub generation: u64,
    /// Whether what runs is what is wanted.
    pub converged: bool,
    /// Whether the first pass has been made and the sidecar is not shutting down.
    pub ready: bool,
    pub servers: Vec<ServerStatus>,
    pub sources: Vec<SourceStatus>,
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServerStatus {
    pub name: ServerName,
    pub scope: Scope,
    pub path: PathBuf,
    /// The scope of the entry of the same name that this one stands in front of.
    pub overrides: Option<Scope>,
    pub transport: Option<&'static str>,
    pub state: ServerState,
    pub reason: Option<String>,
    pub message: Option<String>,
    pub fix: Option<String>,
    pub fingerprint: Option<String>,
    /// RFC 3339: when the server entered its state.
    pub since: String,
    pub restarts: u64,
    pub next_attempt_seconds: Option<f64>,
    /// What `next_attempt_seconds` is counted from, when the status is asked for.
    #[serde(skip)]
    pub next_attempt_at: Option<Moment>,
    pub tools: usize,
    pub prompts: usize,
    pub resources: usize,
    pub last_error: Option<String>,
}

impl ServerStatus {
    /// The same, with the time to the next attempt counted from `now`.
    #[must_use]
    pub fn at(mut self, now: Moment) -> Self {
        self.next_attempt_seconds = self.next_attempt_at.map(|at| at.since(now).as_secs_f64());
        self
    }
}

impl Status {
    /// The same, with the times to the next attempts counted from `now`.
    #[must_use]
    pub fn at(mut self, now: Moment) -> Self {
        self.servers = self.servers.into_iter().map(|server| server.at(now)).collect();
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerState {
    Connected,
    Connecting,
    Waiting,
    Draining,
    Closing,
    Refused,
}

impl ServerState {
    pub const ALL: [ServerState; 6] = [
        ServerState::Connected,
        ServerState::Connecting,
        ServerState::Waiting,
        ServerState::Draining,
        ServerState::Closing,
        ServerState::Refused,
    ];

    /// The one spelling, in status and as a metric label.
    pub const fn as_str(self) -> &'static str {
        match self {
            ServerState::Connected => "connected",
            ServerState::Connecting => "connecting",
            ServerState::Waiting => "waiting",
            ServerState::Draining => "draining",
            ServerState::Closing => "closing",
            ServerState::Refused => "refused",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SourceStatus {
    pub scope: Scope,
    pub path: PathBuf,
    pub state: SourceState,
    /// `file:line:column: text`; never holds a value of the file.
    pub error: Option<String>,
    /// RFC 3339: when the source was last read whole.
    pub last_good: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SourceState {
    Good,
    Absent,
    Bad,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Condition {
    pub kind: ConditionKind,
    pub status: bool,
    pub reason: String,
    pub message: String,
    /// RFC 3339: when `status` last changed.
    pub since: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum ConditionKind {
    SourcesRead,
    Watching,
    Approvals,
    Converged,
}
