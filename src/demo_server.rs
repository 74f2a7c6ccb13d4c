//! Owns the small MCP server for trying out: three tools over a pair of streams, by `initialize`.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::protocol::mcp::{self, code, method};
use crate::protocol::object::raw;
use crate::protocol::{ErrorObject, Id, Message, RawJson, Reply};

/// Messages that may wait for the other side to read.
const WAITING: usize = 64;

/// The longest time between two progress notifications.
const STEP: Duration = Duration::from_millis(500);

/// The fewest progress notifications of one sleep.
const FEWEST: f64 = 4.0;

/// Serves until the input ends.
///
/// # Errors
/// When reading or writing fails.
pub async fn run(
    stdin: impl AsyncRead + Unpin,
    stdout: impl AsyncWrite + Unpin + Send + 'static,
) -> io::Result<()> {
    let (out, messages) = mpsc::channel(WAITING);
    let writing = tokio::spawn(write(stdout, messages));
    let mut lines = BufReader::new(stdin).lines();
    let mut calls = JoinSet::new();
    let mut running: HashMap<Id, AbortHandle> = HashMap::new();
    while let Some(line) = lines.next_line().await? {
        while let Some(ended) = calls.try_join_next() {
            // A call that was cancelled has its entry removed already.
            if let Ok(id) = ended {
                running.remove(&id);
            }
        }
        match Message::parse(line.as_bytes()) {
            Ok(Message::Request { id, method, params }) => {
                let params =
                    params.and_then(|params| serde_json::from_str(params.get()).ok()).unwrap_or(Value::Null);
                let out = out.clone();
                let call = calls.spawn({
                    let id = id.clone();
                    async move {
                        let reply = answer(&method, &params, &out).await;
                        // Nobody listens any more: there is nothing left to do.
                        let _ = out.send(Message::response(id.clone(), reply)).await;
                        id
                    }
                });
                running.insert(id, call);
            }
            Ok(Message::Notification { method, params: Some(params) }) if method == method::CANCELLED => {
                let id = crate::protocol::Object::parse(&params).ok();
                let id = id.and_then(|params| Id::parse(params.0.get("requestId")?));
                if let Some(call) = id.and_then(|id| running.remove(&id)) {
                    call.abort();
                }
            }
            Ok(Message::Notification { .. } | Message::Response { .. }) => {}
            Err(error) => {
                let reply = Err(ErrorObject::new(error.code(), error.to_string()));
                let _ = out.send(Message::Response { id: None, reply }).await;
            }
        }
    }
    calls.abort_all();
    drop(out);
    writing.await.unwrap_or(Ok(()))
}

async fn write(mut stdout: impl AsyncWrite + Unpin, mut messages: mpsc::Receiver<Message>) -> io::Result<()> {
    while let Some(message) = messages.recv().await {
        stdout.write_all(format!("{}\n", message.to_json()).as_bytes()).await?;
        stdout.flush().await?;
    }
    Ok(())
}

async fn answer(method: &str, params: &Value, out: &mpsc::Sender<Message>) -> Reply {
    match method {
        method::INITIALIZE => Ok(raw(&initialize(params))),
        method::PING => Ok(raw(&json!({}))),
        method::TOOLS_LIST => Ok(raw(&json!({ "tools": tools() }))),
        method::TOOLS_CALL => call(params, out).await,
        _ => Err(ErrorObject::new(code::METHOD_NOT_FOUND, format!("no such method: {method}"))),
    }
}

fn initialize(params: &Value) -> Value {
    let asked = params["protocolVersion"].as_str().unwrap_or_default();
    let version =
        mcp::INITIALIZE_VERSIONS.iter().find(|known| **known == asked).unwrap_or(&mcp::LATEST_INITIALIZE);
    json!({
        "protocolVersion": version,
        "capabilities": { "tools": {} },
        "serverInfo": { "name": "mcp-reconciler-demo", "version": env!("CARGO_PKG_VERSION") },
    })
}

fn tools() -> Value {
    let schema = |properties: Value| {
        let required: Vec<&String> =
            properties.as_object().into_iter().flat_map(serde_json::Map::keys).collect();
        json!({ "type": "object", "properties": properties, "required": required })
    };
    json!([
        {
            "name": "echo",
            "description": "Gives back what it is given.",
            "inputSchema": schema(json!({ "message": { "type": "string" } })),
        },
        {
            "name": "add",
            "description": "Adds two numbers.",
            "inputSchema": schema(json!({ "a": { "type": "number" }, "b": { "type": "number" } })),
        },
        {
            "name": "sleep",
            "description": "Takes some time, and says how far it is.",
            "inputSchema": schema(json!({ "seconds": { "type": "number", "minimum": 0, "maximum": 3600 } })),
        },
    ])
}

