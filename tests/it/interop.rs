//! Clients and servers that are not ours.

use std::process::Command;

use serde_json::{Value, json};

use crate::support::agent::{Agent, text};
use crate::support::peers;
use crate::support::sidecar::{Sidecar, World};

fn inspector(sidecar: &Sidecar, args: &[&str]) -> Value {
    let output = Command::new(peers::npm("mcp-inspector"))
        .args(["--cli", &sidecar.mcp, "--transport", "http"])
        .args(args)
        .output()
        .expect("the inspector runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&stdout)
        .unwrap_or_else(|error| panic!("{error}: {stdout} {}", String::from_utf8_lossy(&output.stderr)))
}

#[tokio::test]
async fn the_inspector_lists_and_calls_the_tools_of_a_real_server() {
    let world = World::new();
    world.user(&json!({ "everything": peers::everything() }));
    let sidecar = world.start(&[]).await;
    sidecar.until_connected(&["everything"]).await;
    let listed = inspector(&sidecar, &["--method", "tools/list"]);
    let tools = listed["tools"].as_array().expect("tools");
    assert!(tools.iter().any(|tool| tool["name"] == "everything__echo"), "{listed}");
    let call = ["--method", "tools/call", "--tool-name", "everything__echo", "--tool-arg", "message=hello"];
    let called = inspector(&sidecar, &call);
    assert_eq!(called["content"][0]["text"], "Echo: hello");
}

#[tokio::test]
async fn real_servers_answer_through_the_python_client() {
    let world = World::new();
    world.write("w/note.txt", "a note");
    world.user(&json!({ "files": peers::filesystem(&[&world.path("w")]), "clock": peers::time() }));
    let sidecar = world.start(&[]).await;
    sidecar.until_connected(&["clock", "files"]).await;
    let mut agent = Agent::connect(&sidecar.mcp).await;
    let note = sidecar.world.path("w/note.txt");
    let read = agent.call("files__read_text_file", json!({ "path": note })).await;
    assert_eq!(text(&read), "a note");
    let time = agent.call("clock__get_current_time", json!({ "timezone": "UTC" })).await;
    assert!(text(&time).contains("UTC"), "{time}");
    let wrong = agent.call("clock__get_current_time", json!({ "timezone": "Nowhere" })).await;
    assert_eq!(wrong["ok"]["isError"], true, "{wrong}");
}
