//! Owns the agent's endpoint: MCP over streamable HTTP, with sessions opened by `initialize`.

mod call;
mod session;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::any;
use futures_util::stream::{self, Stream, StreamExt};
use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use self::call::ToolCall;
use self::session::{Session, Sessions};
use super::guard::Guard;
use super::metrics::Metrics;
use super::offer::Offer;
use super::upstream::UpstreamLink;
use crate::protocol::mcp::{self, code, header as mcp_header, method};
use crate::protocol::object::raw;
use crate::protocol::{ErrorObject, Id, Message, Object, RawJson};

/// The largest request body, in bytes.
const MAX_BODY: usize = 64 << 20;

/// How often a stream with nothing to say says so.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// What the endpoint is made of.
pub struct Agent {
    pub offers: watch::Receiver<Arc<Offer<UpstreamLink>>>,
    pub guard: Guard,
    pub metrics: Arc<Metrics>,
    /// This process's id, by which it knows itself when it meets itself.
    pub instance: String,
    pub list_wait: Duration,
    /// Ends every stream, so that the server can end.
    pub closing: CancellationToken,
}

struct Endpoint {
    agent: Agent,
    sessions: Sessions,
}

/// The routes of the endpoint.
pub fn router(agent: Agent) -> Router {
    let endpoint = Arc::new(Endpoint { agent, sessions: Sessions::default() });
    Router::new()
        .route("/mcp", any(handle))
        .fallback(|| async { (StatusCode::NOT_FOUND, "the MCP endpoint is /mcp\n") })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(endpoint)
}

