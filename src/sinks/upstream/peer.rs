//! Owns one connection's JSON-RPC: ids and progress tokens of our own, what is in flight, and what the server asks of us.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::value::RawValue;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::call::Call;
use super::http::HttpWire;
use super::mask::Mask;
use super::pending::Pending;
use super::{CallError, framing};
use crate::model::{Root, ServerName};
use crate::protocol::mcp::{code, method};
use crate::protocol::object::raw;
use crate::protocol::{ErrorObject, Id, Message, Object, ParseError};

/// How long a request that could not be handed over waits for the reason.
const REASON_WAIT: Duration = Duration::from_secs(2);

/// Where messages go.
pub enum Wire {
    /// Lines for a child's stdin.
    Lines(mpsc::Sender<String>),
    Http(HttpWire),
}

/// One connection's end on our side.
pub struct Peer {
    pub name: ServerName,
    pub mask: Mask,
    root: Root,
    wire: Wire,
    pub pending: Pending,
    next_id: AtomicU64,
    /// Why the connection ended.
    reason: OnceLock<String>,
    pub ended: CancellationToken,
    /// The server said that one of its lists changed.
    pub list_changed: Notify,
    /// The first thing the server wrote that is no message, for whoever wonders why it does not answer.
    garbage: OnceLock<String>,
    /// The server asked for credentials.
    pub needs_auth: OnceLock<()>,
}

impl Peer {
    pub fn new(name: ServerName, mask: Mask, root: Root, wire: Wire) -> Arc<Peer> {
        Arc::new(Peer {
            name,
            mask,
            root,
            wire,
            pending: Pending::default(),
            next_id: AtomicU64::new(1),
            reason: OnceLock::new(),
            ended: CancellationToken::new(),
            list_changed: Notify::new(),
            garbage: OnceLock::new(),
            needs_auth: OnceLock::new(),
        })
    }

    /// Sends a request; it may take `limit` in all.
    ///
    /// # Errors
    /// When it provably did not reach the server.
    pub async fn request(
        self: &Arc<Self>,
        method: &str,
        params: Option<Object>,
        limit: Duration,
    ) -> Result<Call, CallError> {
        let deadline = Instant::now() + limit;
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (params, progress) = match params {
            Some(params) => with_own_token(params, id),
            None => (None, None),
        };
        let message = Message::Request { id: Id::from(id), method: method.to_owned(), params };
        let events = self.pending.insert(id, progress);
        // Whoever ends the connection lets go of all requests after this is set: one of the two sees the other.
        if self.ended.is_cancelled() {
            self.pending.forget(id);
            return Err(CallError::NotSent);
        }
        match &self.wire {
            Wire::Lines(lines) => {
                let sent = tokio::time::timeout_at(deadline, lines.send(message.to_json())).await;
                if !matches!(sent, Ok(Ok(()))) {
                    self.pending.forget(id);
                    // A child that takes nothing has most often just ended, and why is about to be known.
                    let _ = tokio::time::timeout(REASON_WAIT, self.ended.cancelled()).await;
                    return Err(CallError::NotSent);
                }
            }
            Wire::Http(http) => {
                let carrier = tokio::spawn(http.clone().carry(self.clone(), id, message.to_json()));
                self.pending.carried_by(id, carrier.abort_handle());
            }
        }
        Ok(Call::new(self.clone(), id, events, deadline, limit))
    }

    /// Sends what needs no answer. It is dropped when the server takes nothing: waiting would hold others up.
    pub fn send(self: &Arc<Self>, message: &Message) {
        match &self.wire {
            Wire::Lines(lines) => {
                if lines.try_send(message.to_json()).is_err() {
                    tracing::debug!(server = %self.name, "a message was dropped: the server does not read");
                }
            }
            Wire::Http(http) => drop(tokio::spawn(http.clone().post_aside(self.clone(), message.to_json()))),
        }
    }

    /// Sends a notification and waits until it is on its way, in its place before what follows.
    pub async fn notify(self: &Arc<Self>, method: &str) {
        let message = Message::notification(method, None).to_json();
        match &self.wire {
            // A connection that ended is found out by the next request.
            Wire::Lines(lines) => drop(lines.send(message).await),
            Wire::Http(http) => http.clone().post_aside(self.clone(), message).await,
        }
    }

    /// Takes in one text from the server. Called in the order in which texts come.
    pub fn receive(self: &Arc<Self>, text: &[u8]) {
        match Message::parse(text) {
            Ok(message) => self.handle(message),
            Err(ParseError::Json(_)) => {
                let line = self.mask.line(&String::from_utf8_lossy(text));
                tracing::debug!(server = %self.name, line, "its stdout holds what is no message");
                let _ = self.garbage.set(line);
            }
            Err(error @ ParseError::Shape(_)) => {
                tracing::debug!(server = %self.name, %error, "an odd message was dropped");
                let _ = self.garbage.set(self.mask.line(&String::from_utf8_lossy(text)));
            }
        }
    }

