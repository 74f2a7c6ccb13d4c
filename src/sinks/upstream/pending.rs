//! Owns the requests that await their answers, and hands each what belongs to it, in the order in which it came.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use super::{CallError, CallEvent};
use crate::protocol::{Object, RawJson, Reply};

/// How many notifications of a call wait for its agent. Beyond that, progress is dropped: it is advice, and an agent
/// that does not read must neither hold up other calls nor lose its result, for which one place is kept.
const WAITING: usize = 256;

/// One request.
struct Waiter {
    events: mpsc::Sender<CallEvent>,
    /// The token that the agent gave for progress.
    progress: Option<RawJson>,
    /// The task that carries the request, where each has its own.
    carrier: Option<AbortHandle>,
}

/// All requests of one connection.
pub struct Pending {
    waiters: Mutex<HashMap<u64, Waiter>>,
    count: watch::Sender<usize>,
}

impl Default for Pending {
    fn default() -> Self {
        Pending { waiters: Mutex::default(), count: watch::Sender::new(0) }
    }
}

impl Pending {
    /// Notes a request. What comes for it can be received from what is returned.
    pub fn insert(&self, id: u64, progress: Option<RawJson>) -> mpsc::Receiver<CallEvent> {
        let (events, receiver) = mpsc::channel(WAITING + 1);
        let mut waiters = self.lock();
        waiters.insert(id, Waiter { events, progress, carrier: None });
        self.count.send_replace(waiters.len());
        receiver
    }

    /// Notes which task carries a request; it is ended with it.
    pub fn carried_by(&self, id: u64, carrier: AbortHandle) {
        match self.lock().get_mut(&id) {
            Some(waiter) => waiter.carrier = Some(carrier),
            None => carrier.abort(),
        }
    }

    /// Ends a request that nobody awaits any more. False when it had been answered.
    pub fn forget(&self, id: u64) -> bool {
        let waiter = self.take(id);
        if let Some(carrier) = waiter.as_ref().and_then(|waiter| waiter.carrier.as_ref()) {
            carrier.abort();
        }
        waiter.is_some()
    }

    /// Whether a request still awaits its answer.
    pub fn awaits(&self, id: u64) -> bool {
        self.lock().contains_key(&id)
    }

    /// Hands a request its end. False when nobody awaits it.
    pub fn finish(&self, id: u64, end: Result<Reply, CallError>) -> bool {
        match self.take(id) {
            // There is room: progress leaves the last place free, and a receiver that is gone awaits nothing.
            Some(waiter) => waiter.events.try_send(CallEvent::Done(end)).is_ok(),
            None => false,
        }
    }

    /// Hands a progress notification to the request whose token it carries, under the agent's own token.
    pub fn progress(&self, method: &str, mut params: Object) {
        let Some(token) = params.get::<u64>("progressToken") else { return };
        let waiters = self.lock();
        let Some(Waiter { events, progress: Some(own), .. }) = waiters.get(&token) else { return };
        params.set("progressToken", own);
        if events.capacity() > 1 {
            let event = CallEvent::Notification { method: method.to_owned(), params: Some(params.to_raw()) };
            let _ = events.try_send(event);
        }
    }

    /// Lets go of everybody: what they receive ends.
    pub fn clear(&self) {
        let mut waiters = self.lock();
        waiters.drain().filter_map(|(_, waiter)| waiter.carrier).for_each(|carrier| carrier.abort());
        self.count.send_replace(0);
    }

    /// Ends when no request is in flight.
    pub async fn idle(&self) {
        // The sender lives as long as this does.
        let _ = self.count.subscribe().wait_for(|count| *count == 0).await;
    }

    fn take(&self, id: u64) -> Option<Waiter> {
        let mut waiters = self.lock();
        let waiter = waiters.remove(&id);
        self.count.send_replace(waiters.len());
        waiter
    }

    /// Held for map operations only, never across an await; a panic inside leaves the map whole.
    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Waiter>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::object::raw;

    fn progress(pending: &Pending, n: usize) {
        let params = Object::parse(&raw(&serde_json::json!({ "progressToken": 1, "progress": n }))).unwrap();
        pending.progress("notifications/progress", params);
    }

    #[tokio::test]
    async fn progress_comes_in_order_before_the_result_and_under_the_agents_token() {
        let pending = Pending::default();
        let mut events = pending.insert(1, Some(raw("own")));
        progress(&pending, 1);
        progress(&pending, 2);
        assert!(pending.finish(1, Ok(Ok(raw("done")))));
        progress(&pending, 3);
        let mut seen = Vec::new();
        while let Some(event) = events.recv().await {
            seen.push(match event {
                CallEvent::Notification { params, .. } => params.unwrap().get().to_owned(),
                CallEvent::Done(end) => end.unwrap().unwrap().get().to_owned(),
            });
        }
        let expected = [
            r#"{"progressToken":"own","progress":1}"#,
            r#"{"progressToken":"own","progress":2}"#,
            r#""done""#,
        ];
        assert_eq!(seen, expected);
    }

    #[tokio::test]
    async fn an_agent_that_does_not_read_loses_progress_and_never_its_result() {
        let pending = Pending::default();
        let mut events = pending.insert(1, Some(raw(&7)));
        (0..10 * WAITING).for_each(|n| progress(&pending, n));
        assert!(pending.finish(1, Err(CallError::NotSent)));
        let mut count = 0;
        while let Some(event) = events.recv().await {
            count += 1;
            assert_eq!(matches!(event, CallEvent::Done(_)), count == WAITING + 1);
        }
        assert_eq!(count, WAITING + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_idle_when_nothing_is_in_flight() {
        let pending = Pending::default();
        pending.idle().await;
        let _events = pending.insert(1, None);
        let waited = tokio::time::timeout(std::time::Duration::from_secs(1), pending.idle()).await;
        assert!(waited.is_err());
        assert!(pending.forget(1) && !pending.forget(1));
        pending.idle().await;
    }
}