async fn handle(
    State(endpoint): State<Arc<Endpoint>>,
    verb: axum::http::Method,
    headers: HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response {
    if let Err((status, message)) = endpoint.agent.guard.check(&headers) {
        return problem(status, code::INVALID_REQUEST, message);
    }
    if let Some(version) = text(&headers, mcp_header::PROTOCOL_VERSION)
        && !mcp::INITIALIZE_VERSIONS.contains(&version)
    {
        let message =
            format!("protocol version {version} is not served; {} is the newest", mcp::LATEST_INITIALIZE);
        return problem(StatusCode::BAD_REQUEST, code::INVALID_REQUEST, message);
    }
    match (verb.as_str(), body) {
        ("POST", Ok(body)) => endpoint.post(&headers, &body).await,
        ("POST", Err(rejection)) => problem(rejection.status(), code::INVALID_REQUEST, rejection.body_text()),
        ("GET", _) => endpoint.get(&headers),
        ("DELETE", _) => match text(&headers, mcp_header::SESSION_ID) {
            Some(id) if endpoint.sessions.close(id) => StatusCode::NO_CONTENT.into_response(),
            Some(_) => no_session(),
            None => session_needed(),
        },
        _ => (StatusCode::METHOD_NOT_ALLOWED, [(header::ALLOW, "GET, POST, DELETE")]).into_response(),
    }
}

impl Endpoint {
    async fn post(self: &Arc<Self>, headers: &HeaderMap, body: &[u8]) -> Response {
        if !media_types(headers, header::CONTENT_TYPE).any(|kind| kind == "application/json") {
            let message = "the Content-Type must be application/json";
            return problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, code::INVALID_REQUEST, message);
        }
        let message = match Message::parse(body) {
            Ok(message) => message,
            Err(error) => return problem(StatusCode::BAD_REQUEST, error.code(), error.to_string()),
        };
        if let Message::Request { id, method, params } = &message
            && method == method::INITIALIZE
        {
            return self.initialize(id, params.as_ref());
        }
        let session = match text(headers, mcp_header::SESSION_ID) {
            None => return session_needed(),
            Some(id) => match self.sessions.get(id) {
                None => return no_session(),
                Some(session) => session,
            },
        };
        match message {
            Message::Request { id, method, params } => {
                self.request(headers, &session, id, &method, params).await
            }
            Message::Notification { method, params } => {
                if method == method::CANCELLED
                    && let Some(id) = params.as_deref().and_then(cancelled_id)
                {
                    session.cancel(&id);
                }
                StatusCode::ACCEPTED.into_response()
            }
            // Nothing is asked of agents, so no response is waited for.
            Message::Response { .. } => StatusCode::ACCEPTED.into_response(),
        }
    }

    fn initialize(&self, id: &Id, params: Option<&RawJson>) -> Response {
        let asked = params.and_then(|params| Object::parse(params).ok()?.get::<String>("protocolVersion"));
        let Some(asked) = asked else {
            let error =
                ErrorObject::new(code::INVALID_PARAMS, "initialize needs params with a protocolVersion");
            return json(&Message::response(id.clone(), Err(error)));
        };
        let version =
            mcp::INITIALIZE_VERSIONS.into_iter().find(|v| *v == asked).unwrap_or(mcp::LATEST_INITIALIZE);
        let session = match self.sessions.open(self.agent.offers.borrow().revision) {
            Ok(session) => session,
            Err(message) => return problem(StatusCode::SERVICE_UNAVAILABLE, code::INTERNAL_ERROR, message),
        };
        let result = InitializeResult {
            protocol_version: version,
            capabilities: Capabilities { tools: ListChanged { list_changed: true } },
            server_info: ServerInfo {
                name: env!("CARGO_PKG_NAME"),
                title: "MCP Reconciler",
                version: env!("CARGO_PKG_VERSION"),
            },
            instructions: "Tools of several servers, each named <server>__<tool>. The list changes while you are \
                           connected.",
            meta: [(mcp::INSTANCE_META, self.agent.instance.as_str())].into(),
        };
        let mut response = json(&Message::response(id.clone(), Ok(raw(&result))));
        let id = HeaderValue::from_str(&session.id).expect("hex digits are a header value");
        response.headers_mut().insert(mcp_header::SESSION_ID, id);
        response
    }

    async fn request(
        self: &Arc<Self>,
        headers: &HeaderMap,
        session: &Arc<Session>,
        id: Id,
        method: &str,
        params: Option<RawJson>,
    ) -> Response {
        let Some(in_flight) = session.begin(id.clone()) else {
            let error = ErrorObject::new(code::INVALID_REQUEST, "a request with this id is in flight");
            return json(&Message::response(id, Err(error)));
        };
        match method {
            method::PING => json(&Message::response(id, Ok(raw(&serde_json::Map::new())))),
            method::TOOLS_LIST => {
                let listed = in_flight.token.run_until_cancelled(self.list_tools(session)).await;
                match listed {
                    Some(tools) => json(&Message::response(id, Ok(tools))),
                    None => StatusCode::ACCEPTED.into_response(),
                }
            }
            method::TOOLS_CALL => {
                let Agent { offers, metrics, .. } = &self.agent;
                match ToolCall::new(id.clone(), params, offers.clone(), in_flight, metrics.clone()) {
                    Ok(call) => self.answer(headers, stream::unfold(call, ToolCall::next)).await,
                    Err(error) => json(&Message::response(id, Err(error))),
                }
            }
            _ => {
                let error = ErrorObject::new(code::METHOD_NOT_FOUND, format!("no such method: {method}"));
                json(&Message::response(id, Err(error)))
            }
        }
    }

    /// The tools, as soon as every server has had its first attempt or the wait is over: many agents take their
    /// first list for good.
    async fn list_tools(&self, session: &Session) -> RawJson {
        let mut offers = self.agent.offers.clone();
        let asked = Instant::now();
        // Before the first plan the wait counts from the question, so that a read that hangs delays no list for ever.
        let planned = offers.wait_for(|offer| offer.list_deadline.is_some());
        let planned = timeout_at(asked + self.agent.list_wait, planned).await;
        if let Ok(Ok(offer)) = planned.map(|planned| planned.map(|offer| offer.list_deadline)) {
            let deadline = offer.unwrap_or(asked);
            // Whether all came or the time is over, what is up is listed.
            let _ = timeout_at(deadline, offers.wait_for(|offer| offer.settled)).await;
        }
        let (revision, tools) = {
            let offer = offers.borrow();
            (offer.revision, offer.tools.clone())
        };
        session.saw(revision);
        tools.as_ref().clone()
    }

    /// Messages that end with a response: as an event stream, whose headers leave at once, or for an agent that
    /// does not take one, the response alone.
    async fn answer(
        &self,
        headers: &HeaderMap,
        messages: impl Stream<Item = Message> + Send + 'static,
    ) -> Response {
        let accepts = |kind| accepts(headers, kind);
        if accepts("text/event-stream") || !accepts("application/json") {
            return event_stream(messages.take_until(self.agent.closing.clone().cancelled_owned()));
        }
        let responses = messages.filter(|message| {
            let keep = matches!(message, Message::Response { .. });
            async move { keep }
        });
        match std::pin::pin!(responses).next().await {
            Some(response) => json(&response),
            None => StatusCode::ACCEPTED.into_response(),
        }
    }

    fn get(self: &Arc<Self>, headers: &HeaderMap) -> Response {
        if !accepts(headers, "text/event-stream") {
            return problem(StatusCode::NOT_ACCEPTABLE, code::INVALID_REQUEST, "GET gives text/event-stream");
        }
        let session = match text(headers, mcp_header::SESSION_ID).map(|id| self.sessions.get(id)) {
            None => return session_needed(),
            Some(None) => return no_session(),
            Some(Some(session)) => session,
        };
        let ended = session.ended.clone();
        let changes =
            stream::unfold((session.open_stream(), session, self.agent.offers.clone()), next_change);
        event_stream(
            changes
                .take_until(ended.cancelled_owned())
                .take_until(self.agent.closing.clone().cancelled_owned()),
        )
    }
}