    /// Takes in the beginning of a text that is too long to be read.
    pub fn receive_too_long(&self, head: &[u8]) {
        let message = format!("a message of more than {} MiB", framing::MAX_MESSAGE >> 20);
        match framing::response_id(head) {
            Some(id) => {
                let _ = self.pending.finish(id, Err(CallError::Lost(format!("it answered with {message}"))));
            }
            None => self.end(format!("it sent {message}")),
        }
    }

    fn handle(self: &Arc<Self>, message: Message) {
        match message {
            Message::Response { id, reply } => {
                let known =
                    id.as_ref().and_then(Id::as_u64).is_some_and(|id| self.pending.finish(id, Ok(reply)));
                if !known {
                    tracing::debug!(server = %self.name, "a response that nothing awaits");
                }
            }
            Message::Notification { method, params } => self.notified(&method, params.as_deref()),
            Message::Request { id, method, .. } => {
                let reply = match method.as_str() {
                    method::PING => Ok(raw(&serde_json::Map::new())),
                    method::ROOTS_LIST => Ok(raw(&serde_json::json!({ "roots": [root(&self.root)] }))),
                    _ => Err(ErrorObject::new(code::METHOD_NOT_FOUND, format!("no such method: {method}"))),
                };
                self.send(&Message::response(id, reply));
            }
        }
    }

    fn notified(&self, method: &str, params: Option<&RawValue>) {
        match method {
            method::PROGRESS => {
                if let Some(params) = params.and_then(|params| Object::parse(params).ok()) {
                    self.pending.progress(method, params);
                }
            }
            method::TOOLS_LIST_CHANGED | method::PROMPTS_LIST_CHANGED | method::RESOURCES_LIST_CHANGED => {
                self.list_changed.notify_one();
            }
            _ => tracing::debug!(server = %self.name, method, "a notification that is not passed on"),
        }
    }

    /// Tells the server that a request is no longer awaited.
    pub fn cancel(self: &Arc<Self>, id: u64, reason: &str) {
        if self.pending.forget(id) {
            let params = raw(&serde_json::json!({ "requestId": id, "reason": reason }));
            self.send(&Message::notification(method::CANCELLED, Some(params)));
        }
    }

    /// The connection has ended; the first reason stands.
    pub fn end(&self, reason: String) {
        let _ = self.reason.set(reason);
        self.ended.cancel();
        self.pending.clear();
    }

    /// The connection has ended before the request `id` could be sent.
    pub fn end_unsent(&self, id: u64, reason: String) {
        // The reason stands before anybody can ask for it.
        let _ = self.reason.set(reason.clone());
        let _ = self.pending.finish(id, Err(CallError::NotSent));
        self.end(reason);
    }

    pub fn is_http(&self) -> bool {
        match self.wire {
            Wire::Http(_) => true,
            Wire::Lines(_) => false,
        }
    }

    /// The revision that was agreed on.
    pub fn agreed(&self, version: &str) {
        match &self.wire {
            Wire::Http(http) => http.agreed(version),
            Wire::Lines(_) => {}
        }
    }

    /// The handshake is done: from here on the server may begin by itself.
    pub fn opened(self: &Arc<Self>) {
        match &self.wire {
            Wire::Http(http) => drop(tokio::spawn(http.clone().listen(self.clone()))),
            Wire::Lines(_) => {}
        }
    }

    /// Why the connection ended.
    pub fn reason(&self) -> String {
        self.reason.get().cloned().unwrap_or_else(|| "the connection ended".to_owned())
    }

    /// The first thing the server wrote that is no message, for an error's text.
    pub fn garbage(&self) -> Option<&str> {
        self.garbage.get().map(String::as_str)
    }
}

/// The parameters with our own progress token in the place of the agent's, and the agent's.
fn with_own_token(
    mut params: Object,
    id: u64,
) -> (Option<crate::protocol::RawJson>, Option<crate::protocol::RawJson>) {
    let mut own = None;
    if let Some(meta) = params.0.get("_meta")
        && let Ok(mut meta) = Object::parse(meta)
        && let Some(token) = meta.0.get("progressToken").cloned()
    {
        meta.set("progressToken", &id);
        params.set("_meta", &meta);
        own = Some(token);
    }
    (Some(params.to_raw()), own)
}

