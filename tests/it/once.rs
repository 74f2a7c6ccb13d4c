//! One convergence: its report, its exit codes, and that nothing is left running.

use std::process::Output;

use serde_json::{Value, json};

use crate::support::peers;
use crate::support::sidecar::World;

fn once(world: &World, args: &[&str]) -> (Option<i32>, Value) {
    let Output { status, stdout, stderr } =
        world.run(&[&["--reconcile-once", "--output", "json"], args].concat());
    let report = serde_json::from_slice(&stdout).unwrap_or_else(|error| {
        panic!("{error}: {} {}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr))
    });
    (status.code(), report)
}

#[test]
fn a_convergence_reports_what_it_connected_and_leaves_nothing_running() {
    let world = World::new();
    let record = |name: &str| {
        let script = format!("echo $$$$ > {}; exec \"$0\" demo-server", world.path(name).display());
        json!({ "command": "sh", "args": ["-c", script, crate::support::sidecar::BINARY] })
    };
    world.user(&json!({ "a": record("a.pid"), "b": record("b.pid") }));
    let (code, report) = once(&world, &[]);
    assert_eq!((code, report["result"].as_str()), (Some(0), Some("converged")));
    assert_eq!(report["schemaVersion"], 1);
    assert!(report["duration_seconds"].is_number());
    let servers: Vec<_> =
        report["servers"].as_array().unwrap().iter().map(|s| (&s["state"], &s["tools"])).collect();
    assert_eq!(servers, [(&json!("connected"), &json!(3)), (&json!("connected"), &json!(3))]);
    for name in ["a.pid", "b.pid"] {
        let pid = std::fs::read_to_string(world.path(name)).unwrap();
        assert!(!crate::support::process::lives(pid.trim().parse().unwrap()), "{name}");
    }
}

#[test]
fn each_outcome_has_its_exit_code() {
    let fails = json!({ "command": "no-such-program-anywhere" });
    let hangs = peers::silent();
    let cases: [(Value, &[&str], i32, &str); 6] = [
        (json!({}), &[], 0, "converged"),
        (json!({ "a": fails, "b": peers::demo() }), &[], 4, "partial"),
        (json!({ "a": 7 }), &[], 4, "partial"),
        (json!({ "a": { "type": "sdk" } }), &[], 4, "partial"),
        (json!({ "a": hangs }), &["--timeout", "1s"], 5, "timeout"),
        (json!({}), &["--config", "no-such-file.json"], 3, "invalid"),
    ];
    for (servers, args, code, result) in cases {
        let world = World::new();
        world.user(&servers);
        let (found, report) = once(&world, args);
        assert_eq!((found, report["result"].as_str()), (Some(code), Some(result)), "{servers} {args:?}");
    }
    let world = World::new();
    world.write("home/.qwen/settings.json", "{");
    assert_eq!(once(&world, &[]).0, Some(3));
    assert_eq!(world.run(&["--reconcile-once", "--no-such-flag"]).status.code(), Some(2));
    assert_eq!(
        world.run(&["--reconcile-once", "--timeout", "5"]).status.code(),
        Some(2),
        "a duration needs its unit"
    );
}

#[test]
fn the_text_report_is_a_table_with_what_to_do() {
    let world = World::new();
    world.user(&json!({ "good": peers::demo(), "odd": { "type": "sdk" } }));
    let output = world.run(&["--reconcile-once"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().any(|line| line.starts_with("good") && line.contains("connected")), "{text}");
    assert!(text.contains("odd: to do: use command, httpUrl"), "{text}");
}

#[test]
fn it_binds_no_port_and_so_runs_beside_the_sidecar() {
    let world = World::new();
    world.user(&json!({ "a": peers::demo() }));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert_eq!(once(&world, &["--listen", &address]).0, Some(0));
    let refused = world.run(&["--listen", &address]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains(&address));
}
