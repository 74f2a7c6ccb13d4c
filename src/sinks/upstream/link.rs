//! Owns one live connection as the loop and the agents' calls hold it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::peer::Peer;
use super::{Call, CallError};
use crate::controller::connector::{Link, LostError};
use crate::model::Listing;
use crate::protocol::Object;

/// How a connection is told to end, and tells that it has.
#[derive(Debug, Clone, Default)]
pub struct Life {
    pub closing: CancellationToken,
    pub closed: CancellationToken,
}

impl Life {
    /// Ends the connection and waits until nothing of it is left.
    pub async fn close(&self) {
        self.closing.cancel();
        self.closed.cancelled().await;
    }
}

/// One live connection, cheap to clone. It ends with its last clone.
#[derive(Clone)]
pub struct UpstreamLink(Arc<Shared>);

struct Shared {
    peer: Arc<Peer>,
    life: Life,
    listing: watch::Receiver<Arc<Listing>>,
    _guard: DropGuard,
}

impl fmt::Debug for UpstreamLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UpstreamLink({})", self.0.peer.name)
    }
}

impl UpstreamLink {
    pub(super) fn new(
        peer: Arc<Peer>,
        life: Life,
        guard: DropGuard,
        listing: watch::Receiver<Arc<Listing>>,
    ) -> Self {
        UpstreamLink(Arc::new(Shared { peer, life, listing, _guard: guard }))
    }

    /// Sends a request, which may take `limit` in all.
    ///
    /// # Errors
    /// When it provably did not reach the server.
    pub async fn request(&self, method: &str, params: Object, limit: Duration) -> Result<Call, CallError> {
        self.0.peer.request(method, Some(params), limit).await
    }

    pub fn is_closed(&self) -> bool {
        self.0.peer.ended.is_cancelled()
    }
}

impl Link for UpstreamLink {
    fn listing(&self) -> watch::Receiver<Arc<Listing>> {
        self.0.listing.clone()
    }

    async fn lost(&self) -> LostError {
        self.0.peer.ended.cancelled().await;
        LostError(self.0.peer.reason())
    }

    async fn idle(&self) {
        self.0.peer.pending.idle().await;
    }

    async fn close(&self) {
        self.0.life.close().await;
    }
}
