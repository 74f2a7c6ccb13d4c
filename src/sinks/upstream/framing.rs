//! Decides what one line of a child's stdout is: at most 16 MiB, and nothing that is longer stops what follows.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// The longest message that is taken, in bytes.
pub const MAX_MESSAGE: usize = 16 * 1024 * 1024;

/// How much of a line that is too long is kept, to find out whose answer it was.
const KEPT: usize = 1024;

/// A buffer that one long line has made larger than this is not kept.
const SPARE: usize = 1024 * 1024;

/// What came.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A line, without its end.
    Line(&'a [u8]),
    /// The beginning of a line that was longer than allowed.
    TooLong(&'a [u8]),
}

/// Splits a stream into lines.
pub struct Frames<R> {
    input: R,
    buffer: Vec<u8>,
    limit: usize,
}

impl<R: AsyncBufRead + Unpin> Frames<R> {
    pub fn new(input: R) -> Self {
        Frames { input, buffer: Vec::new(), limit: MAX_MESSAGE }
    }

    /// The next line that is not blank; nothing at the end. What stands after the last line's end is no line.
    ///
    /// # Errors
    /// When reading fails.
    pub async fn next(&mut self) -> io::Result<Option<Frame<'_>>> {
        if self.buffer.capacity() > SPARE {
            self.buffer = Vec::new();
        }
        loop {
            self.buffer.clear();
            match self.fill().await? {
                None => return Ok(None),
                Some(true) => return Ok(Some(Frame::TooLong(&self.buffer))),
                Some(false) if self.buffer.trim_ascii().is_empty() => {}
                Some(false) => return Ok(Some(Frame::Line(self.buffer.trim_ascii()))),
            }
        }
    }

    /// Reads one line into the buffer; says whether it was too long.
    async fn fill(&mut self) -> io::Result<Option<bool>> {
        let mut too_long = false;
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                return Ok(None);
            }
            let end = available.iter().position(|byte| *byte == b'\n');
            let part = &available[..end.unwrap_or(available.len())];
            let room = if too_long { 0 } else { self.limit - self.buffer.len() };
            self.buffer.extend_from_slice(&part[..part.len().min(room)]);
            if part.len() > room && !too_long {
                too_long = true;
                self.buffer.truncate(KEPT);
                self.buffer.shrink_to_fit();
            }
            let consumed = end.map_or(available.len(), |end| end + 1);
            self.input.consume(consumed);
            if end.is_some() {
                return Ok(Some(too_long));
            }
        }
    }
}

/// The id of the response that begins with `head`, where it stands before everything that could hold another.
pub fn response_id(head: &[u8]) -> Option<u64> {
    let head = String::from_utf8_lossy(head);
    let before = ["\"result\"", "\"error\"", "\"method\"", "\"params\""]
        .iter()
        .filter_map(|key| head.find(key))
        .min()
        .unwrap_or(head.len());
    let (_, after) = head[..before].split_once("\"id\"")?;
    let digits = after.trim_start().strip_prefix(':')?.trim_start();
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    async fn frames(parts: &[&str], limit: usize) -> Vec<String> {
        let mut input = tokio_test_reader(parts);
        input.limit = limit;
        let mut out = Vec::new();
        while let Some(frame) = input.next().await.unwrap() {
            out.push(match frame {
                Frame::Line(line) => String::from_utf8_lossy(line).into_owned(),
                Frame::TooLong(head) => format!("too long: {}", String::from_utf8_lossy(head)),
            });
        }
        out
    }

    /// A reader that gives the parts one by one.
    fn tokio_test_reader(parts: &[&str]) -> Frames<BufReader<impl tokio::io::AsyncRead + Unpin>> {
        let (mut far, near) = tokio::io::duplex(3);
        let parts: Vec<String> = parts.iter().map(|part| (*part).to_owned()).collect();
        tokio::spawn(async move {
            for part in parts {
                let _ = tokio::io::AsyncWriteExt::write_all(&mut far, part.as_bytes()).await;
            }
        });
        Frames::new(BufReader::new(near))
    }

    #[tokio::test]
    async fn lines_are_put_together_and_blank_ones_passed_over() {
        assert_eq!(frames(&["{\"a\"", ":1}\r\n\n", " \n{}\nrest"], 100).await, ["{\"a\":1}", "{}"]);
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_skipped_and_the_next_one_read() {
        assert_eq!(
            frames(&["12345678901\n", "ok\n", "1234567890\n"], 10).await,
            ["too long: 1234567890", "ok", "1234567890"]
        );
    }

    #[test]
    fn the_id_of_a_cut_response_is_known_when_it_stands_first() {
        for (head, id) in [
            (r#"{"jsonrpc":"2.0","id":17,"result":{"x"#, Some(17)),
            (r#"{"id" : 5 ,"error":{"#, Some(5)),
            (r#"{"result":{"id":17,"#, None),
            (r#"{"jsonrpc":"2.0","id":"a","result":"#, None),
        ] {
            assert_eq!(response_id(head.as_bytes()), id, "{head}");
        }
    }
}
