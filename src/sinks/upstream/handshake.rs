//! Decides whether what answers is a server that can be served: opens by `initialize` and lists everything.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::CallError;
use super::peer::Peer;
use crate::controller::connector::{OpenError, OpenReason};
use crate::model::{Item, Listing};
use crate::protocol::mcp::{self, method};
use crate::protocol::{Object, RawJson};

/// The most pages of one list.
const MAX_PAGES: usize = 1000;

/// What a server says that it has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Offers {
    pub tools: bool,
    pub prompts: bool,
    pub resources: bool,
}

/// What `initialize` is answered with, as far as it is read.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Initialized {
    protocol_version: String,
    #[serde(default)]
    capabilities: Capabilities,
    #[serde(default, rename = "_meta")]
    meta: Option<IndexMap<String, RawJson>>,
}

#[derive(Default, Deserialize)]
struct Capabilities {
    tools: Option<RawJson>,
    prompts: Option<RawJson>,
    resources: Option<RawJson>,
}

/// Opens the protocol. Gives the revision and what the server has.
///
/// # Errors
/// When the server does not answer as one that speaks a revision known here, or is this very sidecar.
pub async fn initialize(
    peer: &Arc<Peer>,
    instance: &str,
    limit: Duration,
) -> Result<(String, Offers), OpenError> {
    let params = json!({
        "protocolVersion": mcp::LATEST_INITIALIZE,
        "capabilities": { "roots": {} },
        "clientInfo": { "name": "mcp-reconciler", "version": env!("CARGO_PKG_VERSION") },
        "_meta": { mcp::INSTANCE_META: instance },
    });
    let result = ask(peer, method::INITIALIZE, Some(params), limit).await?;
    let protocol = |message: String| OpenError { reason: OpenReason::Protocol, message };
    let Initialized { protocol_version, capabilities, meta } = serde_json::from_str(result.get())
        .map_err(|_| protocol("its answer to initialize has no protocolVersion".to_owned()))?;
    let met = meta.and_then(|meta| serde_json::from_str::<String>(meta.get(mcp::INSTANCE_META)?.get()).ok());
    if met.as_deref() == Some(instance) {
        return Err(OpenError {
            reason: OpenReason::Itself,
            message: "the server is this sidecar".to_owned(),
        });
    }
    if !mcp::INITIALIZE_VERSIONS.contains(&protocol_version.as_str()) {
        let known = mcp::INITIALIZE_VERSIONS.join(", ");
        let version = peer.mask.line(&protocol_version);
        return Err(protocol(format!("it speaks MCP {version:?}; known here are {known}")));
    }
    let Capabilities { tools, prompts, resources } = capabilities;
    let offers =
        Offers { tools: tools.is_some(), prompts: prompts.is_some(), resources: resources.is_some() };
    Ok((protocol_version, offers))
}

/// Everything that the server lists. Prompts and resources that cannot be listed are none; tools are what it is for.
///
/// # Errors
/// When the tools cannot be listed.
pub async fn list(peer: &Arc<Peer>, offers: Offers, limit: Duration) -> Result<Listing, OpenError> {
    let tools = match offers.tools {
        true => pages(peer, method::TOOLS_LIST, "tools", "name", limit).await?,
        false => Vec::new(),
    };
    let mut others = Vec::new();
    for (offered, method, member, key) in [
        (offers.prompts, method::PROMPTS_LIST, "prompts", "name"),
        (offers.resources, method::RESOURCES_LIST, "resources", "uri"),
    ] {
        others.push(match offered {
            true => pages(peer, method, member, key, limit).await.unwrap_or_else(|error| {
                tracing::debug!(server = %peer.name, method, %error, "taken for an empty list");
                Vec::new()
            }),
            false => Vec::new(),
        });
    }
    let resources = others.pop().unwrap_or_default();
    let prompts = others.pop().unwrap_or_default();
    Ok(Listing { tools: Arc::new(tools), prompts: Arc::new(prompts), resources: Arc::new(resources) })
}

/// All pages of one list.
async fn pages(
    peer: &Arc<Peer>,
    method: &'static str,
    member: &str,
    key: &str,
    limit: Duration,
) -> Result<Vec<Item>, OpenError> {
    let protocol = |message| OpenError { reason: OpenReason::Protocol, message };
    let mut items = Vec::new();
    let mut cursor: Option<String> = None;
    let mut seen = HashSet::new();
    for _ in 0..MAX_PAGES {
        let params = cursor.as_ref().map(|cursor| json!({ "cursor": cursor }));
        let page = ask(peer, method, params, limit).await?;
        let page =
            Object::parse(&page).map_err(|_| protocol(format!("its answer to {method} is no object")))?;
        let found: Vec<RawJson> = page
            .get(member)
            .ok_or_else(|| protocol(format!("its answer to {method} has no list of {member}")))?;
        for raw in found {
            match item(&raw, key) {
                Some(item) => items.push(item),
                None => tracing::warn!(server = %peer.name, method, "an item without a {key} was left out"),
            }
        }
        match page.get::<String>("nextCursor") {
            None => return Ok(items),
            Some(next) if seen.insert(next.clone()) => cursor = Some(next),
            Some(_) => return Err(protocol(format!("its pages of {method} go round in a circle"))),
        }
    }
    Err(protocol(format!("its answer to {method} has more than {MAX_PAGES} pages")))
}