async fn call(params: &Value, out: &mpsc::Sender<Message>) -> Reply {
    let arguments = &params["arguments"];
    let number = |name: &str| arguments[name].as_f64();
    let text = match params["name"].as_str() {
        Some("echo") => arguments["message"].as_str().map(str::to_owned).ok_or("message: text is needed"),
        Some("add") => number("a")
            .zip(number("b"))
            .map(|(a, b)| (a + b).to_string())
            .ok_or("a and b: numbers are needed"),
        Some("sleep") => match number("seconds").filter(|seconds| (0.0..=3600.0).contains(seconds)) {
            Some(seconds) => {
                sleep(seconds, &params["_meta"]["progressToken"], out).await;
                Ok(format!("slept {seconds} s"))
            }
            None => Err("seconds: a number from 0 to 3600 is needed"),
        },
        name => {
            let name = name.unwrap_or_default();
            return Err(ErrorObject::new(code::INVALID_PARAMS, format!("Unknown tool: {name}")));
        }
    };
    Ok(result(&text))
}

/// What is wrong with the arguments is for the model to read.
fn result(text: &Result<String, &str>) -> RawJson {
    let (text, is_error) = match text {
        Ok(text) => (text.as_str(), false),
        Err(error) => (*error, true),
    };
    raw(&json!({ "content": [{ "type": "text", "text": text }], "isError": is_error }))
}

async fn sleep(seconds: f64, token: &Value, out: &mpsc::Sender<Message>) {
    let steps = FEWEST.max((seconds / STEP.as_secs_f64()).ceil());
    let step = Duration::from_secs_f64(seconds / steps);
    let mut done = 0.0;
    while done < steps {
        tokio::time::sleep(step).await;
        done += 1.0;
        if !token.is_null() {
            let params = json!({ "progressToken": token, "progress": done, "total": steps });
            let _ = out.send(Message::notification(method::PROGRESS, Some(raw(&params)))).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{DuplexStream, Lines, ReadHalf, WriteHalf};

    use super::*;

    struct Client {
        lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
        input: WriteHalf<DuplexStream>,
    }

    fn client() -> Client {
        let (near, far) = tokio::io::duplex(4096);
        let (far_in, far_out) = tokio::io::split(far);
        tokio::spawn(run(far_in, far_out));
        let (near_in, input) = tokio::io::split(near);
        Client { lines: BufReader::new(near_in).lines(), input }
    }

    impl Client {
        async fn send(&mut self, message: Value) {
            self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        }

        async fn call(&mut self, id: u64, name: &str, arguments: Value) {
            let params = json!({ "name": name, "arguments": arguments, "_meta": { "progressToken": "t" } });
            self.send(json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params })).await;
        }

        async fn receive(&mut self) -> Value {
            serde_json::from_str(&self.lines.next_line().await.unwrap().unwrap()).unwrap()
        }
    }

    #[tokio::test]
    async fn it_opens_lists_and_answers() {
        let mut client = client();
        let params = json!({ "protocolVersion": "2025-03-26" });
        client.send(json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params })).await;
        assert_eq!(client.receive().await["result"]["protocolVersion"], "2025-03-26");
        client.send(json!({ "jsonrpc": "2.0", "id": 2, "method": "tools/list" })).await;
        let listed = client.receive().await;
        assert_eq!(listed["result"]["tools"][1]["inputSchema"]["required"], json!(["a", "b"]));
        client.call(3, "add", json!({ "a": 2, "b": 3.5 })).await;
        assert_eq!(client.receive().await["result"]["content"][0]["text"], "5.5");
        client.call(4, "add", json!({ "a": "2" })).await;
        assert_eq!(client.receive().await["result"]["isError"], true);
        client.call(5, "nothing", json!({})).await;
        assert_eq!(client.receive().await["error"]["code"], -32602);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_says_how_far_it_is_and_holds_up_no_other_call() {
        let mut client = client();
        client.call(1, "sleep", json!({ "seconds": 1 })).await;
        client.call(2, "echo", json!({ "message": "x" })).await;
        assert_eq!(client.receive().await["id"], 2);
        for step in 1..=4 {
            assert_eq!(client.receive().await["params"]["progress"], f64::from(step));
        }
        assert_eq!(client.receive().await["result"]["content"][0]["text"], "slept 1 s");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancelled_sleep_is_not_answered() {
        let mut client = client();
        client.call(1, "sleep", json!({ "seconds": 3600 })).await;
        client.receive().await;
        let params = json!({ "requestId": 1 });
        client.send(json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": params })).await;
        client.call(2, "echo", json!({ "message": "x" })).await;
        assert_eq!(client.receive().await["id"], 2);
        client.input.shutdown().await.unwrap();
        assert_eq!(client.lines.next_line().await.unwrap(), None);
    }
}
