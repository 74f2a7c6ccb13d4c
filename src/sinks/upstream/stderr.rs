//! Owns what a child last wrote to stderr: always drained, never more than a bounded tail of it kept.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::{AsyncRead, AsyncReadExt};

use super::mask::Mask;
use crate::model::ServerName;

/// How much is kept, in bytes.
const KEPT: usize = 8 * 1024;

/// The tail of a child's stderr.
#[derive(Clone, Default)]
pub struct Tail(Arc<Mutex<VecDeque<u8>>>);

impl Tail {
    fn push(&self, bytes: &[u8]) {
        let mut tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tail.extend(&bytes[bytes.len().saturating_sub(KEPT)..]);
        let excess = tail.len().saturating_sub(KEPT);
        tail.drain(..excess);
    }

    /// The last line that says something, masked.
    pub fn last_line(&self, mask: &Mask) -> Option<String> {
        let tail = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = tail.iter().copied().collect();
        drop(tail);
        let text = String::from_utf8_lossy(&bytes);
        text.lines().rev().map(|line| mask.line(line)).find(|line| !line.is_empty())
    }
}

/// Reads all there is, for ever: a child whose stderr is full would stand still.
pub async fn drain(name: ServerName, mut stderr: impl AsyncRead + Unpin, tail: Tail, mask: Mask) {
    let mut line = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = stderr.read(&mut buffer).await {
        tail.push(&buffer[..n]);
        if !tracing::enabled!(tracing::Level::DEBUG) {
            continue;
        }
        line.extend_from_slice(&buffer[..n]);
        while let Some(end) = line.iter().position(|byte| *byte == b'\n') {
            let whole: Vec<u8> = line.drain(..=end).collect();
            tracing::debug!(server = %name, line = mask.line(&String::from_utf8_lossy(&whole)), "stderr");
        }
        // A line without end is shown in pieces rather than kept.
        if line.len() > KEPT {
            tracing::debug!(server = %name, line = mask.line(&String::from_utf8_lossy(&line)), "stderr");
            line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Transport;

    fn mask() -> Mask {
        Mask::new(&Transport::Sse {
            url: "http://h/".into(),
            headers: [("a".to_owned(), "canary-value".into())].into(),
        })
    }

    #[tokio::test]
    async fn everything_is_read_and_only_the_end_kept_masked() {
        let text = format!("{}\nat last canary-value\n\n", "x".repeat(100_000));
        let tail = Tail::default();
        drain("s".into(), text.as_bytes(), tail.clone(), mask()).await;
        assert_eq!(tail.last_line(&mask()).as_deref(), Some("at last ***"));
        assert_eq!(tail.0.lock().unwrap().len(), KEPT);
    }
}
