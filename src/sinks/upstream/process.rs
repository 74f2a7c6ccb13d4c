//! Owns one child process and its group, from the start until nothing of it is left.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getrlimit, kill_process_group, prlimit, waitid,
};
use secrecy::{ExposeSecret, SecretString};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// How long a child may take to end after its stdin is closed, and again after it is told to terminate.
const PATIENCE: Duration = Duration::from_secs(2);

/// A running child, the leader of its own process group.
pub struct Process {
    child: Child,
    group: Group,
    /// Comes whenever any child of ours may have ended.
    deaths: Signals,
}

/// Its three ends on our side.
pub struct Pipes {
    pub stdin: ChildStdin,
    pub stdout: ChildStdout,
    pub stderr: ChildStderr,
}

/// What is started.
pub struct Start<'a> {
    pub command: &'a str,
    pub args: &'a [SecretString],
    pub environment: BTreeMap<String, String>,
    pub cwd: &'a Path,
    /// The soft limit of open files that the child is to have, where ours was raised.
    pub nofile: Option<u64>,
}

impl Process {
    /// Starts a child, without a shell.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(start: Start<'_>) -> io::Result<(Process, Pipes)> {
        let mut command = Command::new(start.command);
        command
            .args(start.args.iter().map(ExposeSecret::expose_secret))
            .env_clear()
            .envs(start.environment)
            .current_dir(start.cwd)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let deaths = signal(SignalKind::child())?;
        let mut child = command.spawn()?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        let pid = pid.ok_or_else(|| io::Error::other("the child has no pid"))?;
        // From here on the group ends with this, whatever fails below.
        let group = Group { leader: pid, reaped: false };
        if let Some(current) = start.nofile {
            let limit = Rlimit { current: Some(current), maximum: getrlimit(Resource::Nofile).maximum };
            if let Err(error) = prlimit(Some(pid), Resource::Nofile, limit) {
                tracing::debug!(%error, "the child keeps our limit of open files");
            }
        }
        match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
            (Some(stdin), Some(stdout), Some(stderr)) => {
                Ok((Process { child, group, deaths }, Pipes { stdin, stdout, stderr }))
            }
            _ => Err(io::Error::other("the child has no pipes")),
        }
    }

    /// Ends when the child has exited. It is not yet reaped then, so that its group's number is still its own.
    pub async fn exited(&mut self) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        // A child that cannot be asked about is not ours to wait for any more.
        while let Ok(None) = waitid(WaitId::Pid(self.group.leader), options) {
            if self.deaths.recv().await.is_none() {
                return;
            }
        }
    }

    /// Brings the child to its end: by a closed stdin, which `close_stdin` asks for, then TERM, then KILL to all of
    /// its group. Whatever is left of the group when the child has gone is killed.
    pub async fn end(mut self, close_stdin: &CancellationToken) -> io::Result<ExitStatus> {
        close_stdin.cancel();
        for signal in [Signal::TERM, Signal::KILL] {
            if tokio::time::timeout(PATIENCE, self.exited()).await.is_ok() {
                break;
            }
            self.group.signal(signal);
        }
        self.exited().await;
        self.group.signal(Signal::KILL);
        let status = self.child.wait().await;
        self.group.reaped = true;
        status
    }
}

/// A process group whose leader has not been reaped, so that its number is nobody else's.
struct Group {
    leader: Pid,
    reaped: bool,
}

impl Group {
    fn signal(&self, signal: Signal) {
        // A group that is empty is as good as signalled.
        let _ = kill_process_group(self.leader, signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(Signal::KILL);
        }
    }
}

/// How a child ended, in words.
pub fn describe(status: &io::Result<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt;
    match status {
        Ok(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("it exited with status {code}"),
            (None, Some(signal)) => format!("it was killed by signal {signal}"),
            (None, None) => "it ended".to_owned(),
        },
        Err(error) => format!("it ended, and how is not known: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::test_kill_process_group;
    use tokio::io::{AsyncBufReadExt, BufReader};

    use super::*;

    fn shell(script: &str) -> (Process, Pipes) {
        Process::start(Start {
            command: "sh",
            args: &["-c".into(), script.into()],
            environment: [("PATH".to_owned(), std::env::var("PATH").unwrap())].into(),
            cwd: "/".as_ref(),
            nofile: Some(512),
        })
        .unwrap()
    }

    async fn line(pipes: &mut Pipes) -> String {
        BufReader::new(&mut pipes.stdout).lines().next_line().await.unwrap().unwrap()
    }

    #[tokio::test]
    async fn a_child_that_ends_with_its_stdin_is_not_signalled() {
        let (process, Pipes { stdin, .. }) = shell("read x; exit 7");
        drop(stdin);
        let status = process.end(&CancellationToken::new()).await;
        assert_eq!(describe(&status), "it exited with status 7");
    }

    #[tokio::test]
    async fn a_stubborn_child_and_its_grandchildren_are_gone_afterwards() {
        let (process, mut pipes) = shell("trap '' TERM; sleep 600 & echo up; while :; do sleep 600; done");
        line(&mut pipes).await;
        let group = process.group.leader;
        let status = process.end(&CancellationToken::new()).await;
        assert_eq!(describe(&status), "it was killed by signal 9");
        gone(group).await;
    }

    #[tokio::test]
    async fn a_child_that_exits_by_itself_leaves_no_grandchild() {
        let (mut process, mut pipes) = shell("sleep 600 & echo up; exit 0");
        line(&mut pipes).await;
        process.exited().await;
        let group = process.group.leader;
        process.end(&CancellationToken::new()).await.unwrap();
        gone(group).await;
    }

    /// Waits until nothing of a group lives. What was killed is init's to reap; until then it is a zombie.
    async fn gone(group: Pid) {
        while !(test_kill_process_group(group).is_err() || only_zombies(group)) {
            tokio::task::yield_now().await;
        }
    }

    fn only_zombies(group: Pid) -> bool {
        let group = group.as_raw_nonzero().to_string();
        let stats = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        let of_group = stats.filter_map(|stat| {
            let fields: Vec<String> =
                stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect();
            (fields.get(2)? == &group).then(|| fields[0].clone())
        });
        of_group.into_iter().all(|state| state == "Z")
    }

    #[tokio::test]
    async fn a_process_that_is_dropped_takes_its_group_with_it() {
        let (process, mut pipes) = shell("sleep 600 & echo up; wait");
        line(&mut pipes).await;
        let group = process.group.leader;
        drop(process);
        gone(group).await;
    }

    #[tokio::test]
    async fn a_child_has_the_limit_of_open_files_that_it_is_to_have() {
        let (process, mut pipes) = shell("read x; ulimit -Sn");
        use tokio::io::AsyncWriteExt;
        pipes.stdin.write_all(b"\n").await.unwrap();
        assert_eq!(line(&mut pipes).await, "512");
        process.end(&CancellationToken::new()).await.unwrap();
    }
}
