//! Decides what agents are offered: which servers' lists count now, and what a call to each must wait for.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::admit::Admission;
use super::resolve::Desired;
use super::table::{HoldKind, Phase, Table};
use crate::model::{Listing, Moment, ServerName, ServerSpec};

/// What agents are offered. `L` is a live connection.
#[derive(Debug, Clone)]
pub struct Catalog<L> {
    pub servers: BTreeMap<ServerName, Served<L>>,
    /// Every other server that is known, and why it serves nothing.
    pub absent: BTreeMap<ServerName, Absent>,
    /// Whether a first plan was made and no server is in its first attempt.
    pub settled: bool,
    /// When the first plan was made; agents' first lists wait from here on.
    pub planned: bool,
}

impl<L> Default for Catalog<L> {
    fn default() -> Self {
        Catalog { servers: BTreeMap::new(), absent: BTreeMap::new(), settled: false, planned: false }
    }
}

/// One server whose lists count.
#[derive(Debug, Clone)]
pub struct Served<L> {
    /// Raw, as the server listed them; `spec.tools` filters them.
    pub listing: Arc<Listing>,
    pub spec: Arc<ServerSpec>,
    pub connection: Connection<L>,
}

/// What a call meets.
#[derive(Debug, Clone)]
pub enum Connection<L> {
    Live(L),
    /// It is being replaced or comes back: a call waits, at most this long.
    Awaited {
        kind: HoldKind,
        at_most: Duration,
    },
}

/// Why a server serves nothing, for the agent: no command, path, digest or text of the entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// One of the refusals' spellings, `failed`, `needs_auth`, `connecting` or `closing`.
    pub reason: &'static str,
    pub message: String,
}

/// How long a call waits for a server that dropped out.
pub const RECONNECT_WAIT: Duration = Duration::from_secs(5);

/// What `desired` and `table` give agents at `now`, with the connections and lists that stand.
pub fn catalog<L: Clone>(
    desired: &Desired,
    table: &Table,
    connections: &BTreeMap<ServerName, (Option<L>, Arc<Listing>)>,
    now: Moment,
) -> Catalog<L> {
    let mut out = Catalog { planned: true, settled: true, ..Catalog::default() };
    for (name, wanted) in &desired.servers {
        let entry = table.get(name);
        let phase = entry.map(|entry| entry.phase);
        let hold = entry.and_then(|entry| entry.held(now));
        let (link, listing) = match connections.get(name) {
            Some((link, listing)) => (link.clone(), Some(listing.clone())),
            None => (None, None),
        };
        let may_serve = match &wanted.admission {
            Admission::Admitted(_) | Admission::Held(_) => true,
            Admission::Refused(_) => false,
        };
        let replaced = |phase| {
            matches!(phase, Some(Phase::Connected))
                && entry.map(|entry| Some(entry.fingerprint)) == Some(wanted.fingerprint)
        };
        let connection = match (link, hold) {
            (Some(link), _) if replaced(phase) => Some(Connection::Live(link)),
            (_, Some(hold)) => Some(Connection::Awaited {
                kind: hold.kind,
                at_most: match hold.kind {
                    HoldKind::Replacing => hold.until.since(now),
                    HoldKind::Reconnecting => RECONNECT_WAIT,
                },
            }),
            (Some(_) | None, None) => None,
        };
        match (may_serve, connection, listing, &wanted.spec) {
            (true, Some(connection), Some(listing), Some(spec)) => {
                out.servers.insert(name.clone(), Served { listing, spec: spec.clone(), connection });
            }
            _ => {
                let first_attempt = wanted.admitted().is_some()
                    && entry.is_none_or(|entry| entry.connects == 0 && entry.retry.failures() == 0);
                out.settled &= !first_attempt;
                out.absent.insert(
                    name.clone(),
                    absent(name, wanted.admission.refusal(), entry.map(|e| (e.phase, e.needs_auth))),
                );
            }
        }
    }
    out
}

fn absent(name: &ServerName, refusal: Option<crate::model::Refusal>, entry: Option<(Phase, bool)>) -> Absent {
    if let Some(refusal) = refusal {
        return Absent {
            reason: refusal.as_str(),
            message: format!("server {name} is not connected: {refusal}; {}", refusal.fix()),
        };
    }
    let (reason, what) = match entry {
        None | Some((Phase::Connecting, _)) => ("connecting", "is still starting up; try again"),
        Some((Phase::Waiting { .. }, true)) => ("needs_auth", "asks for credentials that it was not given"),
        Some((Phase::Waiting { .. }, false)) => ("failed", "could not be reached; it is being tried again"),
        Some((Phase::Connected | Phase::Draining | Phase::Closing, _)) => {
            ("closing", "is being replaced; try again")
        }
    };
    Absent { reason, message: format!("server {name} {what}") }
}
