//! Nothing of a project's own files runs before a person approved it.

use mcp_reconciler::sources::digest::{Form, digest};
use mcp_reconciler::sources::json;
use rustix::process::Signal;
use serde_json::{Value, json as value};

use crate::support::sidecar::{World, exists};
use crate::support::{peers, until};

/// A server that leaves a mark when it is started.
fn marking(world: &World) -> Value {
    let script = format!("touch {}; exec \"$0\" demo-server", world.path("mark").display());
    value!({ "command": "sh", "args": ["-c", script, crate::support::sidecar::BINARY] })
}

fn approve(world: &World, name: &str, entry: &Value, status: &str) {
    let node = json::parse(&entry.to_string()).expect("JSON");
    let hash = digest(node.map("entry").expect("a map"), Form::McpJson, name).expect("a digest").to_hex();
    let root = world.path("w").display().to_string();
    let store = value!({ root: { name: { "hash": hash, "status": status } } });
    world.save("home/.qwen/mcpApprovals.json", &store.to_string());
}

#[tokio::test]
async fn an_unapproved_server_is_never_spawned_and_its_skip_is_counted_once() {
    let world = World::new();
    world.project(&value!({ "p": marking(&world) }));
    world.user(&value!({ "u": peers::demo() }));
    let sidecar = world.start(&["--resync", "1s"]).await;
    sidecar.until_connected(&["u"]).await;
    for n in 0..3 {
        sidecar.signal(Signal::HUP);
        sidecar.read_again(|world| world.user(&value!({ "u": peers::demo(), "n": { "command": n } }))).await;
    }
    let server = sidecar.server("p").await;
    assert_eq!(
        (server["state"].as_str(), server["reason"].as_str()),
        (Some("refused"), Some("pending_approval"))
    );
    let skips = sidecar.metric("mcp_reconciler_skips_total").await;
    let of_p: Vec<_> = skips.iter().filter(|(labels, _)| labels.contains("server=\"p\"")).collect();
    assert_eq!(of_p, [(&"{reason=\"pending_approval\",server=\"p\"}".to_owned(), &1.0)]);
    assert_eq!(sidecar.metric("mcp_reconciler_approvals_pending").await.into_values().sum::<f64>(), 1.0);

    let once = sidecar.world.run(&["--reconcile-once", "--output", "json"]);
    assert_eq!(once.status.code(), Some(4), "n is invalid: {once:?}");
    sidecar.world.user(&value!({ "u": peers::demo() }));
    let once = sidecar.world.run(&["--reconcile-once", "--output", "json"]);
    assert_eq!(once.status.code(), Some(0), "{once:?}");
    let strict = sidecar.world.run(&["--reconcile-once", "--fail-on-pending"]);
    assert_eq!(strict.status.code(), Some(4), "{strict:?}");
    assert!(!exists(&sidecar.world.path("mark")), "it was never started");
    assert_eq!(sidecar.children().len(), 1);
}

#[tokio::test]
async fn an_approval_starts_it_an_edit_stops_it_and_a_rejection_lets_the_users_own_run() {
    let world = World::new();
    let entry = marking(&world);
    world.project(&value!({ "p": entry }));
    world.user(&value!({ "p": peers::demo() }));
    let sidecar = world.start(&[]).await;
    let pending = |status: &Value| status["servers"][0]["reason"] == "pending_approval";
    let status = sidecar.until("it waits", pending).await;
    assert_eq!(status["servers"][0]["overrides"], "user");
    assert!(sidecar.children().is_empty(), "the lower entry does not run instead");

    approve(&sidecar.world, "p", &entry, "approved");
    sidecar.until_connected(&["p"]).await;
    assert!(exists(&sidecar.world.path("mark")));

    let mut edited = entry.clone();
    edited["timeout"] = value!(5000);
    sidecar.world.project(&value!({ "p": edited }));
    sidecar.until("the edit waits", pending).await;
    until("no child", || async { sidecar.children().is_empty().then_some(()) }).await;

    approve(&sidecar.world, "p", &edited, "rejected");
    let status = sidecar.until_connected(&["p"]).await;
    assert_eq!(status["servers"][0]["scope"], "user");
}

#[tokio::test]
async fn lists_and_ceiling_and_trust_decide_who_runs_and_apply_live() {
    let world = World::new();
    let settings = |more: Value| {
        let mut settings =
            value!({ "mcpServers": { "a1": peers::demo(), "a2": peers::demo(), "b": peers::demo() } });
        let more = more.as_object().cloned().expect("a map");
        settings.as_object_mut().expect("a map").extend(more);
        settings.to_string()
    };
    world.save("home/.qwen/settings.json", &settings(value!({})));
    let sidecar = world.start(&["--allowed-mcp-server-names", "a*"]).await;
    sidecar.until_connected(&["a1", "a2"]).await;
    assert_eq!(sidecar.server("b").await["reason"], "not_allowed");
    for (more, connected) in [
        (value!({ "mcp": { "excluded": ["A1"] } }), &["a2"][..]),
        (value!({ "mcp": { "allowed": ["a1", "b"] } }), &["a1"]),
        (value!({ "mcp": { "allowed": [] } }), &[]),
        (value!({ "security": { "folderTrust": { "enabled": true } } }), &[]),
        (value!({}), &["a1", "a2"]),
    ] {
        sidecar.world.save("home/.qwen/settings.json", &settings(more));
        sidecar.until_connected(connected).await;
        until("the others to end", || async { (sidecar.children().len() == connected.len()).then_some(()) })
            .await;
    }
}

#[tokio::test]
async fn an_entry_that_is_this_sidecar_is_refused_as_itself() {
    let world = World::new();
    world.user(&value!({}));
    let sidecar = world.start(&[]).await;
    let by_address = value!({ "httpUrl": sidecar.mcp.replace("127.0.0.1", "localhost") });
    sidecar.world.user(&value!({ "mcp-reconciler": by_address, "good": peers::demo() }));
    sidecar.until_connected(&["good"]).await;
    assert_eq!(sidecar.server("mcp-reconciler").await["reason"], "itself");
}
