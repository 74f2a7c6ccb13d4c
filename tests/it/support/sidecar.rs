//! The binary under test, in a home and a workspace of its own.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::process::{Process, children};
use super::until;

pub const BINARY: &str = env!("CARGO_BIN_EXE_mcp-reconciler");

/// A home, a workspace and the files in them.
pub struct World {
    dir: tempfile::TempDir,
}

impl World {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        for name in ["w", "home", "run", "home/.qwen"] {
            fs::create_dir(dir.path().join(name)).expect("a directory");
        }
        World { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes in place.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        fs::write(path, text).expect("written");
    }

    /// Saves as editors do: beside, then over.
    pub fn save(&self, name: &str, text: &str) {
        let beside = format!("{name}.tmp");
        self.write(&beside, text);
        fs::rename(self.path(&beside), self.path(name)).expect("renamed");
    }

    /// Saves the user's settings with these servers.
    pub fn user(&self, servers: &Value) {
        self.save("home/.qwen/settings.json", &format!("{:#}", json!({ "mcpServers": servers })));
    }

    /// Saves the project's own file with these servers.
    pub fn project(&self, servers: &Value) {
        self.save("w/.mcp.json", &format!("{:#}", json!({ "mcpServers": servers })));
    }

    /// The binary with this world's files and nothing of the machine's.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.path("home"))
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("QWEN_CODE_SYSTEM_SETTINGS_PATH", self.path("etc/settings.json"))
            .env("MCP_RECONCILER_WORKSPACE", self.path("w"))
            .args(args)
            .stdin(Stdio::null());
        command
    }

    /// Runs the binary to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("the binary runs")
    }

    /// Starts the sidecar and waits until it listens.
    pub async fn start(self, args: &[&str]) -> Sidecar {
        self.start_by(&[], args).await
    }

    /// The same, through a program that becomes it.
    pub async fn start_by(self, by: &[&str], args: &[&str]) -> Sidecar {
        self.start_by_with(by, &[], args).await
    }

    /// The same, with arguments of that program's own after ours.
    pub async fn start_by_with(self, by: &[&str], own: &[&str], args: &[&str]) -> Sidecar {
        let log = self.path("log");
        let ours = self.command(&[]);
        let line: Vec<&str> = by.iter().copied().chain([BINARY]).chain(own.iter().copied()).collect();
        let mut command = Command::new(line[0]);
        command.env_clear().envs(ours.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let child = command
            .args(&line[1..])
            .args(args)
            .env("MCP_RECONCILER_LISTEN", "127.0.0.1:0")
            .env("MCP_RECONCILER_OPS_LISTEN", "127.0.0.1:0")
            .env("MCP_RECONCILER_SETTLE", "50ms")
            .stdin(Stdio::null())
            .stderr(File::create(&log).expect("a log"))
            .stdout(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let runs = self.path("run/mcp-reconciler");
        let run = until("the run file", || async {
            let entry = fs::read_dir(&runs).ok()?.flatten().next()?;
            serde_json::from_slice::<Value>(&fs::read(entry.path()).ok()?).ok()
        })
        .await;
        let address = |key: &str| run[key].as_str().expect("an address").to_owned();
        Sidecar {
            mcp: format!("http://{}/mcp", address("listen")),
            ops: format!("http://{}", address("ops_listen")),
            world: self,
            child,
        }
    }
}

/// A running sidecar.
pub struct Sidecar {
    pub world: World,
    pub mcp: String,
    pub ops: String,
    child: Child,
}

impl Sidecar {
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub async fn get(&self, path: &str) -> String {
        let url = format!("{}{path}", self.ops);
        reqwest::get(url).await.expect("an answer").text().await.expect("a text")
    }

    pub async fn status(&self) -> Value {
        serde_json::from_str(&self.get("/status").await).expect("JSON")
    }

    /// The status of one server; null when it is not known.
    pub async fn server(&self, name: &str) -> Value {
        let status = self.status().await;
        let servers = status["servers"].as_array().expect("servers");
        servers.iter().find(|server| server["name"] == name).cloned().unwrap_or_default()
    }

    /// Waits until the status is as `look` says.
    pub async fn until(&self, what: &str, look: impl Fn(&Value) -> bool) -> Value {
        until(&format!("{what}; the log: {}", self.log()), || async {
            let status = self.status().await;
            look(&status).then_some(status)
        })
        .await
    }

    /// Waits until these servers and no others are connected.
    pub async fn until_connected(&self, names: &[&str]) -> Value {
        self.until(&format!("{names:?} connected"), |status| {
            let servers = status["servers"].as_array().expect("servers");
            let connected: Vec<_> =
                servers.iter().filter(|s| s["state"] == "connected").map(|s| s["name"].clone()).collect();
            connected == names
        })
        .await
    }

    /// The samples of the metric `name`, by their labels as they stand in the text.
    pub async fn metric(&self, name: &str) -> BTreeMap<String, f64> {
        let text = self.get("/metrics").await;
        let sample = |line: &str| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            (labels.is_empty() || labels.starts_with('{')).then(|| (labels.to_owned(), value.parse().ok()))
        };
        text.lines().filter_map(sample).filter_map(|(labels, value)| Some((labels, value?))).collect()
    }

    /// Waits until everything has been read once more, by a hint.
    pub async fn read_again(&self, edit: impl FnOnce(&World)) {
        let hints = || async {
            self.metric("mcp_reconciler_reconciles_total")
                .await
                .iter()
                .filter(|(l, _)| l.contains("hint"))
                .map(|(_, v)| v)
                .sum::<f64>()
        };
        let before = hints().await;
        edit(&self.world);
        until("a read", || async { (hints().await > before).then_some(()) }).await;
    }

    pub fn children(&self) -> Vec<Process> {
        children(self.pid())
    }

    /// The one child whose command line holds `text`.
    pub fn child(&self, text: &str) -> u32 {
        let children = self.children();
        let found: Vec<_> = children.iter().filter(|child| child.command.contains(text)).collect();
        assert_eq!(found.len(), 1, "{text} in {children:?}");
        found[0].pid
    }

    pub fn signal(&self, signal: Signal) {
        signal_process(self.pid(), signal);
    }

    /// Asks it to end and waits for that.
    pub async fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.ended().await
    }

    pub async fn ended(&mut self) -> ExitStatus {
        let deadline = tokio::time::Instant::now() + super::PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("waited") {
                return status;
            }
            assert!(tokio::time::Instant::now() < deadline, "it does not end; the log: {}", self.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.world.path("log")).unwrap_or_default()
    }
}

pub fn signal_process(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).expect("a pid")).expect("a pid");
    // One that has ended already is as good.
    let _ = kill_process(pid, signal);
}

impl Drop for Sidecar {
    /// Also when a test fails nothing stays behind.
    fn drop(&mut self) {
        self.signal(Signal::TERM);
        let deadline = Instant::now() + Duration::from_secs(15);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn exists(path: &Path) -> bool {
    path.try_exists().expect("a path")
}
