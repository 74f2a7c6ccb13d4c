//! What the two endpoints answer, to whom, and what operators see.

use std::io::Write;
use std::process::{Command, Stdio};

use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::support::peers;
use crate::support::sidecar::{Sidecar, World};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;

fn post(sidecar: &Sidecar, body: &str) -> RequestBuilder {
    Client::new()
        .post(&sidecar.mcp)
        .header("accept", "application/json, text/event-stream")
        .header("content-type", "application/json")
        .body(body.to_owned())
}

async fn demo() -> Sidecar {
    let world = World::new();
    world.user(&json!({ "a": peers::demo() }));
    let sidecar = world.start(&[]).await;
    sidecar.until_connected(&["a"]).await;
    sidecar
}

#[tokio::test]
async fn a_foreign_host_or_origin_is_turned_away() {
    let sidecar = demo().await;
    let mut answers = Vec::new();
    for (name, value) in [
        ("host", "localhost"),
        ("host", "127.0.0.1:1"),
        ("host", "evil.example"),
        ("host", "127.0.0.1.evil.example"),
        ("origin", "http://localhost:3000"),
        ("origin", "http://evil.example"),
        ("origin", "null"),
    ] {
        answers.push(post(&sidecar, INITIALIZE).header(name, value).send().await.unwrap().status().as_u16());
    }
    assert_eq!(answers, [200, 200, 403, 403, 200, 403, 403]);
    let metrics = Client::new().get(format!("{}/metrics", sidecar.ops)).header("host", "evil.example");
    assert_eq!(metrics.send().await.unwrap().status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn a_token_is_asked_for_where_there_is_one() {
    let world = World::new();
    world.write("token", "secret-token\n");
    let token = world.path("token").display().to_string();
    let sidecar = world.start(&["--token-file", &token]).await;
    let with =
        |token: &str| post(&sidecar, INITIALIZE).header("authorization", format!("Bearer {token}")).send();
    assert_eq!(post(&sidecar, INITIALIZE).send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    assert_eq!(with("wrong-token").await.unwrap().status(), StatusCode::UNAUTHORIZED);
    assert_eq!(with("secret-token").await.unwrap().status(), StatusCode::OK);
    assert!(!sidecar.log().contains("secret-token"));
}

#[test]
fn an_address_beyond_loopback_needs_a_token() {
    let output = World::new().run(&["--listen", "0.0.0.0:0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("--token-file"));
}

#[tokio::test]
async fn sessions_begin_with_initialize_and_end_with_delete() {
    let sidecar = demo().await;
    let list = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
    assert_eq!(post(&sidecar, list).send().await.unwrap().status(), StatusCode::BAD_REQUEST);
    let opened = post(&sidecar, INITIALIZE).send().await.unwrap();
    let session = opened.headers()["mcp-session-id"].to_str().unwrap().to_owned();
    let result: Value = serde_json::from_str(&opened.text().await.unwrap()).unwrap();
    assert_eq!(result["result"]["protocolVersion"], "2025-11-25");
    assert_eq!(result["result"]["capabilities"]["tools"]["listChanged"], true);
    let with = |body: &str| post(&sidecar, body).header("mcp-session-id", &session);
    let listed: Value =
        serde_json::from_str(&with(list).send().await.unwrap().text().await.unwrap()).unwrap();
    let names: Vec<_> =
        listed["result"]["tools"].as_array().unwrap().iter().map(|t| t["name"].clone()).collect();
    assert_eq!(names, ["a__echo", "a__add", "a__sleep"]);
    let pong =
        with(r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#).send().await.unwrap().text().await.unwrap();
    assert_eq!(pong, r#"{"jsonrpc":"2.0","id":"p","result":{}}"#);
    let ended = Client::new().delete(&sidecar.mcp).header("mcp-session-id", &session).send().await.unwrap();
    assert!(ended.status().is_success());
    assert_eq!(with(list).send().await.unwrap().status(), StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn promtool_accepts_a_real_scrape() {
    let world = World::new();
    world.user(&json!({ "a": peers::demo(), "b": { "type": "sdk" } }));
    let sidecar = world.start(&[]).await;
    sidecar.until_connected(&["a"]).await;
    let scrape = sidecar.get("/metrics").await;
    for metric in ["connects_total", "disconnects_total", "skips_total", "server_state", "build_info"] {
        assert!(scrape.contains(&format!("# HELP mcp_reconciler_{metric} ")), "{metric}");
    }
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool; run tests/peers/install.sh, or make test");
    promtool.stdin.take().unwrap().write_all(scrape.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[tokio::test]
async fn probes_status_and_the_status_command_agree() {
    let sidecar = demo().await;
    assert_eq!(sidecar.get("/livez").await, "ok\n");
    assert_eq!(sidecar.get("/readyz").await, "ok\n");
    let command = sidecar.world.run(&["status", "--output", "json"]);
    let said: Value = serde_json::from_slice(&command.stdout).unwrap();
    let served = sidecar.status().await;
    assert_eq!(said, served);
    let text = String::from_utf8(sidecar.world.run(&["status", "a"]).stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with('a') && line.contains("connected")), "{text}");
    let nobody = World::new().run(&["status"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("no sidecar runs"));
}

#[tokio::test]
async fn logs_are_json_when_asked_for_and_hold_no_secret() {
    let world = World::new();
    let mut server = peers::demo();
    server["env"] = json!({ "TOKEN": "canary-secret-value" });
    world.user(&json!({ "a": server, "c": 7, "b": { "command": "sh", "args": ["-c", "echo canary-secret-value >&2; exit 1", "canary-secret-value"] } }));
    let sidecar = world.start(&["--log-format", "json", "--log-level", "debug"]).await;
    sidecar.until_connected(&["a"]).await;
    sidecar.until("b failed", |status| status["servers"][1]["last_error"].is_string()).await;
    let everything = [sidecar.log(), sidecar.status().await.to_string(), sidecar.get("/metrics").await];
    for text in &everything {
        assert!(!text.contains("canary"), "{text}");
    }
    for line in everything[0].lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["level"].is_string() && line["message"].is_string(), "{line}");
        assert!(!line["message"].as_str().unwrap().contains('/'), "what is told of stands in fields: {line}");
    }
}
