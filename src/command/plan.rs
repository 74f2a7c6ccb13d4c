//! Decides what a run would do now: compares what the sources ask for with what a running sidecar says it has.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::controller::admit::Admission;
use crate::controller::resolve::{Desired, Wanted};

/// What would be done about one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    Open,
    Replace,
    Close,
    Refuse,
    Keep,
}

impl Verb {
    pub const fn as_str(self) -> &'static str {
        match self {
            Verb::Open => "open",
            Verb::Replace => "replace",
            Verb::Close => "close",
            Verb::Refuse => "refuse",
            Verb::Keep => "keep",
        }
    }

    const fn is_change(self) -> bool {
        match self {
            Verb::Open | Verb::Replace | Verb::Close => true,
            Verb::Refuse | Verb::Keep => false,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    pub action: Verb,
    pub server: String,
    /// One of the refusals' spellings, `removed`, `changed` or `new`; nothing for what is kept.
    pub reason: Option<&'static str>,
    pub message: Option<String>,
}

/// What would be done, server by server. `running` is the status document of the running sidecar, if there is one.
pub fn steps(desired: &Desired, running: Option<&Value>) -> Vec<Step> {
    let running = running_fingerprints(running);
    let mut out = Vec::new();
    for (name, wanted) in &desired.servers {
        out.extend(decide(name.as_str(), wanted, running.get(name.as_str()).map(String::as_str)));
    }
    for name in running.keys().filter(|name| !desired.servers.contains_key(name.as_str())) {
        out.push(step(Verb::Close, name, Some("removed"), None));
    }
    out
}

/// What runs or is about to: everything that is not refused.
fn running_fingerprints(status: Option<&Value>) -> BTreeMap<String, String> {
    let servers = status.and_then(|status| status["servers"].as_array()).into_iter().flatten();
    servers
        .filter(|server| server["state"] != "refused")
        .filter_map(|server| {
            let text = |key: &str| server[key].as_str().map(str::to_owned);
            Some((text("name")?, text("fingerprint").unwrap_or_default()))
        })
        .collect()
}

fn decide(name: &str, wanted: &Wanted, running: Option<&str>) -> Vec<Step> {
    match &wanted.admission {
        Admission::Admitted(admitted) => {
            let same = running.map(|fingerprint| fingerprint == admitted.fingerprint().short());
            vec![match same {
                None => step(Verb::Open, name, Some("new"), None),
                Some(false) => step(Verb::Replace, name, Some("changed"), None),
                Some(true) => step(Verb::Keep, name, None, None),
            }]
        }
        Admission::Held(refusal) | Admission::Refused(refusal) => {
            let message = wanted.message.clone().unwrap_or_else(|| refusal.fix().to_owned());
            let reason = Some(refusal.as_str());
            let close = running.map(|_| step(Verb::Close, name, reason, None));
            close.into_iter().chain([step(Verb::Refuse, name, reason, Some(message))]).collect()
        }
    }
}

fn step(action: Verb, server: &str, reason: Option<&'static str>, message: Option<String>) -> Step {
    Step { action, server: server.to_owned(), reason, message }
}

/// Whether anything would be opened, closed or replaced.
pub fn changes(steps: &[Step]) -> bool {
    steps.iter().any(|step| step.action.is_change())
}

/// The plan for a person.
pub fn render(steps: &[Step]) -> String {
    let mut out = String::new();
    for Step { action, server, reason, message } in steps.iter().filter(|step| step.action != Verb::Keep) {
        let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        let message = message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
        out.push_str(&format!("{:<8} {server}{reason}{message}\n", action.as_str()));
    }
    let count = |verb: Verb| steps.iter().filter(|step| step.action == verb).count();
    let counts = [Verb::Open, Verb::Replace, Verb::Close, Verb::Refuse, Verb::Keep];
    let counts: Vec<_> = counts.iter().map(|verb| format!("{} to {}", count(*verb), verb.as_str())).collect();
    out + &counts.join(", ") + "\n"
}
