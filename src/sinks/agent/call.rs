//! Owns one `tools/call`: finds its server, waits where the server is on its way, and hands back what it says.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::session::InFlight;
use crate::controller::catalog::Connection;
use crate::controller::table::HoldKind;
use crate::protocol::mcp::{code, method};
use crate::protocol::object::raw;
use crate::protocol::{ErrorObject, Id, Message, Object, RawJson, Reply};
use crate::sinks::metrics::{CallTimer, Metrics, Outcome};
use crate::sinks::offer::{Lookup, Offer, Route};
use crate::sinks::upstream::{Call, CallError, CallEvent, UpstreamLink};

/// How often a call that never reached its server is sent again on a newer connection.
const RESENDS: u8 = 3;

/// A `tools/call` on its way.
pub struct ToolCall {
    id: Id,
    name: String,
    params: Object,
    offers: watch::Receiver<Arc<Offer<UpstreamLink>>>,
    in_flight: InFlight,
    metrics: Arc<Metrics>,
    state: State,
}

enum State {
    New,
    Sent { call: Call, route: Route, timer: CallTimer, resends: u8 },
    Answered,
}

/// Why a call ends without its server's answer.
enum Failure {
    /// The request itself is wrong: a protocol error.
    Request(ErrorObject),
    /// The agent's model should read it: a tool result that says so.
    Tool { reason: &'static str, message: String },
}

impl ToolCall {
    /// A call by the agent's `params`.
    ///
    /// # Errors
    /// When the parameters name no tool.
    pub fn new(
        id: Id,
        params: Option<RawJson>,
        offers: watch::Receiver<Arc<Offer<UpstreamLink>>>,
        in_flight: InFlight,
        metrics: Arc<Metrics>,
    ) -> Result<Self, ErrorObject> {
        let params = params.and_then(|params| Object::parse(&params).ok());
        let Some((params, name)) =
            params.and_then(|params| Some((params.get::<String>("name")?, params))).map(|(n, p)| (p, n))
        else {
            return Err(ErrorObject::new(code::INVALID_PARAMS, "tools/call needs params with a name"));
        };
        Ok(ToolCall { id, name, params, offers, in_flight, metrics, state: State::New })
    }

    /// The next message for the agent; nothing after the response, or when the call was cancelled.
    pub async fn next(mut self) -> Option<(Message, Self)> {
        let token = self.in_flight.token.clone();
        let message = token.run_until_cancelled(self.step()).await??;
        Some((message, self))
    }

    async fn step(&mut self) -> Option<Message> {
        loop {
            match std::mem::replace(&mut self.state, State::Answered) {
                State::Answered => return None,
                State::New => match self.send(RESENDS).await {
                    Ok(sent) => self.state = sent,
                    Err(failure) => return Some(self.answer(failure)),
                },
                State::Sent { mut call, route, timer, resends } => match call.next().await {
                    CallEvent::Notification { method, params } => {
                        self.state = State::Sent { call, route, timer, resends };
                        return Some(Message::Notification { method, params });
                    }
                    CallEvent::Done(Ok(reply)) => {
                        timer.done(outcome(&reply));
                        return Some(Message::response(self.id.clone(), reply));
                    }
                    CallEvent::Done(Err(CallError::NotSent)) if resends > 0 => {
                        timer.forget();
                        match self.send(resends - 1).await {
                            Ok(sent) => self.state = sent,
                            Err(failure) => return Some(self.answer(failure)),
                        }
                    }
                    CallEvent::Done(Err(error)) => {
                        timer.done(match &error {
                            CallError::Timeout(_) => Outcome::Timeout,
                            CallError::NotSent | CallError::Lost(_) => Outcome::Lost,
                        });
                        let message = match error {
                            CallError::NotSent => format!("server {} could not be reached", route.server),
                            CallError::Lost(why) => {
                                format!("server {} was lost during the call: {why}", route.server)
                            }
                            CallError::Timeout(limit) => {
                                format!(
                                    "server {} did not answer within {} s",
                                    route.server,
                                    limit.as_secs_f64()
                                )
                            }
                        };
                        return Some(self.answer(Failure::Tool { reason: "failed", message }));
                    }
                },
            }
        }
    }