type Watcher = (session::OpenStream, Arc<Session>, watch::Receiver<Arc<Offer<UpstreamLink>>>);

/// One notification for each change that the session was not told of. Several streams of one session share them.
async fn next_change((stream, session, mut offers): Watcher) -> Option<(Message, Watcher)> {
    loop {
        let revision = offers.borrow_and_update().revision;
        if session.claim(revision) {
            let message = Message::notification(method::TOOLS_LIST_CHANGED, None);
            return Some((message, (stream, session, offers)));
        }
        offers.changed().await.ok()?;
    }
}

fn event_stream(messages: impl Stream<Item = Message> + Send + 'static) -> Response {
    let events = messages
        .map(|message| Ok::<_, Infallible>(Event::default().event("message").data(message.to_json())));
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response();
    // Proxies that buffer would hold every notification back.
    response.headers_mut().insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn json(message: &Message) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], Body::from(message.to_json())).into_response()
}

fn problem(status: StatusCode, code: i64, message: impl Into<String>) -> Response {
    let message = Message::Response { id: None, reply: Err(ErrorObject::new(code, message)) };
    (status, json(&message)).into_response()
}

fn no_session() -> Response {
    problem(StatusCode::NOT_FOUND, code::INVALID_REQUEST, "no such session; send initialize again")
}

fn session_needed() -> Response {
    problem(StatusCode::BAD_REQUEST, code::INVALID_REQUEST, "Mcp-Session-Id is needed; send initialize first")
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// The media types of a header, without their parameters, in lower case.
fn media_types(headers: &HeaderMap, name: header::HeaderName) -> impl Iterator<Item = String> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|kind| kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    let family = kind.split('/').next().unwrap_or_default();
    !headers.contains_key(header::ACCEPT)
        || media_types(headers, header::ACCEPT)
            .any(|accepted| accepted == kind || accepted == "*/*" || accepted == format!("{family}/*"))
}

fn cancelled_id(params: &serde_json::value::RawValue) -> Option<Id> {
    Object::parse(params).ok()?.0.get("requestId").and_then(|id| Id::parse(id))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InitializeResult<'a> {
    protocol_version: &'a str,
    capabilities: Capabilities,
    server_info: ServerInfo<'a>,
    instructions: &'a str,
    #[serde(rename = "_meta")]
    meta: std::collections::BTreeMap<&'a str, &'a str>,
}

#[derive(Serialize)]
struct Capabilities {
    tools: ListChanged,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListChanged {
    list_changed: bool,
}

#[derive(Serialize)]
struct ServerInfo<'a> {
    name: &'a str,
    title: &'a str,
    version: &'a str,
}
