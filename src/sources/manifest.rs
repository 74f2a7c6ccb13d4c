//! Decides which files a `--config` path stands for: itself, or the settings files of the directory that it is.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Endings of the files that are read from a directory.
const ENDINGS: [&str; 3] = ["json", "yaml", "yml"];

/// The files that `path` stands for, low to high.
///
/// # Errors
/// When it is a directory that cannot be listed.
pub fn files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        // What is no directory is read as the file that it should be, and told of as that.
        Err(error) if matches!(error.kind(), ErrorKind::NotADirectory | ErrorKind::NotFound) => {
            return Ok(vec![path.to_owned()]);
        }
        Err(error) => return Err(error),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if is_settings(&path) {
            files.push(path);
        }
    }
    files.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    Ok(files)
}

/// Hidden names are editors' and the kubelet's own: `..data`, `.#settings.json`.
fn is_settings(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_bytes().starts_with(b"."));
    let ending = path.extension().and_then(|ending| ending.to_str());
    !hidden && ending.is_some_and(|ending| ENDINGS.contains(&ending)) && !path.is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_stands_for_its_settings_files_in_byte_order() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.yaml", "a.yml", "B.json", ".hidden.json", "c.json~", "README.md"] {
            fs::write(dir.path().join(name), "{}").unwrap();
        }
        fs::create_dir(dir.path().join("d.json")).unwrap();
        let names: Vec<_> =
            files(dir.path()).unwrap().iter().map(|p| p.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["B.json", "a.yml", "b.yaml"]);
    }

    #[test]
    fn anything_else_stands_for_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.json");
        let itself = vec![path.clone()];
        assert_eq!(files(&path).unwrap(), itself);
        fs::write(&path, "{}").unwrap();
        assert_eq!(files(&path).unwrap(), itself);
    }
}
