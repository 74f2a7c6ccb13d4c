//! Decides which directories are watched, and which names in them matter, so that every way to save a file is seen.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Directories to watch, each with the names in it that matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interest(BTreeMap<PathBuf, Names>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Names {
    All,
    These(BTreeSet<OsString>),
}

/// The most links that are followed on one path, as in the kernel.
const MAX_LINKS: usize = 40;

impl Interest {
    /// All that can change what is read at `path`: the file in its directory, that directory in its own, each link on
    /// the way, and where something is missing, the nearest that is there.
    pub fn file(&mut self, path: &Path) {
        let mut left: Vec<OsString> = names(path).rev().collect();
        let mut here = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = left.pop() {
            if name == ".." {
                here.pop();
                continue;
            }
            let next = here.join(&name);
            let Ok(metadata) = fs::symlink_metadata(&next) else {
                return self.name(&here, &name);
            };
            let link = metadata.is_symlink();
            if link || left.len() <= 1 {
                self.name(&here, &name);
            }
            if !link {
                here = next;
                continue;
            }
            links += 1;
            let Ok(target) = fs::read_link(&next) else { return };
            if links > MAX_LINKS {
                return;
            }
            if target.is_absolute() {
                here = PathBuf::from("/");
            }
            left.extend(names(&target).rev());
        }
    }

    /// All that can change what is read in the directory `path`.
    pub fn directory(&mut self, path: &Path, files: &[PathBuf]) {
        self.file(path);
        if let Ok(real) = fs::canonicalize(path).and_then(|real| fs::read_dir(&real).map(|_| real)) {
            self.0.insert(real, Names::All);
        }
        for file in files.iter().filter(|file| file.is_symlink()) {
            self.file(file);
        }
    }

    fn name(&mut self, directory: &Path, name: &OsStr) {
        match self.0.entry(directory.to_owned()).or_insert_with(|| Names::These(BTreeSet::new())) {
            Names::All => {}
            Names::These(names) => {
                names.insert(name.to_owned());
            }
        }
    }

    /// Whether an event at `path` can have changed anything that is read.
    pub fn matters(&self, path: &Path) -> bool {
        let named = match (path.parent().and_then(|parent| self.0.get(parent)), path.file_name()) {
            (Some(Names::All), _) => true,
            (Some(Names::These(names)), Some(name)) => names.contains(name),
            (Some(Names::These(_)), None) | (None, _) => false,
        };
        named || self.0.contains_key(path)
    }

    pub fn directories(&self) -> impl Iterator<Item = &Path> {
        self.0.keys().map(PathBuf::as_path)
    }

    pub fn contains(&self, directory: &Path) -> bool {
        self.0.contains_key(directory)
    }
}

fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn temp() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let real = fs::canonicalize(dir.path()).unwrap();
        (dir, real)
    }

    fn file(path: &Path) -> Interest {
        let mut interest = Interest::default();
        interest.file(path);
        interest
    }

    #[test]
    fn a_file_matters_in_its_directory_and_the_directory_in_its_own() {
        let (_dir, root) = temp();
        fs::create_dir(root.join(".qwen")).unwrap();
        let interest = file(&root.join(".qwen/settings.json"));
        assert_eq!(interest.directories().collect::<Vec<_>>(), [&root, &root.join(".qwen")]);
        for (path, matters) in [
            (".qwen/settings.json", true),
            (".qwen/settings.json~", false),
            (".qwen", true),
            ("", true),
            ("notes.txt", false),
        ] {
            assert_eq!(interest.matters(&root.join(path)), matters, "{path}");
        }
    }

    #[test]
    fn what_is_missing_is_awaited_in_the_nearest_directory_that_is_there() {
        let (_dir, root) = temp();
        let interest = file(&root.join("a/b/settings.json"));
        assert_eq!(interest.directories().collect::<Vec<_>>(), [&root]);
        assert!(interest.matters(&root.join("a")));
    }

    #[test]
    fn every_link_on_the_way_matters_and_what_it_leads_to() {
        let (_dir, root) = temp();
        fs::create_dir_all(root.join("mount/..ts1")).unwrap();
        fs::write(root.join("mount/..ts1/s.json"), "{}").unwrap();
        symlink("..ts1", root.join("mount/..data")).unwrap();
        symlink("..data/s.json", root.join("mount/s.json")).unwrap();
        symlink(root.join("mount"), root.join("link")).unwrap();
        let interest = file(&root.join("link/s.json"));
        for path in ["link", "mount", "mount/s.json", "mount/..data", "mount/..ts1", "mount/..ts1/s.json"] {
            assert!(interest.matters(&root.join(path)), "{path}");
        }
    }

    #[test]
    fn a_link_to_itself_ends() {
        let (_dir, root) = temp();
        symlink("loop", root.join("loop")).unwrap();
        assert!(file(&root.join("loop/x")).matters(&root.join("loop")));
    }

    #[test]
    fn every_name_in_a_configuration_directory_matters() {
        let (_dir, root) = temp();
        let mut interest = Interest::default();
        interest.directory(&root.join("conf"), &[]);
        assert!(interest.matters(&root.join("conf")) && !interest.matters(&root.join("conf/x.json")));
        fs::create_dir(root.join("conf")).unwrap();
        interest.directory(&root.join("conf"), &[]);
        assert!(interest.matters(&root.join("conf/x.json")));
    }
}