fn root(root: &Root) -> serde_json::Value {
    let name = root.path().file_name().map(|name| name.to_string_lossy().into_owned());
    let uri = Url::from_directory_path(root.path()).map(|url| url.as_str().trim_end_matches('/').to_owned());
    serde_json::json!({ "uri": uri.unwrap_or_else(|()| "file:///".to_owned()), "name": name.unwrap_or_default() })
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::sync::mpsc::Receiver;

    use super::*;
    use crate::model::Transport;
    use crate::sinks::upstream::CallEvent;

    /// A peer whose lines the test receives.
    pub fn peer() -> (Arc<Peer>, Receiver<String>) {
        let (lines, receiver) = mpsc::channel(64);
        let mask = Mask::new(&Transport::Sse { url: "http://h/".into(), headers: [].into() });
        let root = Root::new("/".as_ref(), "/a b".as_ref());
        (Peer::new("s".into(), mask, root, Wire::Lines(lines)), receiver)
    }

    fn object(text: &str) -> Object {
        serde_json::from_str(text).unwrap()
    }

    const LIMIT: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn a_request_has_our_id_and_token_and_everything_else_as_the_agent_wrote_it() {
        let (peer, mut lines) = peer();
        let params = r#"{"z":1e400,"_meta":{"b":1,"progressToken":"own","a":[ 2 ]},"name":"t"}"#;
        let mut call = peer.request("tools/call", Some(object(params)), LIMIT).await.unwrap();
        let sent = lines.recv().await.unwrap();
        let expected = params.replace("\"own\"", "1");
        assert_eq!(sent, format!(r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{expected}}}"#));

        peer.receive(
            br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"x":1.50,"progressToken":1}}"#,
        );
        peer.receive(br#"{"jsonrpc":"2.0","id":1,"result":{"big":18446744073709551617}}"#);
        let CallEvent::Notification { params, .. } = call.next().await else { panic!() };
        assert_eq!(params.unwrap().get(), r#"{"x":1.50,"progressToken":"own"}"#);
        let CallEvent::Done(Ok(Ok(result))) = call.next().await else { panic!() };
        assert_eq!(result.get(), r#"{"big":18446744073709551617}"#);
    }

    #[tokio::test]
    async fn a_call_that_is_dropped_is_cancelled_and_one_that_was_answered_is_not() {
        let (peer, mut lines) = peer();
        let call = peer.request("m", None, LIMIT).await.unwrap();
        drop(call);
        assert!(lines.recv().await.unwrap().contains("\"id\":1"));
        let cancelled = lines.recv().await.unwrap();
        assert!(
            cancelled.contains("notifications/cancelled") && cancelled.contains("\"requestId\":1"),
            "{cancelled}"
        );
        let call = peer.request("m", None, LIMIT).await.unwrap();
        peer.receive(br#"{"jsonrpc":"2.0","id":2,"result":{}}"#);
        drop(call);
        assert!(lines.recv().await.unwrap().contains("\"id\":2"));
        assert!(lines.try_recv().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_takes_too_long_is_cancelled() {
        let (peer, mut lines) = peer();
        let mut call = peer.request("m", None, LIMIT).await.unwrap();
        assert!(matches!(call.next().await, CallEvent::Done(Err(CallError::Timeout(LIMIT)))));
        lines.recv().await.unwrap();
        assert!(lines.recv().await.unwrap().contains("notifications/cancelled"));
    }

    #[tokio::test]
    async fn when_the_connection_ends_every_call_is_lost_with_the_reason_and_none_is_sent() {
        let (peer, _lines) = peer();
        let mut call = peer.request("m", None, LIMIT).await.unwrap();
        peer.end("exited with status 3".to_owned());
        peer.end("later".to_owned());
        let CallEvent::Done(Err(CallError::Lost(reason))) = call.next().await else { panic!() };
        assert_eq!(reason, "exited with status 3");
        assert!(matches!(peer.request("m", None, LIMIT).await, Err(CallError::NotSent)));
    }

    #[tokio::test]
    async fn what_the_server_asks_is_answered() {
        let (peer, mut lines) = peer();
        for (method, answer) in [
            ("ping", r#""result":{}"#),
            ("roots/list", r#""result":{"roots":[{"uri":"file:///a%20b","name":"a b"}]}"#),
            ("sampling/createMessage", r#""error":{"code":-32601"#),
        ] {
            peer.receive(format!(r#"{{"jsonrpc":"2.0","id":"x","method":"{method}"}}"#).as_bytes());
            let line = lines.recv().await.unwrap();
            assert!(line.contains("\"id\":\"x\"") && line.contains(answer), "{line}");
        }
    }

    #[tokio::test]
    async fn what_is_no_message_is_passed_over_and_the_first_of_it_kept() {
        let (peer, _lines) = peer();
        peer.receive(b"Listening on port 1");
        peer.receive(b"{\"more\": 1}");
        peer.receive(b"\xff\xfe");
        assert_eq!(peer.garbage(), Some("Listening on port 1"));
        assert!(!peer.ended.is_cancelled());
    }

    #[tokio::test]
    async fn an_answer_that_is_too_long_fails_its_call_alone() {
        let (peer, _lines) = peer();
        let mut call = peer.request("m", None, LIMIT).await.unwrap();
        peer.receive_too_long(br#"{"jsonrpc":"2.0","id":1,"result":"xxx"#);
        let CallEvent::Done(Err(CallError::Lost(reason))) = call.next().await else { panic!() };
        assert!(reason.contains("16 MiB"), "{reason}");
        assert!(!peer.ended.is_cancelled());
        peer.receive_too_long(b"xxx");
        assert!(peer.ended.is_cancelled());
    }
}
