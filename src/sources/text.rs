//! Decides what of a file is taken as its text: a regular file of at most 8 MiB, in UTF-8, with something in it.

use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use super::node::{Fault, Place};

/// The largest file that is read, in bytes.
pub const MAX_BYTES: u64 = 8 * 1024 * 1024;

/// The text of the file at `path`; nothing when there is no such file.
///
/// # Errors
/// When it cannot be read or is no text file; that is never taken for an absent one.
pub fn read(path: &Path) -> Result<Option<String>, Fault> {
    let file = match open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Fault::whole(cannot_read(&error))),
    };
    let metadata = file.metadata().map_err(|error| Fault::whole(cannot_read(&error)))?;
    if !metadata.is_file() {
        return Err(Fault::whole(format!("a file is needed, this is {}", kind(metadata.file_type()))));
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| Fault::whole(cannot_read(&error)))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Fault::whole("larger than 8 MiB"));
    }
    decode(bytes).map(Some)
}

/// Opening must not hang, whatever stands there: a FIFO without a writer would.
fn open(path: &Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).map_err(io::Error::other)?;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn cannot_read(error: &io::Error) -> String {
    format!("cannot be read: {error}")
}

fn kind(file: FileType) -> &'static str {
    if file.is_dir() {
        "a directory"
    } else if file.is_fifo() {
        "a FIFO"
    } else if file.is_socket() {
        "a socket"
    } else {
        "a device"
    }
}

fn decode(bytes: Vec<u8>) -> Result<String, Fault> {
    if bytes.starts_with(&[0xff, 0xfe]) || bytes.starts_with(&[0xfe, 0xff]) {
        return Err(Fault::whole("it is UTF-16; save it as UTF-8"));
    }
    let mut text = String::from_utf8(bytes).map_err(|error| {
        let valid = String::from_utf8_lossy(&error.as_bytes()[..error.utf8_error().valid_up_to()]);
        Fault::at(end(&valid), "not UTF-8")
    })?;
    if text.starts_with('\u{feff}') {
        text.drain(..'\u{feff}'.len_utf8());
    }
    // A file that is being written is empty first: that must not mean "nothing wanted".
    if text.trim().is_empty() {
        return Err(Fault::whole("it is empty; write {} to ask for nothing"));
    }
    Ok(text)
}

/// The place after the last character of `text`.
fn end(text: &str) -> Place {
    let line = text.matches('\n').count() + 1;
    let column = text.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
    (line, column)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_is_not_a_readable_text_file_is_bad_and_only_no_such_file_is_absent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings.json");
        assert_eq!(read(&path), Ok(None));
        let fault = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            read(&path).unwrap_err()
        };
        assert!(fault(b"").message.contains("empty"));
        assert!(fault(b" \r\n").message.contains("empty"));
        assert!(fault(b"\xff\xfe{\0}\0").message.contains("UTF-16"));
        assert_eq!(fault(b"{\n \"\xff\"").at, Some((2, 3)));
        assert!(fault(&vec![b' '; 8 * 1024 * 1024 + 1]).message.contains("8 MiB"));
        assert!(read(dir.path()).unwrap_err().message.contains("a directory"));
        assert!(read(&path.join("below")).is_err(), "a file in the place of a directory is no absence");
        let link = dir.path().join("loop");
        std::os::unix::fs::symlink("loop", &link).unwrap();
        assert!(read(&link).is_err(), "what cannot be opened is no absence");
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert!(read(&fifo).unwrap_err().message.contains("FIFO"));
    }

    #[test]
    fn a_byte_order_mark_is_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("settings.json");
        fs::write(&path, "\u{feff}{}").unwrap();
        assert_eq!(read(&path), Ok(Some("{}".to_owned())));
    }
}
