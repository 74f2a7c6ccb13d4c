//! One agent session lives through every edit, and only what differs is touched.

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::agent::{Agent, text};
use crate::support::process::lives;
use crate::support::sidecar::{World, signal_process};
use crate::support::{peers, until};

/// The three real servers, with what a test adds.
fn real(world: &World, more: &[(&str, Value)]) -> Value {
    let mut servers = json!({
        "everything": peers::everything(),
        "files": peers::filesystem(&[&world.path("w")]),
        "clock": peers::time(),
    });
    for (name, server) in more {
        servers[*name] = server.clone();
    }
    servers
}

#[tokio::test]
async fn a_call_and_its_session_survive_adding_changing_reformatting_and_removing_servers() {
    let world = World::new();
    world.user(&real(&world, &[]));
    let sidecar = world.start(&[]).await;
    sidecar.until_connected(&["clock", "everything", "files"]).await;
    let mut agent = Agent::connect(&sidecar.mcp).await;
    let before = agent.tools_by_server().await;
    assert_eq!(before.keys().collect::<Vec<_>>(), ["clock", "everything", "files"]);
    let (clock, everything) = (sidecar.child("mcp-server-time"), sidecar.child("mcp-server-everything"));
    let files = sidecar.child("mcp-server-filesystem");

    let long = json!({ "duration": 6, "steps": 12 });
    let long = agent.start_call("everything__trigger-long-running-operation", long, true).await;
    until("the long call to be under way", || async { (!agent.progress(long).is_empty()).then_some(()) })
        .await;

    // Added: callable on the same session, told once.
    sidecar.world.user(&real(&sidecar.world, &[("late", peers::demo())]));
    agent.until_list_changed(1).await;
    assert_eq!(agent.tools_by_server().await.get("late"), Some(&3));
    assert_eq!(text(&agent.call("late__add", json!({ "a": 2, "b": 3 })).await), "5");
    let late = sidecar.child("demo-server");

    // Changed: that process alone is another.
    let mut changed = real(&sidecar.world, &[("late", peers::demo())]);
    changed["files"] = peers::filesystem(&[&sidecar.world.path("w"), &sidecar.world.path("home")]);
    sidecar.world.user(&changed);
    until("another process", || async {
        let pid = sidecar.children().iter().find(|c| c.command.contains("filesystem")).map(|c| c.pid);
        pid.filter(|pid| *pid != files)
    })
    .await;
    sidecar.until_connected(&["clock", "everything", "files", "late"]).await;
    let files = sidecar.child("mcp-server-filesystem");
    let pids = || ["time", "everything", "filesystem", "demo-server"].map(|name| sidecar.child(name));
    assert_eq!(pids(), [clock, everything, files, late]);

    // Reformatted, with its keys in another order: nothing.
    sidecar
        .read_again(|world| {
            let order = ["late", "files", "everything", "clock"];
            let entries: Vec<_> =
                order.iter().map(|name| format!("  \"{name}\": {}", changed[name])).collect();
            let text = format!("// mine\n{{\"mcpServers\": {{\n{},\n}}}}\n", entries.join(",\n"));
            world.save("home/.qwen/settings.json", &text);
        })
        .await;
    assert_eq!(pids(), [clock, everything, files, late]);

    // Removed: its tools are gone, and its process.
    let mut removed = changed.clone();
    removed.as_object_mut().expect("a map").remove("late");
    sidecar.world.user(&removed);
    agent.until_list_changed(2).await;
    assert_eq!(agent.tools_by_server().await, before);
    until("the process to end", || async { (!lives(late)).then_some(()) }).await;
    let gone = agent.call("late__add", json!({ "a": 2, "b": 3 })).await;
    assert!(gone["error"]["message"].as_str().is_some_and(|m| m.contains("late__add")), "{gone}");

    let answer = agent.answer(long).await;
    assert!(text(&answer).contains("completed"), "{answer}");
    assert_eq!(agent.progress(long).len(), 12);
    assert_eq!(agent.list_changed(), 2, "one for each change that agents see");
    let restarts = |status: &Value| {
        let servers = status["servers"].as_array().expect("servers").clone();
        servers.into_iter().map(|s| s["restarts"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(restarts(&sidecar.status().await), [0, 0, 1], "only the changed one, once");
}

#[tokio::test]
async fn a_killed_child_comes_back_with_no_edit_and_on_the_same_session() {
    let world = World::new();
    world.user(&json!({ "a": peers::demo(), "b": peers::demo_with_env("b") }));
    let sidecar = world.start(&["--resync", "1h"]).await;
    sidecar.until_connected(&["a", "b"]).await;
    let mut agent = Agent::connect(&sidecar.mcp).await;
    let before = sidecar.children();
    signal_process(before[0].pid, Signal::KILL);
    until("a new process", || async {
        let now = sidecar.children();
        (now.len() == 2 && now != before).then_some(())
    })
    .await;
    sidecar.until_connected(&["a", "b"]).await;
    for server in ["a", "b"] {
        assert_eq!(text(&agent.call(&format!("{server}__echo"), json!({ "message": "x" })).await), "x");
    }
    let restarts =
        [sidecar.server("a").await["restarts"].clone(), sidecar.server("b").await["restarts"].clone()];
    assert!(restarts == [1, 0] || restarts == [0, 1], "{restarts:?}");
    assert_eq!(agent.list_changed(), 0, "its tools stayed listed");
    let lost = sidecar.metric("mcp_reconciler_disconnects_total").await;
    assert_eq!(lost.iter().filter(|(labels, _)| labels.contains("lost")).map(|(_, v)| v).sum::<f64>(), 1.0);
}

#[tokio::test]
async fn a_server_that_hangs_in_initialize_delays_no_other() {
    let world = World::new();
    world.user(&json!({ "hangs": peers::silent(), "good": peers::demo() }));
    let sidecar = world.start(&["--list-wait", "0"]).await;
    sidecar.until_connected(&["good"]).await;
    let mut agent = Agent::connect(&sidecar.mcp).await;
    assert_eq!(text(&agent.call("good__echo", json!({ "message": "x" })).await), "x");
    sidecar.world.user(&json!({ "hangs": peers::silent(), "good": peers::demo(), "later": peers::demo() }));
    sidecar.until_connected(&["good", "later"]).await;
    assert_eq!(text(&agent.call("later__echo", json!({ "message": "y" })).await), "y");
    assert_eq!(sidecar.server("hangs").await["state"], "connecting");
}

#[tokio::test]
async fn a_call_waits_for_the_server_that_replaces_another() {
    let world = World::new();
    world.user(&json!({ "a": peers::demo() }));
    let sidecar = world.start(&[]).await;
    sidecar.until_connected(&["a"]).await;
    let mut agent = Agent::connect(&sidecar.mcp).await;
    let old = agent.start_call("a__sleep", json!({ "seconds": 2 }), true).await;
    until("the call to be under way", || async { (!agent.progress(old).is_empty()).then_some(()) }).await;
    sidecar.world.user(&json!({ "a": peers::demo_with_env("2") }));
    sidecar.until("the drain", |status| status["servers"][0]["state"] == "draining").await;
    let new = agent.call("a__echo", json!({ "message": "new" })).await;
    assert_eq!(text(&new), "new");
    let old = agent.answer(old).await;
    assert!(old["ok"]["isError"] != true, "the old call finished: {old}");
    assert_eq!(agent.list_changed(), 0, "the tools are the same");
}

#[tokio::test]
async fn a_cancelled_call_is_cancelled_at_its_server() {
    let world = World::new();
    world.user(&json!({ "a": peers::demo() }));
    let sidecar = world.start(&[]).await;
    sidecar.until_connected(&["a"]).await;
    let mut agent = Agent::connect(&sidecar.mcp).await;
    let call = agent.start_call("a__sleep", json!({ "seconds": 600 }), true).await;
    until("the call to be under way", || async { (!agent.progress(call).is_empty()).then_some(()) }).await;
    agent.send(json!({ "op": "cancel", "target": call })).await;
    // The server is idle again, so that its removal has nothing to drain.
    sidecar.world.user(&json!({}));
    sidecar.until("nothing left", |status| status["servers"] == json!([])).await;
    assert!(sidecar.children().is_empty());
}

#[tokio::test]
async fn terminate_ends_it_with_success_and_leaves_no_child() {
    let world = World::new();
    let stubborn = "trap '' TERM; sleep 600 & exec \"$0\" demo-server";
    let stubborn = json!({ "command": "sh", "args": ["-c", stubborn, crate::support::sidecar::BINARY] });
    world.user(&real(&world, &[("silent", peers::silent()), ("stubborn", stubborn)]));
    let mut sidecar = world.start(&["--drain", "1s"]).await;
    sidecar.until_connected(&["clock", "everything", "files", "stubborn"]).await;
    let children = sidecar.children();
    assert_eq!(children.len(), 5, "{children:?}");
    let below: Vec<_> =
        children.iter().flat_map(|child| crate::support::process::children(child.pid)).collect();
    assert!(below.iter().any(|process| process.command.contains("sleep")), "{below:?}");
    assert_eq!(sidecar.terminate().await.code(), Some(0));
    let left: Vec<_> = children.iter().chain(&below).filter(|process| lives(process.pid)).collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(
        !crate::support::sidecar::exists(&sidecar.world.path("run/mcp-reconciler")) || {
            let runs = std::fs::read_dir(sidecar.world.path("run/mcp-reconciler")).expect("a directory");
            runs.count() == 0
        }
    );
}

#[tokio::test]
async fn an_http_server_is_served_and_comes_back_when_it_does() {
    let upstream = World::new();
    upstream.user(&json!({ "demo": peers::demo() }));
    let mut upstream = upstream.start(&[]).await;
    upstream.until_connected(&["demo"]).await;
    let world = World::new();
    world.user(&json!({ "far": { "httpUrl": upstream.mcp } }));
    let sidecar = world.start(&["--resync", "1h"]).await;
    sidecar.until_connected(&["far"]).await;
    let mut agent = Agent::connect(&sidecar.mcp).await;
    let call = agent.start_call("far__demo__sleep", json!({ "seconds": 1 }), true).await;
    agent.answer(call).await;
    assert!(agent.progress(call).len() >= 3);

    // What the far side adds is told here.
    upstream.world.user(&json!({ "demo": peers::demo(), "more": peers::demo() }));
    agent.until_list_changed(1).await;
    assert_eq!(text(&agent.call("far__more__echo", json!({ "message": "x" })).await), "x");

    let address = upstream.mcp.trim_start_matches("http://").trim_end_matches("/mcp").to_owned();
    assert_eq!(upstream.terminate().await.code(), Some(0));
    sidecar.until("the loss", |status| status["servers"][0]["state"] != "connected").await;
    let again = World::new();
    again.user(&json!({ "demo": peers::demo() }));
    let again = again.start(&["--listen", &address]).await;
    again.until_connected(&["demo"]).await;
    sidecar.until_connected(&["far"]).await;
    assert_eq!(text(&agent.call("far__demo__echo", json!({ "message": "back" })).await), "back");
}
