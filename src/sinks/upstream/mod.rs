//! Opens connections to servers, by whichever transport their entries ask for.

mod call;
mod environment;
mod framing;
mod handshake;
mod http;
mod link;
mod mask;
mod peer;
mod pending;
mod process;
mod stderr;
mod stdio;

pub use call::{Call, CallError, CallEvent};
pub use link::UpstreamLink;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::controller::admit::Admitted;
use crate::controller::connector::{Connector, OpenError, OpenReason, Stop};
use crate::model::{Listing, Root, ServerName, Transport};
use crate::protocol::mcp::method;
use handshake::Offers;
use http::{Clients, HttpWire};
use link::Life;
use mask::Mask;
use peer::Peer;
use process::Start;

/// What connections are opened with.
#[derive(Debug, Clone)]
pub struct UpstreamConfig {
    pub root: Root,
    /// The sidecar's own variables, of which a child gets some.
    pub environment: BTreeMap<String, String>,
    /// Names of further ones that it gets.
    pub pass_env: Vec<String>,
    /// By what this sidecar knows itself when it meets itself.
    pub instance: String,
    /// Notified when a server lists other things than before.
    pub observed: Arc<Notify>,
    /// The soft limit of open files that children are to have.
    pub nofile: Option<u64>,
}

/// Opens connections.
pub struct Upstreams {
    config: UpstreamConfig,
    owner: String,
    clients: Clients,
}

impl Upstreams {
    /// # Errors
    /// When the process cannot find out about itself.
    pub fn new(config: UpstreamConfig) -> io::Result<Self> {
        Ok(Upstreams { config, owner: owner()?, clients: Clients::default() })
    }

    fn connect(&self, name: &ServerName, transport: &Transport) -> Result<(Arc<Peer>, Life), OpenError> {
        let mask = Mask::new(transport);
        let root = self.config.root.clone();
        match transport {
            Transport::Stdio { command, args, env, cwd } => {
                let environment =
                    environment::child(&self.config.environment, &self.config.pass_env, &self.owner, env);
                let start = Start { command, args, environment, cwd, nofile: self.config.nofile };
                stdio::open(name.clone(), root, mask, start)
            }
            Transport::Http { url, headers, .. } | Transport::Sse { url, headers } => {
                let wire = HttpWire::new(&self.clients, url, headers)?;
                Ok(wire.open(name.clone(), root, mask))
            }
        }
    }

    async fn shake_hands(&self, peer: &Arc<Peer>, limit: Duration) -> Result<(Offers, Listing), OpenError> {
        let deadline = Instant::now() + limit;
        let left = || deadline.saturating_duration_since(Instant::now());
        let (version, offers) = handshake::initialize(peer, &self.config.instance, limit).await?;
        peer.agreed(&version);
        peer.notify(method::INITIALIZED).await;
        Ok((offers, handshake::list(peer, offers, left()).await?))
    }
}

impl Connector for Upstreams {
    type Link = UpstreamLink;

    async fn open(&self, admitted: Admitted, stop: Stop) -> Result<UpstreamLink, OpenError> {
        let (name, spec) = (admitted.name(), admitted.spec());
        let (peer, life) = self.connect(name, &spec.transport)?;
        // Should this future be dropped, what was started ends all the same.
        let guard = life.closing.clone().drop_guard();
        let limit = spec.startup_timeout;
        // One list after another may use up the whole time: the limit of all is the limit of each and of their sum.
        let shaking = tokio::time::timeout(limit, self.shake_hands(&peer, limit));
        let error = match stop.drain.run_until_cancelled(shaking).await {
            Some(Ok(Ok((offers, listing)))) => {
                peer.opened();
                let (sender, receiver) = watch::channel(Arc::new(listing));
                tokio::spawn(follow(peer.clone(), offers, sender, self.config.observed.clone()));
                return Ok(UpstreamLink::new(peer, life, guard, receiver));
            }
            Some(Ok(Err(error))) => error,
            Some(Err(_)) => OpenError { reason: OpenReason::Timeout, message: silence(&peer) },
            None => OpenError { reason: OpenReason::Cancelled, message: "it is no longer wanted".to_owned() },
        };
        life.close().await;
        Err(if error.reason == OpenReason::Timeout {
            OpenError { message: format!("{} within {} s", error.message, limit.as_secs_f64()), ..error }
        } else {
            error
        })
    }
}

fn silence(peer: &Peer) -> String {
    match peer.garbage() {
        Some(line) => format!("the handshake was not done (its stdout is not MCP: {line:?})"),
        None => "the handshake was not done".to_owned(),
    }
}

/// Lists anew whenever the server says that a list changed: one at a time, and at most one more is wanted.
async fn follow(
    peer: Arc<Peer>,
    offers: Offers,
    listing: watch::Sender<Arc<Listing>>,
    observed: Arc<Notify>,
) {
    let following = async {
        loop {
            peer.list_changed.notified().await;
            match handshake::list(&peer, offers, RELIST_LIMIT).await {
                Ok(new) => {
                    let changed = listing.send_if_modified(|old| {
                        let changed = **old != new;
                        if changed {
                            *old = Arc::new(new);
                        }
                        changed
                    });
                    if changed {
                        observed.notify_one();
                    }
                }
                Err(error) => tracing::warn!(server = %peer.name, %error, "its changed lists cannot be read"),
            }
        }
    };
    let _ = peer.ended.run_until_cancelled(following).await;
}

/// How long a list may take outside the handshake.
const RELIST_LIMIT: Duration = Duration::from_secs(30);

/// This process, told from a later one with the same number by when it started.
fn owner() -> io::Result<String> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // The name between the parentheses may hold anything; the start time is the 22nd field.
    let start = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(19));
    let start = start.ok_or_else(|| io::Error::other("/proc/self/stat has no start time"))?;
    Ok(format!("{}.{start}", std::process::id()))
}
