//! Decides what the status says: one document from what is wanted, what runs and what was read.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::admit::Admission;
use super::resolve::{Desired, Wanted};
use super::snapshot::{Document, DocumentState, Snapshot};
use super::table::{Entry, Phase, Table};
use crate::model::status::{
    Condition, ConditionKind, SCHEMA_VERSION, ServerState, ServerStatus, SourceState, SourceStatus, Status,
};
use crate::model::{Listing, Moment, Refusal, Scope, ServerName};

/// What a report is made from.
pub struct Facts<'a> {
    pub workspace: &'a Path,
    /// The wall clock's time at the loop's beginning.
    pub epoch: SystemTime,
    pub desired: &'a Desired,
    pub table: &'a Table,
    /// Nothing until the first read.
    pub snapshot: Option<&'a Snapshot>,
    pub listings: BTreeMap<&'a ServerName, &'a Arc<Listing>>,
    pub stopping: bool,
    pub now: Moment,
}

/// The status now. `previous` keeps the times of conditions and refusals that did not change.
pub fn report(facts: &Facts<'_>, previous: Option<&Status>) -> Status {
    let converged = facts.snapshot.is_some() && is_converged(facts.desired, facts.table);
    let servers: Vec<ServerStatus> = facts
        .desired
        .servers
        .iter()
        .map(|(name, wanted)| server(facts, name, Some(wanted), previous))
        .chain(
            facts
                .table
                .iter()
                .filter(|(name, _)| !facts.desired.servers.contains_key(*name))
                .map(|(name, _)| server(facts, name, None, previous)),
        )
        .collect();
    Status {
        schema_version: SCHEMA_VERSION,
        version: env!("CARGO_PKG_VERSION"),
        pid: std::process::id(),
        workspace: facts.workspace.to_owned(),
        generation: facts.desired.generation,
        converged,
        ready: facts.snapshot.is_some() && !facts.stopping,
        conditions: conditions(facts, &servers, converged, previous),
        servers,
        sources: facts.snapshot.map(|snapshot| sources(snapshot, facts.epoch)).unwrap_or_default(),
    }
}

/// Whether every admitted server is connected as it is wanted, and nothing else runs.
pub fn is_converged(desired: &Desired, table: &Table) -> bool {
    let standing = |(name, wanted): (&ServerName, &Wanted)| match &wanted.admission {
        Admission::Admitted(admitted) => table.get(name).is_some_and(|entry| {
            entry.phase == Phase::Connected && entry.fingerprint == admitted.fingerprint()
        }),
        Admission::Held(_) => table.get(name).is_none_or(|entry| entry.phase == Phase::Connected),
        Admission::Refused(_) => table.get(name).is_none(),
    };
    desired.servers.iter().all(standing) && table.iter().all(|(name, _)| desired.servers.contains_key(name))
}

fn rfc3339(epoch: SystemTime, at: Moment) -> String {
    humantime::format_rfc3339_millis(epoch + at.since_start()).to_string()
}

fn server(
    facts: &Facts<'_>,
    name: &ServerName,
    wanted: Option<&Wanted>,
    previous: Option<&Status>,
) -> ServerStatus {
    let entry = facts.table.get(name);
    let before = previous.and_then(|status| status.servers.iter().find(|server| server.name == *name));
    let refusal = wanted.and_then(|wanted| wanted.admission.refusal());
    let state = state(refusal, entry);
    let (reason, fix) = match (refusal, entry.map(|entry| entry.phase)) {
        (Some(refusal), _) => (Some(refusal.as_str()), Some(refusal.fix().to_owned())),
        (None, Some(Phase::Waiting { .. })) if entry.is_some_and(|entry| entry.needs_auth) => {
            (Some("needs_auth"), Some("give the entry valid credentials".to_owned()))
        }
        (None, Some(Phase::Waiting { .. })) => {
            (Some("failed"), Some("see last_error; it is tried again by itself".to_owned()))
        }
        (None, None | Some(Phase::Connecting | Phase::Connected | Phase::Draining | Phase::Closing)) => {
            (None, None)
        }
    };
    let reason = reason.map(str::to_owned);
    // An entry of the table knows since when it stands; a refusal is dated by the report that first said it.
    let since = match entry {
        Some(entry) if state != ServerState::Refused => rfc3339(facts.epoch, entry.since),
        Some(_) | None => match before {
            Some(before) if before.state == state && before.reason == reason => before.since.clone(),
            Some(_) | None => rfc3339(facts.epoch, facts.now),
        },
    };
    let listing = facts.listings.get(name).filter(|_| state == ServerState::Connected);
    let count = |pick: fn(&Listing) -> usize| listing.map_or(0, |listing| pick(listing));
    ServerStatus {
        name: name.clone(),
        scope: wanted.map_or_else(|| before.map_or(Scope::Config, |b| b.scope), |wanted| wanted.scope),
        path: wanted
            .map_or_else(|| before.map(|b| b.path.clone()).unwrap_or_default(), |wanted| wanted.path.clone()),
        overrides: wanted.and_then(|wanted| wanted.overrides),
        transport: wanted.and_then(|wanted| wanted.spec.as_ref()).map(|spec| spec.transport.as_str()),
        state,
        reason,
        message: wanted.and_then(message),
        fix,
        fingerprint: wanted.and_then(|wanted| wanted.fingerprint).map(|fingerprint| fingerprint.short()),
        since,
        restarts: entry.map_or(0, |entry| entry.connects.saturating_sub(1)),
        next_attempt_at: entry.and_then(|entry| match entry.phase {
            Phase::Waiting { until } => until,
            Phase::Connecting | Phase::Connected | Phase::Draining | Phase::Closing => None,
        }),
        next_attempt_seconds: None,
        tools: count(|listing| listing.tools.len()),
        prompts: count(|listing| listing.prompts.len()),
        resources: count(|listing| listing.resources.len()),
        last_error: entry.and_then(|entry| entry.last_error.clone()),
    }
    .at(facts.now)
}

