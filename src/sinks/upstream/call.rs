//! Owns one request on its way: what comes for it, until its answer, its time-out or nobody's interest in it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::peer::Peer;
use crate::protocol::{RawJson, Reply};

/// What comes for a request.
#[derive(Debug)]
pub enum CallEvent {
    Notification {
        method: String,
        params: Option<RawJson>,
    },
    /// The last event.
    Done(Result<Reply, CallError>),
}

/// Why a request has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It provably never reached the server, and may be sent again.
    #[error("it could not be reached")]
    NotSent,
    /// It may have reached the server.
    #[error("{0}")]
    Lost(String),
    /// The limit of one request.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Timeout(Duration),
}

/// One request. Dropped before its end, it is cancelled at the server.
pub struct Call {
    peer: Arc<Peer>,
    id: u64,
    events: mpsc::Receiver<CallEvent>,
    deadline: Instant,
    limit: Duration,
    done: bool,
}

impl Call {
    pub(super) fn new(
        peer: Arc<Peer>,
        id: u64,
        events: mpsc::Receiver<CallEvent>,
        deadline: Instant,
        limit: Duration,
    ) -> Self {
        Call { peer, id, events, deadline, limit, done: false }
    }

    /// The next event. May be dropped and asked again; after the end it stays lost.
    pub async fn next(&mut self) -> CallEvent {
        let event = match timeout_at(self.deadline, self.events.recv()).await {
            Ok(Some(event)) => event,
            Ok(None) => CallEvent::Done(Err(CallError::Lost(self.peer.reason()))),
            Err(_) => {
                self.peer.cancel(self.id, "timed out");
                CallEvent::Done(Err(CallError::Timeout(self.limit)))
            }
        };
        self.done |= matches!(event, CallEvent::Done(_));
        event
    }

    /// The answer, whatever comes before it.
    ///
    /// # Errors
    /// When there is none.
    pub async fn answer(mut self) -> Result<Reply, CallError> {
        loop {
            match self.next().await {
                CallEvent::Notification { .. } => {}
                CallEvent::Done(end) => return end,
            }
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.done {
            self.peer.cancel(self.id, "cancelled");
        }
    }
}
