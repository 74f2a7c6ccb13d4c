//! The sources on real files in temporary directories.

use std::os::unix::fs::symlink;

use futures_util::FutureExt;
use notify::event::{AccessKind, AccessMode, CreateKind, EventKind, Flag};

use super::*;
use crate::controller::snapshot::Declared;
use crate::model::{ServerName, Transport};

/// A workspace, a settings home, and what reads them.
struct Setup {
    dir: tempfile::TempDir,
    files: Files,
    hint: Arc<Notify>,
}

fn setup(config: &[&str], variables: &[(&str, &str)]) -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("w")).unwrap();
    let mut environment: BTreeMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    environment
        .insert("QWEN_CODE_SYSTEM_SETTINGS_PATH".into(), at("etc/settings.json").display().to_string());
    let hint = Arc::new(Notify::new());
    let (files, settling) = Files::new(
        SourcesConfig {
            root: Root::new("/".as_ref(), &at("w")),
            settings_home: at("home/.qwen"),
            home: Some(at("home")),
            config: config.iter().map(|name| at(name)).collect(),
            settle: Duration::ZERO,
            environment,
        },
        hint.clone(),
    );
    tokio::spawn(settling);
    Setup { dir, files, hint }
}

impl Setup {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Saves as editors do: beside, then over.
    fn save(&self, name: &str, text: &str) {
        let beside = format!("{name}.tmp");
        self.write(&beside, text);
        fs::rename(self.path(&beside), self.path(name)).unwrap();
    }

    /// Each document's scope and its servers, or what is wrong with it; absent ones left out.
    fn read(&self) -> Vec<String> {
        let mut layers = self.files.read().layers;
        layers.sort_by(|a, b| (a.scope, a.rank, &a.path).cmp(&(b.scope, b.rank, &b.path)));
        let say = |layer: &LayerReading| match &layer.reading {
            Reading::Absent => None,
            Reading::Good(content) => {
                let names: Vec<_> = content.servers.keys().map(ServerName::as_str).collect();
                Some(format!("{} {}", layer.scope.as_str(), names.join(",")))
            }
            Reading::Bad(error) => Some(format!("{} bad {:?}", layer.scope.as_str(), error.at)),
        };
        layers.iter().filter_map(say).collect()
    }

    /// Reads until it gives `expected`, each time after a hint.
    async fn until(&self, expected: &[&str]) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while self.read() != expected {
            let hinted = tokio::time::timeout_at(deadline, self.hint.notified()).await;
            assert!(hinted.is_ok(), "no hint came: {:?} instead of {expected:?}", self.read());
        }
    }
}

fn servers(names: &[&str]) -> String {
    let entries: Vec<_> = names.iter().map(|name| format!("\"{name}\": {{\"command\": \"c\"}}")).collect();
    format!("{{\"mcpServers\": {{{}}}}}", entries.join(","))
}

#[tokio::test]
async fn every_layer_is_read_from_its_file() {
    let setup = setup(&["conf", "one.yaml"], &[]);
    setup.write("etc/settings.json", &servers(&["system"]));
    setup.write("etc/system-defaults.json", &servers(&["defaults"]));
    setup.write("home/.qwen/settings.json", &servers(&["user"]));
    setup.write("w/.qwen/settings.json", &servers(&["workspace"]));
    setup.write("w/.mcp.json", &servers(&["project"]));
    setup.write("conf/b.json", &servers(&["b"]));
    setup.write("conf/a.yaml", "mcpServers:\n  a: {command: c}\n");
    setup.write("one.yaml", "mcpServers:\n  one: {command: c}\n");
    assert_eq!(
        setup.read(),
        [
            "system-defaults defaults",
            "user user",
            "project project",
            "workspace workspace",
            "system system",
            "config a",
            "config b",
            "config one"
        ]
    );
}