fn state(refusal: Option<Refusal>, entry: Option<&Entry>) -> ServerState {
    match (refusal, entry.map(|entry| entry.phase)) {
        (_, Some(Phase::Connected)) => ServerState::Connected,
        (_, Some(Phase::Draining)) => ServerState::Draining,
        (_, Some(Phase::Closing)) => ServerState::Closing,
        (Some(_), None | Some(Phase::Waiting { .. } | Phase::Connecting)) => ServerState::Refused,
        (None, None | Some(Phase::Connecting)) => ServerState::Connecting,
        (None, Some(Phase::Waiting { .. })) => ServerState::Waiting,
    }
}

fn message(wanted: &Wanted) -> Option<String> {
    let stands_in = wanted
        .stands_in_for
        .map(|scope| format!("stands in for the rejected {} entry of this name", scope.as_str()));
    let covers = match (&wanted.admission, wanted.overrides) {
        (Admission::Refused(refusal), Some(lower)) => Some(format!(
            "the {} entry of this name does not run either while this one is {refusal}",
            lower.as_str()
        )),
        (Admission::Admitted(_) | Admission::Held(_) | Admission::Refused(_), _) => None,
    };
    wanted.message.clone().into_iter().chain(stands_in).chain(covers).reduce(|a, b| format!("{a}; {b}"))
}

fn sources(snapshot: &Snapshot, epoch: SystemTime) -> Vec<SourceStatus> {
    let mut all: Vec<SourceStatus> = snapshot.layers.iter().map(|document| source(document, epoch)).collect();
    all.push(source(&snapshot.approvals, epoch));
    all.push(source(&snapshot.trust, epoch));
    all
}

fn source<T>(document: &Document<T>, epoch: SystemTime) -> SourceStatus {
    SourceStatus {
        scope: document.scope,
        path: document.path.clone(),
        state: match &document.state {
            DocumentState::Absent => SourceState::Absent,
            DocumentState::Good(_) | DocumentState::Missing { .. } => SourceState::Good,
            DocumentState::Bad { .. } => SourceState::Bad,
        },
        error: match &document.state {
            DocumentState::Bad { error, .. } => Some(error.to_string()),
            DocumentState::Absent if document.explicit => Some(format!(
                "{}: no such file or directory, although --config names it",
                document.path.display()
            )),
            DocumentState::Absent | DocumentState::Good(_) | DocumentState::Missing { .. } => None,
        },
        last_good: document.last_good_at.map(|at| rfc3339(epoch, at)),
    }
}

fn conditions(
    facts: &Facts<'_>,
    servers: &[ServerStatus],
    converged: bool,
    previous: Option<&Status>,
) -> Vec<Condition> {
    let Some(snapshot) = facts.snapshot else { return Vec::new() };
    let errors: Vec<String> = snapshot.errors().into_iter().map(ToString::to_string).collect();
    let names = |pick: &dyn Fn(&ServerStatus) -> bool| {
        servers
            .iter()
            .filter(|server| pick(server))
            .map(|server| server.name.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let pending = names(&|server| server.reason.as_deref() == Some(Refusal::PendingApproval.as_str()));
    let behind = names(&|server| !matches!(server.state, ServerState::Connected | ServerState::Refused));
    let rows = [
        (ConditionKind::SourcesRead, errors.is_empty(), "AllRead", "SourceBad", errors.join("; ")),
        (
            ConditionKind::Watching,
            snapshot.watching.active,
            "FileEvents",
            "TimerOnly",
            snapshot.watching.message.clone(),
        ),
        (
            ConditionKind::Approvals,
            pending.is_empty(),
            "NonePending",
            "Pending",
            if pending.is_empty() { String::new() } else { format!("a person must approve: {pending}") },
        ),
        (
            ConditionKind::Converged,
            converged,
            "AsWanted",
            "InProgress",
            if behind.is_empty() { String::new() } else { format!("not yet as wanted: {behind}") },
        ),
    ];
    rows.into_iter()
        .map(|(kind, status, yes, no, message)| {
            let before =
                previous.and_then(|p| p.conditions.iter().find(|c| c.kind == kind && c.status == status));
            Condition {
                kind,
                status,
                reason: if status { yes } else { no }.to_owned(),
                message,
                since: before.map_or_else(|| rfc3339(facts.epoch, facts.now), |before| before.since.clone()),
            }
        })
        .collect()
}