    /// Finds the server and sends the call, waiting for a connection where one is on its way.
    async fn send(&mut self, resends: u8) -> Result<State, Failure> {
        let (route, link, limit) = self.connection().await?;
        let timer = self.metrics.call(&route.server);
        let mut params = self.params.clone();
        params.set("name", &route.tool);
        match link.request(method::TOOLS_CALL, params, limit).await {
            Ok(call) => Ok(State::Sent { call, route, timer, resends }),
            Err(error) => {
                timer.done(Outcome::Unavailable);
                Err(Failure::Tool { reason: "failed", message: format!("server {}: {error}", route.server) })
            }
        }
    }

    async fn connection(&mut self) -> Result<(Route, UpstreamLink, Duration), Failure> {
        let mut deadline = None;
        loop {
            let (route, kind) = {
                let offer = self.offers.borrow_and_update().clone();
                let (route, served) = match offer.look_up(&self.name) {
                    Lookup::Found(route, served) => (route, served),
                    Lookup::Absent(absent) => {
                        return Err(Failure::Tool { reason: absent.reason, message: absent.message.clone() });
                    }
                    Lookup::NoSuchTool(server) if deadline.is_some() => {
                        let message = format!("server {server} no longer has the tool {}", self.name);
                        return Err(Failure::Tool { reason: "no_such_tool", message });
                    }
                    Lookup::NoSuchTool(server) => return Err(unknown(&self.name, Some(server.as_str()))),
                    Lookup::Unknown => return Err(unknown(&self.name, None)),
                };
                match &served.connection {
                    // A link that has ended is about to be replaced in the offer.
                    Connection::Live(link) if !link.is_closed() => {
                        return Ok((route.clone(), link.clone(), served.spec.timeout));
                    }
                    Connection::Live(_) => {
                        deadline.get_or_insert(Instant::now() + crate::controller::catalog::RECONNECT_WAIT);
                        (route.clone(), HoldKind::Reconnecting)
                    }
                    Connection::Awaited { kind, at_most } => {
                        deadline.get_or_insert(Instant::now() + *at_most);
                        (route.clone(), *kind)
                    }
                }
            };
            let until = deadline.unwrap_or_else(Instant::now);
            match timeout_at(until, self.offers.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => {
                    return Err(Failure::Tool {
                        reason: "closing",
                        message: "the sidecar is shutting down".into(),
                    });
                }
                Err(_) => {
                    self.metrics.call(&route.server).done(Outcome::Unavailable);
                    let (reason, what) = match kind {
                        HoldKind::Reconnecting => ("reconnecting", "is reconnecting; try again"),
                        HoldKind::Replacing => {
                            ("connecting", "is being replaced and did not come up in time")
                        }
                    };
                    return Err(Failure::Tool { reason, message: format!("server {} {what}", route.server) });
                }
            }
        }
    }

    fn answer(&self, failure: Failure) -> Message {
        let reply = match failure {
            Failure::Request(error) => Err(error),
            Failure::Tool { reason, message } => Ok(tool_error(reason, &message)),
        };
        Message::response(self.id.clone(), reply)
    }
}

fn unknown(name: &str, server: Option<&str>) -> Failure {
    let message = match server {
        Some(server) => format!("Unknown tool: {name}: server {server} has no such tool"),
        None => format!("Unknown tool: {name}: no server of that name is configured"),
    };
    Failure::Request(ErrorObject::new(code::INVALID_PARAMS, message))
}

/// A tool result that says why there is none: agents show these to their model, protocol errors they hide.
fn tool_error(reason: &str, message: &str) -> RawJson {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Result<'a> {
        content: [Text<'a>; 1],
        is_error: bool,
    }
    #[derive(Serialize)]
    struct Text<'a> {
        r#type: &'a str,
        text: String,
    }
    raw(&Result { content: [Text { r#type: "text", text: format!("{message} ({reason})") }], is_error: true })
}

fn outcome(reply: &Reply) -> Outcome {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Peek {
        #[serde(default)]
        is_error: bool,
    }
    match reply {
        Ok(result) => match serde_json::from_str::<Peek>(result.get()) {
            Ok(Peek { is_error: true }) => Outcome::ToolError,
            Ok(Peek { is_error: false }) | Err(_) => Outcome::Ok,
        },
        Err(_) => Outcome::Error,
    }
}
