//! Decides how the status looks on a terminal: one aligned row for each server, then what needs a person.

use std::fmt::Write;

use serde_json::Value;

const COLUMNS: [&str; 7] = ["SERVER", "STATE", "REASON", "TRANSPORT", "TOOLS", "RESTARTS", "SCOPE"];

/// The status document as text, all servers or the one called `only`. Nothing when there is no such server.
pub fn render(status: &Value, only: Option<&str>) -> Option<String> {
    let servers: Vec<&Value> = status["servers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|server| only.is_none_or(|name| server["name"] == name))
        .collect();
    if only.is_some() && servers.is_empty() {
        return None;
    }
    let mut out = String::new();
    // Writing to a String cannot fail.
    let mut line = |text: String| {
        let _ = writeln!(out, "{}", text.trim_end());
    };
    table(&servers).into_iter().for_each(&mut line);
    for server in &servers {
        let name = plain(&server["name"]);
        for (key, label) in [("message", ""), ("last_error", "last error: "), ("fix", "to do: ")] {
            if let Some(text) = server[key].as_str() {
                line(format!("{name}: {label}{}", one_line(text)));
            }
        }
        if let Some(seconds) = server["next_attempt_seconds"].as_f64() {
            line(format!("{name}: next attempt in {seconds:.0} s"));
        }
    }
    if only.is_none() {
        for error in
            status["sources"].as_array().into_iter().flatten().filter_map(|source| source["error"].as_str())
        {
            line(format!("source: {}", one_line(error)));
        }
        let converged = if status["converged"] == true { "as wanted" } else { "not yet as wanted" };
        line(format!("generation {}: {converged}", plain(&status["generation"])));
    }
    Some(out)
}

fn table(servers: &[&Value]) -> Vec<String> {
    let cell = |server: &Value, key: &str| plain(&server[key.to_lowercase().as_str()]);
    let mut rows = vec![COLUMNS.map(str::to_owned)];
    rows.extend(servers.iter().map(|server| {
        COLUMNS.map(|column| match column {
            "SERVER" => plain(&server["name"]),
            column => cell(server, column),
        })
    }));
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or_default();
    let widths: [usize; COLUMNS.len()] = std::array::from_fn(width);
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            cells.collect::<Vec<_>>().join("  ")
        })
        .collect()
}

/// A value of the document in one row: control characters of a name or an error must not drive the terminal.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => one_line(text),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Value {
        serde_json::json!({
            "generation": 3, "converged": false,
            "servers": [
                {"name": "time", "state": "connected", "reason": null, "transport": "stdio", "tools": 2,
                 "restarts": 0, "scope": "user", "message": null, "fix": null, "last_error": null},
                {"name": "b\u{1b}[31m", "state": "refused", "reason": "pending_approval", "transport": "http",
                 "tools": 0, "restarts": 0, "scope": "project", "fix": "a person must approve it"},
            ],
            "sources": [{"error": "/s.json:3:1: broken"}],
        })
    }

    #[test]
    fn each_server_has_an_aligned_row_and_what_needs_a_person_follows() {
        let text = render(&status(), None).unwrap();
        let expected = "\
SERVER  STATE      REASON            TRANSPORT  TOOLS  RESTARTS  SCOPE
time    connected  -                 stdio      2      0         user
b [31m  refused    pending_approval  http       0      0         project
b [31m: to do: a person must approve it
source: /s.json:3:1: broken
generation 3: not yet as wanted
";
        assert_eq!(text, expected);
    }

    #[test]
    fn one_server_can_be_asked_for_by_name() {
        assert!(render(&status(), Some("time")).unwrap().lines().count() == 2);
        assert_eq!(render(&status(), Some("nobody")), None);
    }
}
