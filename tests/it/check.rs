//! The commands that read and tell: check, plan and schema. None of them contacts or starts anything.

use serde_json::{Value, json};

use crate::support::peers;
use crate::support::sidecar::{World, exists};

fn stdout(output: &std::process::Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn check_tells_errors_and_slips_with_their_lines_and_no_value() {
    let world = World::new();
    let settings = "{\n  \"mcpServers\": {\n    \"a\": { \"command\": \"c\", \"args\": \"canary\" },\n    \"b\": { \"command\": \"c\", \"evn\": { \"K\": \"canary\" } }\n  }\n}\n";
    world.write("home/.qwen/settings.json", settings);
    world.write("w/.qwen/settings.json", "{ \"theme\": \"canary\", }");
    let output = world.run(&["check"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(3), "{text}");
    for needle in [
        "error: mcpServers.a.args: a list is needed, found text",
        "settings.json:3:36",
        "\"args\": \"******\"",
        "warning: mcpServers.b.evn is not known; did you mean env?",
        "warning: a comma stands before the closing bracket: qwen-code cannot read this file",
        "3 to look at",
    ] {
        assert!(text.contains(needle), "{needle} in {text}");
    }
    assert!(!text.contains("canary"), "{text}");
    let found: Value = serde_json::from_str(&stdout(&world.run(&["check", "--output", "json"]))).unwrap();
    assert_eq!(found.as_array().map(Vec::len), Some(3), "{found}");
}

#[test]
fn check_passes_good_files_and_can_be_given_others() {
    let world = World::new();
    world.user(&json!({ "a": peers::demo() }));
    let output = world.run(&["check"]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(0), "nothing to tell\n"));
    world.write("w/more.yaml", "mcpServers:\n  a:\n    command: [canary]\n");
    let output = world.run(&["check", "more.yaml"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(stdout(&output).contains("more.yaml:3:14"), "{}", stdout(&output));
    assert!(stdout(&output).contains("    command: [******]"), "{}", stdout(&output));
    assert_eq!(world.run(&["check", "absent.json"]).status.code(), Some(3));
}

#[tokio::test]
async fn plan_tells_what_a_run_would_do_and_does_nothing() {
    let world = World::new();
    let marking = json!({ "command": "touch", "args": [world.path("mark")] });
    world.user(&json!({ "a": marking, "odd": { "type": "sdk" } }));
    world.project(&json!({ "p": marking }));
    let output = world.run(&["plan", "--exit-code"]);
    assert_eq!(output.status.code(), Some(10));
    let text = stdout(&output);
    assert!(text.contains("open     a (new)"), "{text}");
    assert!(text.contains("refuse   p (pending_approval): a person must approve it"), "{text}");
    assert!(!exists(&world.path("mark")));

    world.user(&json!({ "gone": peers::demo(), "same": peers::demo(), "changed": peers::demo() }));
    let sidecar = world.start(&["--resync", "1h", "--settle", "1h"]).await;
    sidecar.until_connected(&["changed", "gone", "same"]).await;
    assert_eq!(sidecar.world.run(&["plan", "--exit-code"]).status.code(), Some(0));
    sidecar
        .world
        .user(&json!({ "changed": peers::demo_with_env("2"), "new": peers::demo(), "same": peers::demo() }));
    let output = sidecar.world.run(&["plan", "--exit-code", "--output", "json"]);
    let steps: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let steps: Vec<_> =
        steps.as_array().unwrap().iter().map(|step| (&step["action"], &step["server"])).collect();
    let expected =
        [("replace", "changed"), ("open", "new"), ("refuse", "p"), ("keep", "same"), ("close", "gone")];
    assert_eq!(
        steps,
        expected
            .map(|(action, server)| (json!(action), json!(server)))
            .iter()
            .map(|(a, b)| (a, b))
            .collect::<Vec<_>>()
    );
    assert_eq!(output.status.code(), Some(10));
}

#[test]
fn plan_tells_of_bad_sources() {
    let world = World::new();
    world.write("home/.qwen/settings.json", "{");
    let output = world.run(&["plan"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&output.stderr).contains("settings.json:1:1"));
}

#[test]
fn the_schema_is_printed_and_accepts_the_example() {
    let schema: Value = serde_json::from_str(&stdout(&World::new().run(&["schema"]))).unwrap();
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    // Read by a validator that is not ours.
    let script = "import json, sys, jsonschema; jsonschema.Draft7Validator.check_schema(json.loads(sys.argv[1])); \
                  jsonschema.validate(json.loads(sys.argv[2]), json.loads(sys.argv[1]))";
    let validate = |document: Value| {
        let python = std::process::Command::new(peers::python("python"))
            .args(["-c", script, &schema.to_string(), &document.to_string()])
            .output()
            .unwrap();
        python.status.success()
    };
    let entry =
        json!({ "command": "c", "args": ["a"], "env": { "P": 1, "D": true }, "type": "stdio", "timeout": 5 });
    assert!(validate(json!({ "mcpServers": { "a": entry }, "mcp": { "allowed": [] }, "theme": 1 })));
    assert!(!validate(json!({ "mcpServers": { "a": { "command": "c", "args": "a" } } })));
    assert!(!validate(json!({ "mcp": { "allowed": null } })));
}
