//! What runs, read from /proc.

use std::fs;

/// A process with its command line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: u32,
    pub command: String,
}

/// The living children of `pid`.
pub fn children(pid: u32) -> Vec<Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<_> = pids
        .filter(|child| parent_and_state(*child).is_some_and(|(parent, state)| parent == pid && state != 'Z'))
        .map(|pid| Process { pid, command: command(pid) })
        .collect();
    found.sort();
    found
}

/// Whether `pid` lives; what has ended but was not waited for does not.
pub fn lives(pid: u32) -> bool {
    parent_and_state(pid).is_some_and(|(_, state)| state != 'Z')
}

fn command(pid: u32) -> String {
    fs::read(format!("/proc/{pid}/cmdline"))
        .map(|bytes| String::from_utf8_lossy(&bytes).replace('\0', " ").trim().to_owned())
        .unwrap_or_default()
}

fn parent_and_state(pid: u32) -> Option<(u32, char)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name between the parentheses may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((fields.next()?.parse().ok()?, state))
}
