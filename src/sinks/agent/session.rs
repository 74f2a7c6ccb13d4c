//! Owns the agents' sessions: who is there, what each was told, and which of its calls are in flight.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::model::server::hex;
use crate::protocol::Id;

/// The most sessions at a time. Beyond it the one unused for longest, and without an open stream, ends.
pub const MAX_SESSIONS: usize = 1024;

/// One agent's session.
#[derive(Debug)]
pub struct Session {
    pub id: String,
    /// The revision of the tools that the agent last listed or was told of.
    told: AtomicU64,
    /// Requests in flight, each with what cancels it.
    calls: Mutex<HashMap<Id, CancellationToken>>,
    /// Ends the session's streams.
    pub ended: CancellationToken,
    streams: AtomicU64,
    last_used: AtomicU64,
}

impl Session {
    /// Notes that the agent has seen `revision`.
    pub fn saw(&self, revision: u64) {
        self.told.fetch_max(revision, Ordering::AcqRel);
    }

    /// Whether the agent must still be told of `revision`; true for one caller only.
    pub fn claim(&self, revision: u64) -> bool {
        self.told.fetch_max(revision, Ordering::AcqRel) < revision
    }

    /// Notes a request in flight, until what is returned is dropped. Nothing when the id is in use already.
    pub fn begin(self: &Arc<Self>, id: Id) -> Option<InFlight> {
        let token = self.ended.child_token();
        let mut calls = lock(&self.calls);
        if calls.contains_key(&id) {
            return None;
        }
        calls.insert(id.clone(), token.clone());
        Some(InFlight { session: self.clone(), id, token })
    }

    /// Cancels the request `id`, if it is in flight.
    pub fn cancel(&self, id: &Id) {
        if let Some(token) = lock(&self.calls).get(id) {
            token.cancel();
        }
    }

    /// Notes an open stream, until what is returned is dropped.
    pub fn open_stream(self: &Arc<Self>) -> OpenStream {
        self.streams.fetch_add(1, Ordering::AcqRel);
        OpenStream(self.clone())
    }
}

/// A request in flight.
#[derive(Debug)]
pub struct InFlight {
    session: Arc<Session>,
    id: Id,
    pub token: CancellationToken,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        lock(&self.session.calls).remove(&self.id);
    }
}

/// An open stream.
#[derive(Debug)]
pub struct OpenStream(Arc<Session>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::AcqRel);
    }
}

/// All sessions.
#[derive(Debug, Default)]
pub struct Sessions {
    all: Mutex<HashMap<String, Arc<Session>>>,
    clock: AtomicU64,
}

impl Sessions {
    /// Opens a session for an agent that has been told of `revision`.
    ///
    /// # Errors
    /// When the system has no randomness to make an id from, or every place is taken by a session with an open
    /// stream.
    pub fn open(&self, revision: u64) -> Result<Arc<Session>, &'static str> {
        let mut bytes = [0; 16];
        match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
            Ok(16) => {}
            Ok(_) | Err(_) => return Err("no randomness for a session id"),
        }
        let session = Arc::new(Session {
            id: hex(&bytes),
            told: AtomicU64::new(revision),
            calls: Mutex::default(),
            ended: CancellationToken::new(),
            streams: AtomicU64::new(0),
            last_used: AtomicU64::new(self.tick()),
        });
        let mut all = lock(&self.all);
        if all.len() >= MAX_SESSIONS {
            let idle = all
                .values()
                .filter(|s| s.streams.load(Ordering::Acquire) == 0 && lock(&s.calls).is_empty())
                .min_by_key(|s| s.last_used.load(Ordering::Acquire))
                .map(|s| s.id.clone());
            let Some(idle) = idle else { return Err("too many sessions are open") };
            if let Some(session) = all.remove(&idle) {
                session.ended.cancel();
            }
        }
        all.insert(session.id.clone(), session.clone());
        Ok(session)
    }

    pub fn get(&self, id: &str) -> Option<Arc<Session>> {
        let session = lock(&self.all).get(id).cloned()?;
        session.last_used.store(self.tick(), Ordering::Release);
        Some(session)
    }

    /// Ends a session: its streams end and its calls are cancelled. False when there is none of that id.
    pub fn close(&self, id: &str) -> bool {
        let session = lock(&self.all).remove(id);
        session.inspect(|session| session.ended.cancel()).is_some()
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::AcqRel)
    }
}

/// Held for a few map operations only, never across an await; a panic inside leaves the map whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_told_to_a_session_once_and_not_at_all_when_it_listed_it() {
        let session = Sessions::default().open(3).unwrap();
        assert!(!session.claim(3), "known at the beginning");
        assert!(session.claim(4));
        assert!(!session.claim(4), "told already");
        session.saw(6);
        assert!(!session.claim(5));
        assert!(session.claim(7));
    }

    #[test]
    fn a_call_can_be_cancelled_while_it_is_in_flight_and_its_id_is_free_afterwards() {
        let session = Sessions::default().open(0).unwrap();
        let call = session.begin(Id::from(1)).unwrap();
        assert!(session.begin(Id::from(1)).is_none());
        session.cancel(&Id::from(2));
        assert!(!call.token.is_cancelled());
        session.cancel(&Id::from(1));
        assert!(call.token.is_cancelled());
        drop(call);
        assert!(session.begin(Id::from(1)).is_some());
    }

    #[test]
    fn a_full_house_ends_the_session_unused_for_longest_that_has_no_stream() {
        let sessions = Sessions::default();
        let first = sessions.open(0).unwrap();
        let _stream = first.open_stream();
        let second = sessions.open(0).unwrap();
        for _ in 2..=MAX_SESSIONS {
            sessions.open(0).unwrap();
        }
        assert!(sessions.get(&first.id).is_some());
        assert!(sessions.get(&second.id).is_none());
        assert!(second.ended.is_cancelled());
    }

    #[test]
    fn closing_a_session_cancels_its_calls() {
        let sessions = Sessions::default();
        let session = sessions.open(0).unwrap();
        let call = session.begin(Id::from(1)).unwrap();
        assert!(sessions.close(&session.id));
        assert!(call.token.is_cancelled());
        assert!(!sessions.close(&session.id));
    }
}
