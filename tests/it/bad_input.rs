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

#[tokio::test]
async fn a_working_directory_that_appears_later_needs_no_edit() {
    let world = World::new();
    let mut server = peers::demo();
    server["cwd"] = json!("late");
    world.user(&json!({ "a": server }));
    let sidecar = world.start(&["--resync", "1h"]).await;
    sidecar
        .until("the directory named", |status| {
            let error = status["servers"][0]["last_error"].as_str();
            error.is_some_and(|error| error.contains("/w/late is no directory"))
        })
        .await;
    std::fs::create_dir(sidecar.world.path("w/late")).unwrap();
    sidecar.until_connected(&["a"]).await;
}

/// A secret of its own for every field that can hold one.
#[tokio::test]
async fn a_secret_of_any_field_of_any_file_shows_nowhere() {
    let world = World::new();
    let canary = |n: usize| format!("canary{n:04}");
    let stdio = |n: usize, more: Value| {
        let mut server = json!({ "command": "sh", "args": ["-c", "echo $TOKEN $0 $1 | tr = ' ' >&2; exit 1", canary(n), format!("--key={}", canary(n + 1))], "env": { "TOKEN": canary(n + 2) } });
        server.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server
    };
    let http = |n: usize, more: Value| {
        let url = format!(
            "http://{}:{}@127.0.0.1:1/{}?key={}",
            canary(n),
            canary(n + 1),
            canary(n + 2),
            canary(n + 3)
        );
        let mut server =
            json!({ "httpUrl": url, "headers": { "Authorization": format!("Bearer {}", canary(n + 4)) } });
        server.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server
    };
    world.write("home/.qwen/.env", &format!("FROM_FILE={}\n", canary(90)));
    world.user(&json!({
        "stdio": stdio(0, json!({})),
        "http": http(10, json!({})),
        "file": stdio(20, json!({ "env": { "TOKEN": "${FROM_FILE}" } })),
        "bad-args": stdio(30, json!({ "args": canary(33) })),
        "bad-env": stdio(40, json!({ "env": canary(43) })),
        "bad-headers": http(50, json!({ "headers": { "A": [canary(55)] } })),
        "bad-value": http(60, json!({ "headers": { "A": format!("{}\nx", canary(65)) } })),
        "bad-type": stdio(70, json!({ "type": canary(73), "timeout": canary(74), "cwd": format!("${{{}", canary(75)) })),
        "slip": stdio(80, json!({ "evn": canary(83) })),
    }));
    world.project(&json!({ "gated": stdio(100, json!({})) }));
    world.write(
        "more.yaml",
        &format!("mcpServers:\n  y:\n    command: {}\n    args: {{ a: {} }}\n", canary(110), canary(111)),
    );
    world
        .write("broken.json", &format!("{{ \"mcpServers\": {{ \"x\": \"{}\" \"{}", canary(120), canary(121)));
    world.write("broken.yaml", &format!("a: [{}\nk: *{}\n", canary(130), canary(132)));
    let config: Vec<String> = ["more.yaml", "broken.json", "broken.yaml"]
        .iter()
        .map(|name| world.path(name).display().to_string())
        .collect();
    let args: Vec<&str> =
        config.iter().flat_map(|path| ["--config", path]).chain(["--log-level", "trace"]).collect();

    // What blocks everything is told without its values.
    let mut texts = Vec::new();
    for command in [
        &["check"][..],
        &["plan"],
        &["check", "--output", "json"],
        &["plan", "--output", "json"],
        &["--reconcile-once"],
    ] {
        let output = world.run(&[&args[..], command].concat());
        texts.push(String::from_utf8_lossy(&output.stdout).into_owned());
        texts.push(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let sidecar = world.start(&["--log-level", "trace"]).await;
    for name in ["stdio", "http", "file"] {
        sidecar
            .until(&format!("{name} failed"), |status| {
                let servers = status["servers"].as_array().unwrap();
                servers.iter().any(|server| server["name"] == name && server["last_error"].is_string())
            })
            .await;
    }
    texts.extend([sidecar.status().await.to_string(), sidecar.get("/metrics").await, sidecar.log()]);
    let mut agent = Agent::connect(&sidecar.mcp).await;
    for name in ["stdio__x", "http__x", "bad-type__x", "gated__x"] {
        texts.push(agent.call(name, json!({})).await.to_string());
    }
    texts.push(sidecar.log());
    for text in texts {
        let shown: Vec<_> = text.lines().filter(|line| line.contains("canary")).collect();
        assert!(shown.is_empty(), "{shown:#?}");
    }
}