/// One item, if it is an object with a text at `key`. One bad item must not cost the whole list.
fn item(raw: &RawValue, key: &str) -> Option<Item> {
    let fields = Object::parse(raw).ok()?;
    let key = fields.get::<String>(key)?;
    Some(Item { key, fields: fields.0 })
}

/// One request and its result.
async fn ask(
    peer: &Arc<Peer>,
    method: &'static str,
    params: Option<serde_json::Value>,
    limit: Duration,
) -> Result<RawJson, OpenError> {
    let params =
        params.map(|params| Object::parse(&crate::protocol::object::raw(&params)).unwrap_or_default());
    let answer = match peer.request(method, params, limit).await {
        Ok(call) => call.answer().await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(Ok(result)) => Ok(result),
        Ok(Err(error)) => Err(OpenError {
            reason: OpenReason::Protocol,
            message: format!("{method} was answered with {}", peer.mask.line(&error.to_string())),
        }),
        Err(error) => Err(failure(peer, method, &error)),
    }
}

/// Why a request of the handshake has no answer, in the words of whoever must act.
fn failure(peer: &Peer, method: &str, error: &CallError) -> OpenError {
    let reason = match error {
        CallError::Timeout(_) => OpenReason::Timeout,
        CallError::NotSent | CallError::Lost(_) if peer.needs_auth.get().is_some() => OpenReason::NeedsAuth,
        CallError::NotSent if peer.is_http() => OpenReason::Unreachable,
        CallError::NotSent | CallError::Lost(_) => OpenReason::Closed,
    };
    let what = match error {
        CallError::Timeout(_) => format!("{method} was not answered"),
        CallError::NotSent => peer.reason(),
        CallError::Lost(why) => why.clone(),
    };
    let garbage = peer.garbage().map(|line| format!("; its stdout is not MCP: {line:?}")).unwrap_or_default();
    OpenError { reason, message: format!("{what}{garbage}") }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::Receiver;

    use super::super::peer::tests::peer;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    /// Answers each request with the next of `results`.
    fn answers(peer: &Arc<Peer>, mut lines: Receiver<String>, results: &[&str]) {
        let results: Vec<String> = results.iter().map(|text| (*text).to_owned()).collect();
        let peer = peer.clone();
        tokio::spawn(async move {
            for result in results {
                let Some(line) = lines.recv().await else { return };
                let id = serde_json::from_str::<serde_json::Value>(&line).unwrap()["id"].clone();
                peer.receive(format!(r#"{{"jsonrpc":"2.0","id":{id},{result}}}"#).as_bytes());
            }
        });
    }

    #[tokio::test]
    async fn every_page_is_listed_and_a_malformed_item_left_out() {
        let (peer, lines) = peer();
        let pages = [
            r#""result":{"tools":[{"name":"a","x":1e400},{"title":"nameless"},7],"nextCursor":""}"#,
            r#""result":{"tools":[{"name":"b"}],"nextCursor":"c"}"#,
            r#""result":{"tools":[]}"#,
            r#""error":{"code":-32601,"message":"no prompts"}"#,
        ];
        answers(&peer, lines, &pages);
        let offers = Offers { tools: true, prompts: true, resources: false };
        let listing = list(&peer, offers, LIMIT).await.unwrap();
        let tools: Vec<_> = listing.tools.iter().map(|item| item.key.as_str()).collect();
        assert_eq!(tools, ["a", "b"]);
        assert_eq!(listing.tools[0].fields["x"].get(), "1e400");
        assert!(listing.prompts.is_empty());
    }

    #[tokio::test]
    async fn pages_that_go_round_in_a_circle_end() {
        let (peer, lines) = peer();
        answers(&peer, lines, &[r#""result":{"tools":[],"nextCursor":"c"}"#; 3]);
        let error = list(&peer, Offers { tools: true, ..Offers::default() }, LIMIT).await.unwrap_err();
        assert!(error.message.contains("circle"), "{error}");
    }

    #[tokio::test]
    async fn a_server_is_taken_by_its_answer_to_initialize() {
        let me = mcp::INSTANCE_META;
        let itself = format!(r#""result":{{"protocolVersion":"2025-06-18","_meta":{{"{me}":"me"}}}}"#);
        for (answer, expected) in [
            (r#""result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}}}"#, Ok(true)),
            (r#""result":{"protocolVersion":"2024-11-05"}"#, Ok(false)),
            (r#""result":{"protocolVersion":"2099-01-01"}"#, Err(OpenReason::Protocol)),
            (r#""result":{}"#, Err(OpenReason::Protocol)),
            (r#""error":{"code":-32000,"message":"no"}"#, Err(OpenReason::Protocol)),
            (itself.as_str(), Err(OpenReason::Itself)),
        ] {
            let (peer, lines) = peer();
            answers(&peer, lines, &[answer]);
            let found = initialize(&peer, "me", LIMIT).await;
            assert_eq!(
                found.map(|(_, offers)| offers.tools).map_err(|error| error.reason),
                expected,
                "{answer}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_writes_something_else_is_told_of_in_the_time_outs_text() {
        let (peer, _lines) = peer();
        peer.receive(b"Listening on port 1");
        let error = initialize(&peer, "me", LIMIT).await.unwrap_err();
        assert_eq!(error.reason, OpenReason::Timeout);
        assert_eq!(
            error.message,
            "initialize was not answered; its stdout is not MCP: \"Listening on port 1\""
        );
    }
}
