//! Owns the file by which the commands find the running sidecar of a workspace.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::model::Root;
use crate::model::server::hex;

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    pub pid: u32,
    pub listen: SocketAddr,
    pub ops_listen: SocketAddr,
}

/// Why the running sidecar could not be found, or another one runs.
#[derive(Debug, thiserror::Error)]
pub enum RunFileError {
    #[error("no sidecar runs for the workspace {0}; start one with mcp-reconciler --workspace {0}")]
    NotRunning(Root),
    #[error("{path}: {error}; is XDG_RUNTIME_DIR a directory of yours?")]
    Io { path: PathBuf, error: io::Error },
    #[error("{0}: it belongs to another user; set XDG_RUNTIME_DIR to a directory of yours")]
    NotOurs(PathBuf),
}

/// The file of this process, locked as long as it lives and removed with it.
#[derive(Debug)]
pub struct RunFile {
    path: PathBuf,
    _lock: File,
}

impl Drop for RunFile {
    fn drop(&mut self) {
        // A file that stays behind is not locked, and so not believed.
        let _ = fs::remove_file(&self.path);
    }
}

/// Where the files are: below `XDG_RUNTIME_DIR`, else below the temporary directory under our user's number.
pub fn directory(runtime_dir: Option<&Path>) -> PathBuf {
    match runtime_dir {
        Some(dir) => dir.join("mcp-reconciler"),
        None => std::env::temp_dir().join(format!("mcp-reconciler-{}", rustix::process::geteuid().as_raw())),
    }
}

fn path(directory: &Path, root: &Root) -> PathBuf {
    let digest: [u8; 32] = Sha256::digest(root.path().as_os_str().as_encoded_bytes()).into();
    directory.join(format!("{}.json", hex(&digest[..8])))
}

/// Leaves the file for `root`. Nothing when another sidecar of the same workspace holds it: that one goes on being
/// found.
///
/// # Errors
/// When the directory cannot be made or is not ours, or the file cannot be written.
pub fn write(directory: &Path, root: &Root, run: &Run) -> Result<Option<RunFile>, RunFileError> {
    let io = |error| RunFileError::Io { path: directory.to_owned(), error };
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(io)?;
    if fs::metadata(directory).map_err(io)?.uid() != rustix::process::geteuid().as_raw() {
        return Err(RunFileError::NotOurs(directory.to_owned()));
    }
    let path = path(directory, root);
    let io = |error| RunFileError::Io { path: path.clone(), error };
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(io)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(None),
        Err(TryLockError::Error(error)) => return Err(io(error)),
    }
    let text = serde_json::to_string(run).expect("plain data always serialises");
    file.set_len(0).and_then(|()| file.write_all(text.as_bytes())).map_err(io)?;
    Ok(Some(RunFile { path, _lock: file }))
}

/// The running sidecar of `root`.
///
/// # Errors
/// When there is none, or the file cannot be read.
pub fn read(directory: &Path, root: &Root) -> Result<Run, RunFileError> {
    let path = path(directory, root);
    let io = |error| RunFileError::Io { path: path.clone(), error };
    let file = match File::open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(RunFileError::NotRunning(root.clone()));
        }
        Err(error) => return Err(io(error)),
    };
    match file.try_lock_shared() {
        // Whoever could lock it has no living writer before it.
        Ok(()) => Err(RunFileError::NotRunning(root.clone())),
        Err(TryLockError::Error(error)) => Err(io(error)),
        Err(TryLockError::WouldBlock) => serde_json::from_reader(file)
            .map_err(|error| io(io::Error::new(io::ErrorKind::InvalidData, error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sidecar_is_found_while_it_lives_and_only_the_first_of_a_workspace() {
        let dir = tempfile::tempdir().unwrap();
        let directory = directory(Some(dir.path()));
        let root = Root::new(dir.path(), "w".as_ref());
        let run = Run {
            pid: 7,
            listen: "127.0.0.1:1".parse().unwrap(),
            ops_listen: "127.0.0.1:2".parse().unwrap(),
        };
        assert!(matches!(read(&directory, &root), Err(RunFileError::NotRunning(_))));
        let held = write(&directory, &root, &run).unwrap().unwrap();
        assert_eq!(read(&directory, &root).unwrap(), run);
        assert!(write(&directory, &root, &run).unwrap().is_none());
        assert_eq!(fs::metadata(path(&directory, &root)).unwrap().mode() & 0o777, 0o600);
        drop(held);
        assert!(matches!(read(&directory, &root), Err(RunFileError::NotRunning(_))));
    }

    #[test]
    fn a_file_whose_writer_is_gone_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let root = Root::new(dir.path(), "w".as_ref());
        fs::write(path(dir.path(), &root), r#"{"pid":1,"listen":"127.0.0.1:1","ops_listen":"127.0.0.1:2"}"#)
            .unwrap();
        assert!(matches!(read(dir.path(), &root), Err(RunFileError::NotRunning(_))));
    }
}
