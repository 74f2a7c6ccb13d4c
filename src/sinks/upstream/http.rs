//! Owns the connection to a streamable HTTP server: a POST for each message, and a stream for what the server begins.

use std::error::Error;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, redirect};
use secrecy::{ExposeSecret, SecretString};
use serde_json::value::RawValue;
use sse_stream::SseByteStream;
use tokio::time::{Instant, timeout};
use url::{Host, Url};

use super::CallError;
use super::framing::MAX_MESSAGE;
use super::link::Life;
use super::mask::Mask;
use super::peer::{Peer, Wire};
use crate::controller::connector::{OpenError, OpenReason};
use crate::model::{Headers, Root, ServerName};
use crate::protocol::Message;
use crate::protocol::mcp::header;

/// How long the server may take to hear that its session is over.
const FAREWELL: Duration = Duration::from_secs(1);

/// How much is read of an answer that is an error.
const MAX_ERROR: usize = 64 * 1024;

/// How long a server's stream must last to count as one that works.
const STABLE: Duration = Duration::from_secs(60);

/// The longest pause before a stream is asked for again.
const MAX_PAUSE: Duration = Duration::from_secs(32);

/// The HTTP clients that all connections share, made when the first one needs them.
#[derive(Default)]
pub struct Clients {
    direct: OnceLock<Client>,
    proxied: OnceLock<Client>,
}

impl Clients {
    /// The client for `url`: no proxy leads to this machine itself.
    fn get(&self, url: &Url) -> reqwest::Result<Client> {
        let here = match url.host() {
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => ip.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        };
        let cell = if here { &self.direct } else { &self.proxied };
        if let Some(client) = cell.get() {
            return Ok(client.clone());
        }
        let builder = Client::builder()
            .redirect(redirect::Policy::custom(follow))
            .connect_timeout(Duration::from_secs(10));
        let client = if here { builder.no_proxy() } else { builder }.build()?;
        Ok(cell.get_or_init(|| client).clone())
    }
}

/// Only within the origin: headers with credentials are for it alone.
fn follow(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let same = attempt.previous().iter().all(|url| url.origin() == attempt.url().origin());
    if same && attempt.previous().len() <= 5 { attempt.follow() } else { attempt.stop() }
}

/// The way to one server.
#[derive(Clone)]
pub struct HttpWire(Arc<Inner>);

struct Inner {
    client: Client,
    url: SecretString,
    /// What of the URL may be shown.
    origin: String,
    headers: HeaderMap,
    session: OnceLock<HeaderValue>,
    version: OnceLock<HeaderValue>,
    life: Life,
}

/// Why an exchange failed.
enum Failure {
    /// Nothing reached the server, and nothing will.
    NotSent(String),
    /// It asks for credentials.
    NeedsAuth(String),
    /// It no longer knows the session.
    Gone(String),
    /// This exchange alone.
    Lost(String),
}