#[tokio::test]
async fn extensions_add_servers_and_are_seen_when_installed_disabled_and_removed() {
    let setup = setup(&[], &[]);
    setup.write("home/.qwen/settings.json", "{}");
    setup.until(&["user "]).await;
    let extension = r#"{"name": "e", "mcpServers": {"e": {"command": "${extensionPath}${/}run"}}}"#;
    setup.write("home/.qwen/extensions/e/qwen-extension.json", extension);
    setup.until(&["extension e", "user "]).await;
    let layers = setup.files.read().layers;
    let Reading::Good(layer) = &layers[0].reading else { panic!("{:?}", layers[0].reading) };
    let Transport::Stdio { command, .. } = &layer.servers["e"].spec.as_ref().unwrap().spec.transport else {
        panic!()
    };
    assert_eq!(*command, setup.path("home/.qwen/extensions/e/run").display().to_string());

    let rules = format!(r#"{{"e": {{"overrides": ["!{}/*"]}}}}"#, setup.dir.path().display());
    setup.save("home/.qwen/extensions/extension-enablement.json", &rules);
    setup.until(&["extension ", "user "]).await;
    setup.save("home/.qwen/extensions/extension-enablement.json", "{");
    setup.until(&["extension bad Some((1, 1))", "user "]).await;
    fs::remove_file(setup.path("home/.qwen/extensions/extension-enablement.json")).unwrap();
    setup.until(&["extension e", "user "]).await;
    fs::remove_dir_all(setup.path("home/.qwen/extensions/e")).unwrap();
    setup.until(&["user "]).await;
}

#[tokio::test]
async fn in_the_home_directory_there_is_no_workspace_file() {
    let mut setup = setup(&[], &[]);
    setup.write("home/.qwen/settings.json", &servers(&["user"]));
    setup.files.config.root = Root::new("/".as_ref(), &setup.path("home"));
    assert_eq!(setup.read(), ["user user"]);
}

#[tokio::test]
async fn a_bad_file_is_told_with_its_place_and_stops_no_other() {
    let setup = setup(&["absent.json"], &[]);
    setup.write("home/.qwen/settings.json", "{\n  \"mcpServers\": {");
    setup.write("w/.mcp.json", &servers(&["project"]));
    assert_eq!(setup.read(), ["user bad Some((2, 17))", "project project"]);
    let absent = setup.files.read().layers.into_iter().find(|layer| layer.scope == Scope::Config).unwrap();
    assert!(absent.explicit && matches!(absent.reading, Reading::Absent));
}

#[tokio::test]
async fn a_directory_that_cannot_be_listed_takes_none_of_its_files_away() {
    let setup = setup(&["conf"], &[]);
    setup.write("conf/a.json", &servers(&["a"]));
    assert_eq!(setup.read(), ["config a"]);
    // A link to itself cannot be listed, by root neither.
    fs::rename(setup.path("conf"), setup.path("kept")).unwrap();
    symlink("conf", setup.path("conf")).unwrap();
    assert_eq!(setup.read(), ["config bad None"]);
    let layer = setup.files.read().layers.into_iter().find(|layer| layer.scope == Scope::Config).unwrap();
    assert_eq!(layer.path, setup.path("conf/a.json"));
}

#[tokio::test]
async fn values_of_env_files_are_read_afresh_and_fill_gaps_only() {
    let setup = setup(&[], &[("A", "env")]);
    setup.write("home/.qwen/.env", "A=file\nB=1\n");
    setup.write("home/.qwen/settings.json", r#"{"mcpServers":{"a":{"command":"${A}${B}"}}}"#);
    let command = || {
        let layers = setup.files.read().layers;
        let user = layers.iter().find(|layer| layer.scope == Scope::User).unwrap();
        let Reading::Good(layer) = &user.reading else { panic!("{:?}", user.reading) };
        let Transport::Stdio { command, .. } = &layer.servers["a"].spec.as_ref().unwrap().spec.transport
        else {
            panic!()
        };
        command.clone()
    };
    assert_eq!(command(), "env1");
    setup.write("home/.qwen/.env", "B=2\n");
    assert_eq!(command(), "env2");
}

#[tokio::test]
async fn every_way_to_save_is_seen() {
    let setup = setup(&[], &[]);
    // The directory does not exist yet.
    assert!(setup.read().is_empty());
    setup.write("w/.qwen/settings.json", &servers(&["a"]));
    setup.until(&["workspace a"]).await;
    setup.write("w/.qwen/settings.json", &servers(&["in-place"]));
    setup.until(&["workspace in-place"]).await;
    for name in ["renamed", "renamed-again"] {
        setup.save("w/.qwen/settings.json", &servers(&[name]));
        setup.until(&[&format!("workspace {name}")]).await;
    }
    // vim: move away, write anew, delete the backup.
    fs::rename(setup.path("w/.qwen/settings.json"), setup.path("w/.qwen/settings.json~")).unwrap();
    setup.write("w/.qwen/settings.json", &servers(&["vim"]));
    fs::remove_file(setup.path("w/.qwen/settings.json~")).unwrap();
    setup.until(&["workspace vim"]).await;
    // The directory goes and comes back.
    fs::remove_dir_all(setup.path("w/.qwen")).unwrap();
    setup.until(&[]).await;
    setup.write("w/.qwen/settings.json", &servers(&["back"]));
    setup.until(&["workspace back"]).await;
    // Another directory takes its place.
    setup.write("w/other/settings.json", &servers(&["moved"]));
    fs::rename(setup.path("w/.qwen"), setup.path("w/old")).unwrap();
    fs::rename(setup.path("w/other"), setup.path("w/.qwen")).unwrap();
    setup.until(&["workspace moved"]).await;
    setup.write("w/.qwen/settings.json", &servers(&["after"]));
    setup.until(&["workspace after"]).await;
}

#[tokio::test]
async fn a_swap_of_the_data_link_of_a_mounted_volume_is_seen_each_time() {
    let setup = setup(&["conf"], &[]);
    setup.write("conf/..ts0/settings.json", &servers(&["v0"]));
    symlink("..ts0", setup.path("conf/..data")).unwrap();
    symlink("..data/settings.json", setup.path("conf/settings.json")).unwrap();
    setup.until(&["config v0"]).await;
    for n in 1..4 {
        setup.write(&format!("conf/..ts{n}/settings.json"), &servers(&[&format!("v{n}")]));
        symlink(format!("..ts{n}"), setup.path("conf/..data_tmp")).unwrap();
        fs::rename(setup.path("conf/..data_tmp"), setup.path("conf/..data")).unwrap();
        fs::remove_dir_all(setup.path(&format!("conf/..ts{}", n - 1))).unwrap();
        setup.until(&[&format!("config v{n}")]).await;
    }
}

#[tokio::test]
async fn a_link_to_a_file_elsewhere_is_seen_when_the_file_or_the_link_changes() {
    let setup = setup(&[], &[]);
    setup.write("dot/one.json", &servers(&["one"]));
    setup.write("dot/two.json", &servers(&["two"]));
    fs::create_dir_all(setup.path("home/.qwen")).unwrap();
    symlink(setup.path("dot/one.json"), setup.path("home/.qwen/settings.json")).unwrap();
    setup.until(&["user one"]).await;
    setup.write("dot/one.json", &servers(&["edited"]));
    setup.until(&["user edited"]).await;
    setup.save("dot/one.json", &servers(&["renamed"]));
    setup.until(&["user renamed"]).await;
    symlink(setup.path("dot/two.json"), setup.path("home/.qwen/new")).unwrap();
    fs::rename(setup.path("home/.qwen/new"), setup.path("home/.qwen/settings.json")).unwrap();
    setup.until(&["user two"]).await;
}

#[tokio::test]
async fn a_directory_that_is_a_link_is_seen_through_and_seen_when_it_changes() {
    let setup = setup(&[], &[]);
    setup.write("dot/one/settings.json", &servers(&["one"]));
    setup.write("dot/two/settings.json", &servers(&["two"]));
    symlink(setup.path("dot/one"), setup.path("w/.qwen")).unwrap();
    setup.until(&["workspace one"]).await;
    setup.save("dot/one/settings.json", &servers(&["edited"]));
    setup.until(&["workspace edited"]).await;
    symlink(setup.path("dot/two"), setup.path("w/new")).unwrap();
    fs::rename(setup.path("w/new"), setup.path("w/.qwen")).unwrap();
    setup.until(&["workspace two"]).await;
}

#[tokio::test]
async fn content_counts_and_neither_time_nor_size() {
    let setup = setup(&[], &[]);
    setup.write("home/.qwen/settings.json", &servers(&["a"]));
    let path = setup.path("home/.qwen/settings.json");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    setup.until(&["user a"]).await;
    setup.write("home/.qwen/settings.json", &servers(&["b"]));
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    setup.until(&["user b"]).await;
}

#[tokio::test]
async fn an_edit_of_other_keys_of_the_order_or_of_the_form_changes_no_fingerprint() {
    let setup = setup(&[], &[("TOKEN", "t")]);
    let fingerprints = |text: &str| {
        setup.write("home/.qwen/settings.json", text);
        let layers = setup.files.read().layers;
        let user = layers.iter().find(|layer| layer.scope == Scope::User).unwrap();
        let Reading::Good(layer) = &user.reading else { panic!("{:?}", user.reading) };
        let of = |declared: &Declared| declared.spec.as_ref().unwrap().fingerprint;
        layer.servers.iter().map(|(name, declared)| (name.clone(), of(declared))).collect::<Vec<_>>()
    };
    let a = r#""a":{"httpUrl":"http://h/","headers":{"Authorization":"Bearer ${TOKEN}"}}"#;
    let b = r#""b":{"command":"c","env":{"X":"1","Y":"2"}}"#;
    let first = fingerprints(&format!("{{\"mcpServers\":{{{a},{b}}}}}"));
    let b = r#""b": { "args": [], "env": { "Y": "2", "X": "1" }, "timeout": 9, "description": "d", "command": "c" }"#;
    let second =
        fingerprints(&format!("\u{feff}{{ \"theme\": \"x\", // c\r\n\"mcpServers\": {{ {b}, {a}, }} }}"));
    assert_eq!(first, second);
}

#[tokio::test]
async fn five_thousand_servers_in_one_file_are_read() {
    let setup = setup(&[], &[]);
    let names: Vec<String> = (0..5000).map(|n| format!("s{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    setup.write("home/.qwen/settings.json", &servers(&names));
    let layers = setup.files.read().layers;
    let Reading::Good(layer) = &layers.iter().find(|layer| layer.scope == Scope::User).unwrap().reading
    else {
        panic!()
    };
    assert_eq!(layer.servers.len(), 5000);
}

#[tokio::test]
async fn the_approval_store_and_the_trust_file_are_watched_too() {
    let setup = setup(&[], &[]);
    setup.write("home/.qwen/settings.json", "{}");
    setup.read();
    for name in ["mcpApprovals.json", "trustedFolders.json"] {
        setup.write(&format!("home/.qwen/{name}"), "{");
        tokio::time::timeout(Duration::from_secs(20), setup.hint.notified()).await.expect("a hint");
    }
    let readings = setup.files.read();
    assert!(matches!(readings.approvals.1, Reading::Bad(_)) && matches!(readings.trust.1, Reading::Bad(_)));
}

#[test]
fn only_what_can_have_changed_a_file_of_ours_is_a_hint() {
    let changed = Arc::new(Notify::new());
    let watch = Watch::new(changed.clone());
    let mut interest = Interest::default();
    interest.file(Path::new("/none/settings.json"));
    let _ = watch.arm(&interest, Vec::new());
    let hinted = |kind: EventKind, path: &str, flag: Option<Flag>| {
        let mut event = notify::Event::new(kind).add_path(path.into());
        if let Some(flag) = flag {
            event = event.set_flag(flag);
        }
        watch.take_for_test(Ok(event));
        changed.notified().now_or_never().is_some()
    };
    let ours = "/none";
    assert!(hinted(EventKind::Create(CreateKind::Any), ours, None));
    assert!(hinted(EventKind::Access(AccessKind::Close(AccessMode::Write)), ours, None));
    assert!(!hinted(EventKind::Access(AccessKind::Open(AccessMode::Any)), ours, None), "our own read");
    assert!(!hinted(EventKind::Create(CreateKind::Any), "/other", None));
    assert!(hinted(EventKind::Other, "/other", Some(Flag::Rescan)), "events were lost");
    watch.take_for_test(Err(notify::Error::generic("x")));
    assert!(changed.notified().now_or_never().is_some(), "an error means: look");
}
