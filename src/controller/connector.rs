//! What the loop needs from the two sides: something to read, something to connect with, something to count.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::admit::Admitted;
use super::snapshot::Readings;
use crate::model::{Listing, Refusal, ServerName};

/// Where desired state comes from.
pub trait Source: Send + Sync + 'static {
    /// Reads every source afresh and re-arms the watches. It may block; it never fails as a whole.
    fn read(&self) -> Readings;
}

/// What opens connections. A server can be reached only through an [`Admitted`], which only the gate makes.
pub trait Connector: Send + Sync + 'static {
    type Link: Link;

    /// Connects, shakes hands and lists, all within the server's start-up time. Whatever was started is stopped
    /// again before this returns an error, also when `stop` asks for it.
    fn open(
        &self,
        admitted: Admitted,
        stop: Stop,
    ) -> impl Future<Output = Result<Self::Link, OpenError>> + Send;
}

/// One live connection, cheap to clone.
pub trait Link: Clone + Send + Sync + 'static {
    /// What the server offers now. A change is published on the next pass, which the connection asks for itself.
    fn listing(&self) -> watch::Receiver<Arc<Listing>>;

    /// Ends when the connection is lost by itself, with the reason.
    fn lost(&self) -> impl Future<Output = LostError> + Send;

    /// Ends when no call is in flight.
    fn idle(&self) -> impl Future<Output = ()> + Send;

    /// Ends the connection and everything that was started for it; calls in flight get an error.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// How the loop stops what it started. `close` implies `drain`.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    /// Calls in flight may finish.
    pub drain: CancellationToken,
    /// Nothing may finish.
    pub close: CancellationToken,
}

impl Stop {
    pub fn drain(&self) {
        self.drain.cancel();
    }

    pub fn close(&self) {
        self.drain.cancel();
        self.close.cancel();
    }
}

/// Why a connection could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct OpenError {
    pub reason: OpenReason,
    /// For the person who must act. Secret values are masked.
    pub message: String,
}

/// The closed set of reasons for which opening fails; a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpenReason {
    /// The command could not be started.
    Spawn,
    /// The address could not be reached.
    Unreachable,
    /// The server ended or closed the connection during the handshake.
    Closed,
    /// The server answered with an error or with something that is not MCP.
    Protocol,
    /// The start-up time passed.
    Timeout,
    /// The server asks for credentials.
    NeedsAuth,
    /// The server is this sidecar.
    Itself,
    /// The loop no longer wants it.
    Cancelled,
    /// A defect of this program.
    Panic,
}

impl OpenReason {
    pub const ALL: [OpenReason; 9] = [
        OpenReason::Spawn,
        OpenReason::Unreachable,
        OpenReason::Closed,
        OpenReason::Protocol,
        OpenReason::Timeout,
        OpenReason::NeedsAuth,
        OpenReason::Itself,
        OpenReason::Cancelled,
        OpenReason::Panic,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            OpenReason::Spawn => "spawn",
            OpenReason::Unreachable => "unreachable",
            OpenReason::Closed => "closed",
            OpenReason::Protocol => "protocol",
            OpenReason::Timeout => "timeout",
            OpenReason::NeedsAuth => "needs_auth",
            OpenReason::Itself => "itself",
            OpenReason::Cancelled => "cancelled",
            OpenReason::Panic => "panic",
        }
    }
}

/// Why a connection was lost. For the person who must act; secret values are masked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostError(pub String);

impl fmt::Display for LostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a connection ended; a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DisconnectReason {
    /// The entry is gone.
    Removed,
    /// The entry changed and the new one takes its place.
    Replaced,
    /// The gate closed.
    Refused,
    /// The connection was lost by itself.
    Lost,
    /// The sidecar shuts down.
    Shutdown,
}

impl DisconnectReason {
    pub const ALL: [DisconnectReason; 5] = [
        DisconnectReason::Removed,
        DisconnectReason::Replaced,
        DisconnectReason::Refused,
        DisconnectReason::Lost,
        DisconnectReason::Shutdown,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            DisconnectReason::Removed => "removed",
            DisconnectReason::Replaced => "replaced",
            DisconnectReason::Refused => "refused",
            DisconnectReason::Lost => "lost",
            DisconnectReason::Shutdown => "shutdown",
        }
    }
}

/// What set a pass off; a metric label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Trigger {
    /// The first read.
    Start,
    /// A file event.
    Hint,
    /// The resync timer, or the second look at a deletion.
    Timer,
    /// SIGHUP.
    Signal,
}

impl Trigger {
    pub const ALL: [Trigger; 4] = [Trigger::Start, Trigger::Hint, Trigger::Timer, Trigger::Signal];

    pub const fn as_str(self) -> &'static str {
        match self {
            Trigger::Start => "start",
            Trigger::Hint => "hint",
            Trigger::Timer => "timer",
            Trigger::Signal => "signal",
        }
    }
}

/// What counts events as they happen; states are read from the status instead.
pub trait Recorder: Send + Sync + 'static {
    fn connected(&self, server: &ServerName, transport: &'static str);
    fn connect_failed(&self, server: &ServerName, reason: OpenReason);
    fn disconnected(&self, server: &ServerName, reason: DisconnectReason);
    /// A server became refused.
    fn skipped(&self, server: &ServerName, refusal: Refusal);
    /// A read was planned and applied; `changed` when it raised the generation, `bad` when a source is bad.
    fn reconciled(&self, trigger: Trigger, bad: bool, took: Duration);
}
