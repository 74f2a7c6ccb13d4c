//! Owns the connection to a child process: its lines in and out, and how its end is told.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::framing::{Frame, Frames};
use super::link::Life;
use super::mask::Mask;
use super::peer::{Peer, Wire};
use super::process::{Pipes, Process, Start, describe};
use super::stderr::{Tail, drain};
use crate::controller::connector::{OpenError, OpenReason};
use crate::model::{Root, ServerName};

/// Messages that may wait for a child to read.
const WAITING: usize = 64;

/// How long the last words of a child that has exited are awaited.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Starts a child and connects to it.
///
/// # Errors
/// When it cannot be started; the text names its command and what is missing.
pub fn open(
    name: ServerName,
    root: Root,
    mask: Mask,
    start: Start<'_>,
) -> Result<(Arc<Peer>, Life), OpenError> {
    let spawn = |message| OpenError { reason: OpenReason::Spawn, message };
    if !start.cwd.is_dir() {
        return Err(spawn(format!("its cwd {} is no directory", start.cwd.display())));
    }
    let program = Path::new(start.command).file_name().map(|name| name.to_string_lossy().into_owned());
    let program = program.unwrap_or_default();
    let (mut process, pipes) =
        Process::start(start).map_err(|error| spawn(format!("{program} cannot be started: {error}")))?;
    let Pipes { stdin, stdout, stderr } = pipes;
    let (lines, to_child) = mpsc::channel(WAITING);
    let peer = Peer::new(name.clone(), mask.clone(), root, Wire::Lines(lines));
    let life = Life::default();
    let tail = Tail::default();
    let draining = tokio::spawn(drain(name, stderr, tail.clone(), mask));
    let stdin_closed = CancellationToken::new();
    tokio::spawn(write(stdin, to_child, stdin_closed.clone()));
    let reading = tokio::spawn(read(stdout, peer.clone()));
    tokio::spawn({
        let (peer, life) = (peer.clone(), life.clone());
        async move {
            let asked = life.closing.run_until_cancelled(process.exited()).await.is_none();
            let status = process.end(&stdin_closed).await;
            // Something that left the group may hold the pipes open for ever.
            let _ = tokio::time::timeout(LAST_WORDS, async { tokio::join!(reading, draining) }).await;
            peer.end(match asked {
                true => "the connection was closed".to_owned(),
                false => with_last_line(describe(&status), tail.last_line(&peer.mask)),
            });
            life.closed.cancel();
        }
    });
    Ok((peer, life))
}

fn with_last_line(what: String, line: Option<String>) -> String {
    match line {
        Some(line) => format!("{what}; its stderr ends: {line}"),
        None => what,
    }
}

/// Writes line by line, until the connection is closed or the child takes no more.
async fn write(mut stdin: ChildStdin, mut lines: mpsc::Receiver<String>, closed: CancellationToken) {
    let writing = async {
        while let Some(mut line) = lines.recv().await {
            line.push('\n');
            if stdin.write_all(line.as_bytes()).await.is_err() {
                return;
            }
        }
    };
    let _ = closed.run_until_cancelled(writing).await;
}

/// The one reader of this connection, which is why messages stay in order.
async fn read(stdout: ChildStdout, peer: Arc<Peer>) {
    let mut frames = Frames::new(BufReader::new(stdout));
    while let Ok(Some(frame)) = frames.next().await {
        match frame {
            Frame::Line(line) => peer.receive(line),
            Frame::TooLong(head) => peer.receive_too_long(head),
        }
    }
}
