//! Bad input loses nothing and stops nobody else.

use serde_json::{Value, json};

use crate::support::agent::{Agent, text};
use crate::support::sidecar::World;
use crate::support::{peers, until};

fn user_source(status: &Value) -> Value {
    let sources = status["sources"].as_array().expect("sources");
    sources.iter().find(|source| source["scope"] == "user").cloned().expect("the user's")
}

#[tokio::test]
async fn a_half_written_empty_or_broken_file_changes_nothing_and_is_told_with_its_place() {
    let world = World::new();
    world.user(&json!({ "a": peers::demo() }));
    let sidecar = world.start(&[]).await;
    sidecar.until_connected(&["a"]).await;
    let child = sidecar.children();
    for (text, place) in [
        ("{\n  \"mcpServers\": {\n", ":2:17: "),
        ("", ": it is empty"),
        ("{\n  \"mcpServers\": { \"a\": 1, }\n  \"b\": 2 }", ":2:"),
        ("{ \"mcp\": { \"allowed\": null } }", ":1:23: mcp.allowed: a list is needed, found null"),
        ("{ \"x\": 1,\n \"x\": 2 }", ":2:2: the key \"x\" stands here a second time"),
    ] {
        sidecar.world.write("home/.qwen/settings.json", text);
        let status = sidecar
            .until(&format!("{place} told"), |status| {
                user_source(status)["error"].as_str().is_some_and(|error| error.contains(place))
            })
            .await;
        assert_eq!(user_source(&status)["state"], "bad");
        assert_eq!(sidecar.server("a").await["state"], "connected");
        assert_eq!(sidecar.children(), child);
    }
    sidecar.world.user(&json!({ "a": peers::demo() }));
    sidecar.until("good again", |status| user_source(status)["state"] == "good").await;
    assert_eq!(sidecar.children(), child);
}

#[tokio::test]
async fn a_deletion_is_believed_after_its_grace_and_not_at_once() {
    let world = World::new();
    world.user(&json!({ "a": peers::demo() }));
    let sidecar = world.start(&["--resync", "1h"]).await;
    sidecar.until_connected(&["a"]).await;
    let child = sidecar.children();
    sidecar
        .read_again(|world| std::fs::remove_file(world.path("home/.qwen/settings.json")).expect("removed"))
        .await;
    assert_eq!(sidecar.children(), child, "it may be a save");
    sidecar.until("nothing wanted", |status| status["servers"] == json!([])).await;
    until("no child", || async { sidecar.children().is_empty().then_some(()) }).await;
}

#[tokio::test]
async fn one_bad_entry_is_invalid_alone() {
    let world = World::new();
    world.user(&json!({
        "args": { "command": "c", "args": true },
        "good": peers::demo(),
        "list": [],
        "unset": { "command": "${NOT_SET_ANYWHERE}" },
    }));
    let sidecar = world.start(&[]).await;
    sidecar.until_connected(&["good"]).await;
    for (name, needle) in [
        ("args", "mcpServers.args.args: a list is needed, found true or false"),
        ("list", "mcpServers.list: a map is needed, found a list"),
        ("unset", "mcpServers.unset.command: the variable NOT_SET_ANYWHERE is not set"),
    ] {
        let server = sidecar.server(name).await;
        assert_eq!((server["state"].as_str(), server["reason"].as_str()), (Some("refused"), Some("invalid")));
        let message = server["message"].as_str().expect("a message");
        assert!(message.contains("settings.json:") && message.contains(needle), "{message}");
    }
}

#[tokio::test]
async fn servers_that_do_not_start_speak_garbage_or_end_fail_alone_and_say_why() {
    let world = World::new();
    let shell = |script: &str| json!({ "command": "sh", "args": ["-c", script], "discoveryTimeoutMs": 1000 });
    world.user(&json!({
        "absent": { "command": "no-such-program-anywhere" },
        "cwd": { "command": "sh", "cwd": "/no/such/directory" },
        "ends": shell("echo cannot open the database >&2; exit 3"),
        "garbage": shell("while :; do echo Listening on port 1; read line || exit; done"),
        "good": peers::demo(),
        "silent": shell("exec sleep 600"),
    }));
    let sidecar = world.start(&["--list-wait", "0"]).await;
    sidecar.until_connected(&["good"]).await;
    for (name, needle) in [
        ("absent", "no-such-program-anywhere"),
        ("cwd", "/no/such/directory"),
        ("ends", "cannot open the database"),
        ("garbage", "Listening on port 1"),
        ("silent", ""),
    ] {
        sidecar
            .until(&format!("{name} to say {needle:?}"), |status| {
                let servers = status["servers"].as_array().expect("servers");
                servers.iter().any(|server| {
                    server["name"] == name
                        && server["last_error"].as_str().is_some_and(|error| error.contains(needle))
                })
            })
            .await;
    }
    let mut agent = Agent::connect(&sidecar.mcp).await;
    assert_eq!(text(&agent.call("good__echo", json!({ "message": "x" })).await), "x");
    let answer = agent.call("absent__tool", json!({})).await;
    assert!(answer["ok"]["isError"] == true && text(&answer).contains("absent"), "{answer}");
}

#[tokio::test]
async fn an_unknown_tool_is_a_clear_error() {
    let world = World::new();
    world.user(&json!({ "a": peers::demo() }));
    let sidecar = world.start(&[]).await;
    sidecar.until_connected(&["a"]).await;
    let mut agent = Agent::connect(&sidecar.mcp).await;
    for (name, needle) in
        [("a__nothing", "server a has no such tool"), ("nobody__x", "no server of that name")]
    {
        let answer = agent.call(name, json!({})).await;
        assert_eq!(answer["error"]["code"], -32602, "{answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|m| m.contains(needle)), "{answer}");
    }
}
