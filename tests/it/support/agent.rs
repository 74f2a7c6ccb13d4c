//! An agent that is not ours: the Python client, driven by lines of JSON.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};

use super::{peers, until};

/// One session of a Python agent.
pub struct Agent {
    stdin: ChildStdin,
    lines: Arc<Mutex<Vec<Value>>>,
    next: u64,
    _child: Child,
}

impl Agent {
    /// Connects and waits until the session is open.
    pub async fn connect(url: &str) -> Self {
        let mut child = Command::new(peers::python("python"))
            .arg(peers::file("it/support/agent.py"))
            .arg(url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the agent starts");
        let stdin = child.stdin.take().expect("stdin");
        let mut stdout = BufReader::new(child.stdout.take().expect("stdout")).lines();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = stdout.next_line().await {
                sink.lock().expect("lines").push(serde_json::from_str(&line).expect("a line of JSON"));
            }
        });
        let agent = Agent { stdin, lines, next: 1, _child: child };
        agent.until("the session", |line| line["event"] == "ready").await;
        agent
    }

    fn seen(&self) -> Vec<Value> {
        self.lines.lock().expect("lines").clone()
    }

    async fn until(&self, what: &str, look: impl Fn(&Value) -> bool) -> Value {
        let look = &look;
        until(&format!("{what}: {:?}", self.seen()), || async move { self.seen().into_iter().find(look) })
            .await
    }

    /// Sends a command; gives its number.
    pub async fn send(&mut self, mut command: Value) -> u64 {
        let id = self.next;
        self.next += 1;
        command["id"] = id.into();
        self.stdin.write_all(format!("{command}\n").as_bytes()).await.expect("the agent listens");
        id
    }

    /// Waits for the answer to a command.
    pub async fn answer(&self, id: u64) -> Value {
        self.until("an answer", |line| line["id"] == id).await
    }

    /// The names of the tools, as the agent lists them now.
    pub async fn tools(&mut self) -> Vec<String> {
        let id = self.send(json!({ "op": "list_tools" })).await;
        let answer = self.answer(id).await;
        let names = answer["ok"]["names"].as_array().unwrap_or_else(|| panic!("no names in {answer}"));
        names.iter().map(|name| name.as_str().expect("a name").to_owned()).collect()
    }

    /// The number of tools of each server.
    pub async fn tools_by_server(&mut self) -> BTreeMap<String, usize> {
        let mut out = BTreeMap::new();
        for name in self.tools().await {
            let server = name.split("__").next().expect("a server").to_owned();
            *out.entry(server).or_default() += 1;
        }
        out
    }

    pub async fn start_call(&mut self, name: &str, arguments: Value, progress: bool) -> u64 {
        self.send(json!({ "op": "call", "name": name, "arguments": arguments, "progress": progress })).await
    }

    /// Calls a tool and gives the answer.
    pub async fn call(&mut self, name: &str, arguments: Value) -> Value {
        let id = self.start_call(name, arguments, false).await;
        self.answer(id).await
    }

    /// How many notifications of a changed list have come.
    pub fn list_changed(&self) -> usize {
        self.seen().iter().filter(|line| line["event"] == "list_changed").count()
    }

    pub async fn until_list_changed(&self, count: usize) {
        let what = format!("list_changed number {count}");
        until(&what, || async { (self.list_changed() >= count).then_some(()) }).await;
    }

    /// The progress notifications of a call, in order.
    pub fn progress(&self, call: u64) -> Vec<Value> {
        self.seen().into_iter().filter(|line| line["event"] == "progress" && line["call"] == call).collect()
    }
}

/// The first text of a tool's result.
pub fn text(answer: &Value) -> &str {
    answer["ok"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {answer}"))
}
