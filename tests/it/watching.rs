//! Every save is seen, by the programs that people save with, and nothing else causes a read.

use std::fs;
use std::process::Command;

use serde_json::json;

use crate::support::peers;
use crate::support::sidecar::{Sidecar, World};

const SETTINGS: &str = "home/.qwen/settings.json";

async fn hints(sidecar: &Sidecar) -> f64 {
    let reads = sidecar.metric("mcp_reconciler_reconciles_total").await;
    reads.iter().filter(|(labels, _)| labels.contains("hint")).map(|(_, count)| count).sum()
}

fn names(version: &str) -> String {
    json!({ "mcpServers": { version: { "type": "sdk" } } }).to_string()
}

async fn until_read(sidecar: &Sidecar, version: &str) {
    sidecar.until(version, |status| status["servers"][0]["name"] == version).await;
}

#[tokio::test]
async fn one_edit_is_one_read_and_reads_of_others_and_neighbour_files_are_none() {
    let world = World::new();
    world.write(SETTINGS, &names("v0"));
    let sidecar = world.start(&["--settle", "300ms", "--resync", "1h"]).await;
    until_read(&sidecar, "v0").await;
    for n in 1..=3 {
        for _ in 0..200 {
            fs::read(sidecar.world.path(SETTINGS)).unwrap();
        }
        for neighbour in
            ["settings.json.backup.17", "settings.json~", ".settings.json.swp", "4913", "notes.txt"]
        {
            sidecar.world.write(&format!("home/.qwen/{neighbour}"), "x");
            sidecar.world.write(&format!("w/{neighbour}"), "x");
        }
        let version = format!("v{n}");
        sidecar.world.write(SETTINGS, &names(&version));
        until_read(&sidecar, &version).await;
    }
    assert_eq!(hints(&sidecar).await, 3.0);
}

#[tokio::test]
async fn a_hundred_saves_at_once_are_few_reads_and_the_last_one_counts() {
    let world = World::new();
    world.write(SETTINGS, &names("v0"));
    let sidecar = world.start(&["--settle", "300ms", "--resync", "1h"]).await;
    until_read(&sidecar, "v0").await;
    let began = std::time::Instant::now();
    for n in 1..=100 {
        sidecar.world.save(SETTINGS, &names(&format!("v{n}")));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    until_read(&sidecar, "v100").await;
    // At most one in two seconds while it goes on, and one for what is left: three where the saves take their two seconds.
    let most = 2 + began.elapsed().as_secs() / 2;
    let reads = hints(&sidecar).await;
    assert!(reads <= most as f64, "{reads} > {most}");
}

#[tokio::test]
async fn sed_and_vim_save_so_that_it_is_seen() {
    let world = World::new();
    world.write(SETTINGS, &names("v0"));
    let sidecar = world.start(&["--resync", "1h"]).await;
    until_read(&sidecar, "v0").await;
    let path = sidecar.world.path(SETTINGS).display().to_string();
    let run = |program: &str, args: &[&str]| {
        let status = Command::new(program).args(args).env("TERM", "dumb").status().expect(program);
        assert!(status.success(), "{program}");
    };
    run("sed", &["-i", "s/v0/v1/", &path]);
    until_read(&sidecar, "v1").await;
    for (n, option) in [(2, "set backupcopy=yes"), (3, "set backupcopy=no | set backup")] {
        let replace = format!("%s/v{}/v{n}/", n - 1);
        run("vim", &["-Nu", "NONE", "-es", "-c", option, "-c", &replace, "-c", "wq", &path]);
        until_read(&sidecar, &format!("v{n}")).await;
    }
}

#[tokio::test]
async fn out_of_inotify_watches_it_goes_on_by_its_timer_and_says_so() {
    let world = World::new();
    world.user(&json!({ "a": peers::demo() }));
    // A user namespace has limits of its own.
    let script = "echo 0 > /proc/sys/user/max_inotify_watches && exec \"$0\" \"$@\"";
    let sidecar = world.start_by(&["unshare", "-Ur", "sh", "-c", script], &["--resync", "200ms"]).await;
    sidecar.until_connected(&["a"]).await;
    let status = sidecar.status().await;
    let watching = status["conditions"].as_array().unwrap().iter().find(|c| c["kind"] == "Watching").unwrap();
    assert_eq!(watching["status"], false, "{watching}");
    assert!(watching["message"].as_str().unwrap().contains("fs.inotify.max_user_watches"), "{watching}");
    let told = sidecar.log().matches("not every change is seen at once").count();
    assert_eq!(told, 1, "once, not on each pass: {}", sidecar.log());
    assert_eq!(sidecar.metric("mcp_reconciler_watching").await.into_values().sum::<f64>(), 0.0);
    sidecar.world.user(&json!({ "b": peers::demo() }));
    sidecar.until_connected(&["b"]).await;
}

#[tokio::test]
async fn a_file_that_is_mounted_by_itself_is_told_and_its_edits_in_place_are_seen() {
    let world = World::new();
    world.write("host.json", &names("v0"));
    world.write("conf.json", "{}");
    let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$0\" \"$@\"";
    let (host, conf) =
        (world.path("host.json").display().to_string(), world.path("conf.json").display().to_string());
    let by = ["unshare", "-Urm", "sh", "-c", script];
    let sidecar = world.start_by_with(&by, &[&host, &conf], &["--config", &conf, "--resync", "200ms"]).await;
    until_read(&sidecar, "v0").await;
    let status = sidecar.status().await;
    let watching = status["conditions"].as_array().unwrap().iter().find(|c| c["kind"] == "Watching").unwrap();
    assert!(watching["message"].as_str().unwrap().contains("conf.json is mounted by itself"), "{watching}");
    sidecar.world.write("host.json", &names("v1"));
    until_read(&sidecar, "v1").await;
}

#[tokio::test]
async fn an_hours_worth_of_ticks_changes_nothing() {
    let world = World::new();
    world.user(&json!({ "a": peers::demo() }));
    let sidecar = world.start(&["--resync", "10ms"]).await;
    sidecar.until_connected(&["a"]).await;
    let children = sidecar.children();
    crate::support::until("120 ticks", || async {
        let reads = sidecar.metric("mcp_reconciler_reconciles_total").await;
        let ticks: f64 =
            reads.iter().filter(|(labels, _)| labels.contains("timer")).map(|(_, count)| count).sum();
        (ticks >= 120.0).then_some(())
    })
    .await;
    assert_eq!(sidecar.status().await["generation"], 1);
    assert_eq!(sidecar.children(), children);
}