impl HttpWire {
    /// # Errors
    /// When the client cannot be made.
    pub fn new(clients: &Clients, url: &SecretString, headers: &Headers) -> Result<Self, OpenError> {
        let protocol =
            |message: &str| OpenError { reason: OpenReason::Protocol, message: message.to_owned() };
        let parsed = Url::parse(url.expose_secret()).map_err(|_| protocol("its URL cannot be read"))?;
        let client = clients.get(&parsed).map_err(|error| protocol(&root_cause(&error)))?;
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| protocol("a header has no valid name"))?;
            let value = HeaderValue::from_str(value.expose_secret());
            let mut value = value.map_err(|_| protocol("a header has no valid value"))?;
            value.set_sensitive(true);
            map.insert(name, value);
        }
        Ok(HttpWire(Arc::new(Inner {
            client,
            url: url.clone(),
            origin: parsed.origin().ascii_serialization(),
            headers: map,
            session: OnceLock::new(),
            version: OnceLock::new(),
            life: Life::default(),
        })))
    }

    /// The connection over this wire. It reaches out only when something is sent.
    pub fn open(self, name: ServerName, root: Root, mask: Mask) -> (Arc<Peer>, Life) {
        let life = self.0.life.clone();
        let peer = Peer::new(name, mask, root, Wire::Http(self.clone()));
        tokio::spawn({
            let (peer, life) = (peer.clone(), life.clone());
            async move {
                let _ = life.closing.run_until_cancelled(peer.ended.cancelled()).await;
                peer.end("the connection was closed".to_owned());
                self.say_farewell().await;
                life.closed.cancel();
            }
        });
        (peer, life)
    }

    async fn say_farewell(&self) {
        if self.0.session.get().is_some() {
            let _ = timeout(FAREWELL, self.ask(Method::DELETE).send()).await;
        }
    }

    /// The revision that was agreed on; every further request names it.
    pub fn agreed(&self, version: &str) {
        if let Ok(version) = HeaderValue::from_str(version) {
            let _ = self.0.version.set(version);
        }
    }

    fn ask(&self, method: Method) -> RequestBuilder {
        let Inner { client, url, headers, session, version, .. } = &*self.0;
        let mut request = client.request(method, url.expose_secret()).headers(headers.clone());
        for (name, value) in [(header::SESSION_ID, session.get()), (header::PROTOCOL_VERSION, version.get())]
        {
            if let Some(value) = value {
                request = request.header(name, value.clone());
            }
        }
        request
    }

    /// Carries one request, until its answer has been handed on.
    pub async fn carry(self, peer: Arc<Peer>, id: u64, body: String) {
        let failure = match self.exchange(&peer, Some(id), body).await {
            Ok(()) => Failure::Lost("its answer ended without a response".to_owned()),
            Err(failure) => failure,
        };
        match failure {
            Failure::NotSent(reason) => peer.end_unsent(id, reason),
            Failure::Lost(what) => drop(peer.pending.finish(id, Err(CallError::Lost(what)))),
            Failure::NeedsAuth(_) | Failure::Gone(_) => self.end(&peer, failure),
        }
    }

    /// Carries what needs no answer.
    pub async fn post_aside(self, peer: Arc<Peer>, body: String) {
        let exchange = self.0.life.closing.run_until_cancelled(self.exchange(&peer, None, body)).await;
        if let Some(Err(failure)) = exchange {
            self.end(&peer, failure);
        }
    }

    /// Draws the consequence of a failure for the connection.
    fn end(&self, peer: &Peer, failure: Failure) {
        match failure {
            Failure::NeedsAuth(reason) => {
                let _ = peer.needs_auth.set(());
                peer.end(reason);
            }
            Failure::NotSent(reason) | Failure::Gone(reason) => peer.end(reason),
            Failure::Lost(reason) => {
                tracing::debug!(server = %peer.name, reason, "a message may not have arrived")
            }
        }
    }

    async fn exchange(&self, peer: &Arc<Peer>, id: Option<u64>, body: String) -> Result<(), Failure> {
        let request = self
            .ask(Method::POST)
            .header(ACCEPT, "application/json, text/event-stream")
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        let response = request.send().await.map_err(|error| self.failure(&error))?;
        if let Some(session) = response.headers().get(header::SESSION_ID) {
            let _ = self.0.session.set(session.clone());
        }
        let status = response.status();
        self.check(status)?;
        if !status.is_success() {
            // The error may be told in JSON-RPC all the same.
            let body = self.body(response, MAX_ERROR).await?;
            if matches!(Message::parse(&body), Ok(Message::Response { id: Some(_), .. })) {
                peer.receive(&body);
                return Ok(());
            }
            return Err(Failure::Lost(format!("{} answered with HTTP {}", self.0.origin, status.as_u16())));
        }
        match media_type(&response).as_deref() {
            Some("text/event-stream") => {
                let mut events = std::pin::pin!(events(response));
                while let Some(event) = events.next().await {
                    peer.receive(event.map_err(|error| self.lost(&error))?.as_bytes());
                    if id.is_some_and(|id| !peer.pending.awaits(id)) {
                        // Read to its end the connection can be used again.
                        let _ = timeout(FAREWELL, events.by_ref().for_each(async |_| {})).await;
                    }
                }
            }
            Some("application/json") => {
                let body = self.body(response, MAX_MESSAGE).await?;
                match serde_json::from_slice::<Vec<&RawValue>>(&body) {
                    Ok(batch) => batch.iter().for_each(|message| peer.receive(message.get().as_bytes())),
                    Err(_) => peer.receive(&body),
                }
            }
            _ if id.is_none() || status == StatusCode::ACCEPTED || status == StatusCode::NO_CONTENT => {}
            kind => {
                let kind = kind.unwrap_or("nothing").to_owned();
                return Err(Failure::Lost(format!("{} answered with {kind} instead of JSON", self.0.origin)));
            }
        }
        Ok(())
    }

    fn check(&self, status: StatusCode) -> Result<(), Failure> {
        let origin = &self.0.origin;
        if status == StatusCode::UNAUTHORIZED || status == StatusCode::FORBIDDEN {
            Err(Failure::NeedsAuth(format!("{origin} asks for credentials (HTTP {})", status.as_u16())))
        } else if status == StatusCode::NOT_FOUND && self.0.session.get().is_some() {
            Err(Failure::Gone(format!("{origin} no longer knows the session")))
        } else {
            Ok(())
        }
    }

    /// The whole body of an answer.
    async fn body(&self, response: Response, limit: usize) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        let mut chunks = response.bytes_stream();
        while let Some(chunk) = chunks.next().await {
            body.extend_from_slice(&chunk.map_err(|error| self.lost(&error))?);
            if body.len() > limit {
                return Err(Failure::Lost(format!(
                    "{} answered with more than {limit} bytes",
                    self.0.origin
                )));
            }
        }
        Ok(body)
    }

    fn failure(&self, error: &reqwest::Error) -> Failure {
        let text = format!("{} cannot be reached: {}", self.0.origin, root_cause(error));
        if error.is_connect() { Failure::NotSent(text) } else { Failure::Lost(text) }
    }

    fn lost(&self, error: &(dyn Error + 'static)) -> Failure {
        Failure::Lost(format!("the answer of {} broke off: {}", self.0.origin, root_cause(error)))
    }

    /// Keeps the stream open on which the server says what no request asked for, if it has one.
    pub async fn listen(self, peer: Arc<Peer>) {
        let listening = async {
            let mut pause = Duration::from_secs(1);
            loop {
                let began = Instant::now();
                if let Err(failure) = self.listen_once(&peer).await {
                    match failure {
                        Some(failure) => self.end(&peer, failure),
                        None => return,
                    }
                }
                if began.elapsed() >= STABLE {
                    pause = Duration::from_secs(1);
                }
                tokio::time::sleep(pause).await;
                pause = MAX_PAUSE.min(pause * 2);
                // What changed while nobody listened was told to nobody.
                peer.list_changed.notify_one();
            }
        };
        let _ = peer.ended.run_until_cancelled(listening).await;
    }

    /// One stream, to its end. An error of nothing means that the server has no such stream.
    async fn listen_once(&self, peer: &Arc<Peer>) -> Result<(), Option<Failure>> {
        let request = self.ask(Method::GET).header(ACCEPT, "text/event-stream");
        let response = request.send().await.map_err(|error| Some(self.failure(&error)))?;
        self.check(response.status()).map_err(Some)?;
        if !response.status().is_success() || media_type(&response).as_deref() != Some("text/event-stream") {
            return Err(None);
        }
        let mut events = std::pin::pin!(events(response));
        while let Some(event) = events.next().await {
            peer.receive(event.map_err(|error| Some(self.lost(&error)))?.as_bytes());
        }
        Ok(())
    }
}

/// The messages of an event stream.
fn events(response: Response) -> impl Stream<Item = Result<String, sse_stream::Error>> {
    // How much has come since the last event: one that never ends must not fill the memory.
    let since = Arc::new(AtomicUsize::new(0));
    let bytes = response.bytes_stream().map({
        let since = since.clone();
        move |chunk| {
            let chunk = chunk.map_err(|error| io::Error::other(root_cause(&error)))?;
            match since.fetch_add(chunk.len(), Ordering::Relaxed) > MAX_MESSAGE {
                true => Err(io::Error::other("an event is too large")),
                false => Ok(chunk),
            }
        }
    });
    SseByteStream::new(bytes).filter_map(move |event| {
        since.store(0, Ordering::Relaxed);
        let message = event.map(|event| event.data.filter(|data| !data.is_empty())).transpose();
        async move { message }
    })
}

fn media_type(response: &Response) -> Option<String> {
    let value = response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next()?.trim().to_ascii_lowercase())
}

/// The innermost reason, which holds no URL.
fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.downcast_ref::<reqwest::Error>() {
        Some(_) => "the HTTP exchange failed".to_owned(),
        None => cause.to_string(),
    }
}
