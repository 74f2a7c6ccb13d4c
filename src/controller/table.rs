//! What is observed: one entry for each server that anything runs or waits for, and how each event changes it.

use std::collections::BTreeMap;
use std::time::Duration;

use super::connector::DisconnectReason;
use super::retry::{Retry, STABLE_AFTER};
use crate::model::{Fingerprint, Moment, ServerName};

/// How long a server that dropped out keeps its tools listed while it reconnects.
pub const DROP_OUT_HOLD: Duration = Duration::from_secs(30);

/// Where a server stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// It failed; the next attempt is due at `until`, or never in a run of one attempt.
    Waiting {
        until: Option<Moment>,
    },
    /// It is being connected and listed.
    Connecting,
    Connected,
    /// Its calls in flight may finish, then it closes.
    Draining,
    /// It is being ended.
    Closing,
}

/// Why the catalogue keeps the tools of a server that has no connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldKind {
    /// Another connection takes this one's place.
    Replacing,
    /// It was lost by itself.
    Reconnecting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    pub kind: HoldKind,
    pub until: Moment,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub phase: Phase,
    pub fingerprint: Fingerprint,
    pub retry: Retry,
    /// When the phase was entered.
    pub since: Moment,
    pub hold: Option<Hold>,
    pub last_error: Option<String>,
    /// The credentials were missing or wrong at the last attempt.
    pub needs_auth: bool,
    /// How often it was connected.
    pub connects: u64,
    /// Why it is draining or closing; nothing for a connection that never stood.
    pub ending: Option<DisconnectReason>,
}

impl Entry {
    fn enter(&mut self, phase: Phase, now: Moment) {
        self.phase = phase;
        self.since = now;
    }

    /// The hold that is in force at `now`.
    pub fn held(&self, now: Moment) -> Option<Hold> {
        self.hold.filter(|hold| hold.until > now)
    }
}

/// How many attempts a server gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempts {
    Forever,
    One,
}

/// What runs, by server.
#[derive(Debug, Clone, Default)]
pub struct Table(BTreeMap<ServerName, Entry>);

impl Table {
    pub fn get(&self, name: &ServerName) -> Option<&Entry> {
        self.0.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&ServerName, &Entry)> {
        self.0.iter()
    }

    /// An attempt begins. What is known of earlier ones stays while the connection asked for is the same.
    pub fn open(&mut self, name: &ServerName, fingerprint: Fingerprint, startup: Duration, now: Moment) {
        let fresh = Entry {
            phase: Phase::Connecting,
            fingerprint,
            retry: Retry::default(),
            since: now,
            hold: None,
            last_error: None,
            needs_auth: false,
            connects: 0,
            ending: None,
        };
        let entry = self.0.entry(name.clone()).or_insert(fresh);
        if entry.fingerprint != fingerprint {
            entry.fingerprint = fingerprint;
            entry.retry = Retry::default();
            entry.last_error = None;
            entry.needs_auth = false;
        }
        entry.hold = entry.held(now).map(|hold| match hold.kind {
            HoldKind::Replacing => Hold { until: now + startup, ..hold },
            HoldKind::Reconnecting => hold,
        });
        entry.enter(Phase::Connecting, now);
    }

    /// The attempt succeeded. False when the connection is no longer wanted and must be closed at once.
    pub fn opened(&mut self, name: &ServerName, now: Moment) -> bool {
        let Some(entry) = self.0.get_mut(name).filter(|entry| entry.phase == Phase::Connecting) else {
            return false;
        };
        entry.hold = None;
        entry.connects += 1;
        entry.needs_auth = false;
        entry.enter(Phase::Connected, now);
        true
    }

    /// The attempt failed by itself. `roll` in 0..1 spreads the next one.
    pub fn open_failed(
        &mut self,
        name: &ServerName,
        error: String,
        needs_auth: bool,
        attempts: Attempts,
        roll: f64,
        now: Moment,
    ) {
        let Some(entry) = self.0.get_mut(name) else { return };
        entry.last_error = Some(error);
        entry.needs_auth = needs_auth;
        // A replacement that fails takes the old tools with it: there is no rollback.
        entry.hold = entry.held(now).filter(|hold| hold.kind == HoldKind::Reconnecting);
        let delay = entry.retry.next_delay(roll);
        entry.enter(Phase::Waiting { until: (attempts == Attempts::Forever).then(|| now + delay) }, now);
    }

    /// A standing connection was lost by itself: its tools are kept for a while and it comes back with backoff.
    pub fn lost(&mut self, name: &ServerName, error: String, attempts: Attempts, roll: f64, now: Moment) {
        let Some(entry) = self.0.get_mut(name) else { return };
        if now.since(entry.since) >= STABLE_AFTER {
            entry.retry = Retry::default();
        }
        entry.last_error = Some(error);
        entry.hold = Some(Hold { kind: HoldKind::Reconnecting, until: now + DROP_OUT_HOLD });
        let delay = entry.retry.next_delay(roll);
        entry.enter(Phase::Waiting { until: (attempts == Attempts::Forever).then(|| now + delay) }, now);
    }

    /// Calls in flight may finish. With `hold_for`, the catalogue keeps the tools for a successor that long.
    pub fn drain(
        &mut self,
        name: &ServerName,
        why: DisconnectReason,
        hold_for: Option<Duration>,
        now: Moment,
    ) {
        let Some(entry) = self.0.get_mut(name) else { return };
        entry.ending = Some(why);
        entry.hold = hold_for.map(|time| Hold { kind: HoldKind::Replacing, until: now + time });
        entry.enter(Phase::Draining, now);
    }

    /// A standing connection ends undrained.
    pub fn close(&mut self, name: &ServerName, why: DisconnectReason, now: Moment) {
        let Some(entry) = self.0.get_mut(name) else { return };
        entry.ending = Some(why);
        entry.hold = None;
        entry.enter(Phase::Closing, now);
    }

    /// An attempt is called off. `keep` says that a successor is wanted, so that what is held stays held.
    pub fn cancel(&mut self, name: &ServerName, keep: bool, now: Moment) {
        let Some(entry) = self.0.get_mut(name) else { return };
        entry.ending = None;
        entry.hold = entry.held(now).filter(|_| keep);
        entry.enter(Phase::Closing, now);
    }

    /// What was draining or closing has ended. A held server stays, due at once; any other is forgotten.
    pub fn ended(&mut self, name: &ServerName, now: Moment) -> Option<DisconnectReason> {
        let entry = self.0.get_mut(name)?;
        let why = entry.ending.take();
        if entry.held(now).is_some() {
            entry.retry = Retry::default();
            entry.enter(Phase::Waiting { until: Some(now) }, now);
        } else {
            self.0.remove(name);
        }
        why
    }

    pub fn forget(&mut self, name: &ServerName) {
        self.0.remove(name);
    }

    /// Everything that waits is due now: somebody asked.
    pub fn make_all_due(&mut self, now: Moment) {
        for entry in self.0.values_mut() {
            if matches!(entry.phase, Phase::Waiting { until: Some(_) }) {
                entry.phase = Phase::Waiting { until: Some(now) };
            }
        }
    }

    #[cfg(test)]
    pub(super) fn put(&mut self, name: &str, entry: Entry) {
        self.0.insert(name.into(), entry);
    }
}
