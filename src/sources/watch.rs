//! Owns the watches: they are reconciled with what is read after every read, and any event is only a hint.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::interest::Interest;
use crate::controller::snapshot::Watching;

/// The longest that a burst of events puts a read off.
const CEILING: Duration = Duration::from_secs(2);

/// File systems on which changes made elsewhere raise no event here, by their magic number.
const WITHOUT_EVENTS: [(u64, &str); 9] = [
    (0x6969, "nfs"),
    (0x517b, "smb"),
    (0xfe53_4d42, "smb"),
    (0xff53_4d42, "cifs"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "fuse"),
    (0x00c3_6400, "ceph"),
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
];

/// The watches of one process.
pub struct Watch {
    shared: Arc<Shared>,
    armed: Mutex<Armed>,
}

/// What the watcher's own thread sees.
struct Shared {
    interest: Mutex<Interest>,
    /// Watched directories that were removed or renamed: the kernel has dropped these watches, or follows the wrong
    /// directory with them.
    stale: Mutex<BTreeSet<PathBuf>>,
    changed: Arc<Notify>,
}

#[derive(Default)]
struct Armed {
    watcher: Option<RecommendedWatcher>,
    /// Each watched directory with its device and inode.
    watched: BTreeMap<PathBuf, (u64, u64)>,
}

impl Watch {
    /// No watch yet. `changed` is notified of every event that matters.
    pub fn new(changed: Arc<Notify>) -> Self {
        let shared = Shared { interest: Mutex::default(), stale: Mutex::default(), changed };
        Watch { shared: Arc::new(shared), armed: Mutex::default() }
    }

    /// Makes the watches what `interest` asks for. `problems` are known of already. Says whether one was added: what changed before it stood has raised
    /// no event.
    pub fn arm(&self, interest: &Interest, mut problems: Vec<String>) -> (bool, Watching) {
        *lock(&self.shared.interest) = interest.clone();
        let mut armed = lock(&self.armed);
        let Armed { watcher, watched } = &mut *armed;
        if watcher.is_none() {
            let shared = self.shared.clone();
            match notify::recommended_watcher(move |event| shared.take(event)) {
                Ok(new) => *watcher = Some(new),
                Err(error) => return (false, inactive(format!("no file events: {}", advice(&error)))),
            }
        }
        let Some(watcher) = watcher else { return (false, inactive(String::new())) };
        let stale = std::mem::take(&mut *lock(&self.shared.stale));
        watched.retain(|directory, id| {
            let keep = interest.contains(directory)
                && !stale.contains(directory)
                && identity(directory) == Some(*id);
            if !keep {
                // It may be gone already, and the watch with it.
                let _ = watcher.unwatch(directory);
            }
            keep
        });
        let mut added = false;
        for directory in interest.directories() {
            if let Some(kind) = without_events(directory) {
                problems.push(format!("{} is on {kind}, which may raise no events", directory.display()));
            }
            let (false, Some(id)) = (watched.contains_key(directory), identity(directory)) else { continue };
            match watcher.watch(directory, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    watched.insert(directory.to_owned(), id);
                    added = true;
                }
                Err(error) => problems.push(format!("{}: {}", directory.display(), advice(&error))),
            }
        }
        let watching = match problems.is_empty() {
            true => Watching { active: true, message: String::new() },
            false => inactive(problems.join("; ")),
        };
        (added, watching)
    }

    #[cfg(test)]
    pub(super) fn take_for_test(&self, event: notify::Result<Event>) {
        self.shared.take(event);
    }
}

impl Shared {
    fn take(&self, event: notify::Result<Event>) {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                tracing::debug!(%error, "file events");
                return self.changed.notify_one();
            }
        };
        // Our own reads open and close the files: taken for changes they would never end.
        let is_read = match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => false,
            EventKind::Access(_) => true,
            EventKind::Any
            | EventKind::Create(_)
            | EventKind::Modify(_)
            | EventKind::Remove(_)
            | EventKind::Other => false,
        };
        if is_read && !event.need_rescan() {
            return;
        }
        let interest = lock(&self.interest);
        if matches!(event.kind, EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_))) {
            let watched = event.paths.iter().filter(|path| interest.contains(path));
            lock(&self.stale).extend(watched.cloned());
        }
        if event.need_rescan() || event.paths.iter().any(|path| interest.matters(path)) {
            self.changed.notify_one();
        }
    }
}

/// Passes bursts of events on as one hint each: after `quiet` without another, and at most 2 s after the first.
pub async fn settle(changed: Arc<Notify>, hint: Arc<Notify>, quiet: Duration) {
    loop {
        changed.notified().await;
        let ceiling = Instant::now() + CEILING.max(quiet);
        loop {
            let until = ceiling.min(Instant::now() + quiet);
            if timeout_at(until, changed.notified()).await.is_err() || Instant::now() >= ceiling {
                break;
            }
        }
        hint.notify_one();
    }
}

fn inactive(message: String) -> Watching {
    Watching { active: false, message: format!("{message}; the timer finds changes") }
}

fn advice(error: &notify::Error) -> String {
    if matches!(error.kind, notify::ErrorKind::MaxFilesWatch) {
        "out of inotify watches; raise fs.inotify.max_user_watches".to_owned()
    } else {
        error.to_string()
    }
}

/// The files of `paths` that are mounts themselves: what replaces them outside is not seen here.
pub fn mounts(mountinfo: &str, paths: &[PathBuf]) -> Vec<String> {
    let points: BTreeSet<&Path> =
        mountinfo.lines().filter_map(|line| line.split(' ').nth(4)).map(Path::new).collect();
    let mounted = paths.iter().filter(|path| points.contains(path.as_path()));
    mounted
        .map(|path| {
            format!(
                "{} is mounted by itself, so that a replaced one is not seen: mount its directory",
                path.display()
            )
        })
        .collect()
}

fn identity(directory: &Path) -> Option<(u64, u64)> {
    fs::metadata(directory).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

fn without_events(directory: &Path) -> Option<&'static str> {
    let magic = u64::try_from(rustix::fs::statfs(directory).ok()?.f_type).ok()?;
    WITHOUT_EVENTS.iter().find(|(known, _)| *known == magic).map(|(_, name)| *name)
}

/// Held for map operations only, never across an await; a panic inside leaves the maps whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn hints_of(events: &[u64], quiet: Duration) -> Vec<u64> {
        let (changed, hint) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let settling = tokio::spawn(settle(changed.clone(), hint.clone(), quiet));
        let start = Instant::now();
        let collected = tokio::spawn(async move {
            let mut hints = Vec::new();
            while timeout_at(start + Duration::from_secs(20), hint.notified()).await.is_ok() {
                hints.push(u64::try_from(start.elapsed().as_millis()).unwrap());
            }
            hints
        });
        for at in events {
            tokio::time::sleep_until(start + Duration::from_millis(*at)).await;
            changed.notify_one();
        }
        let hints = collected.await.unwrap();
        settling.abort();
        hints
    }

    #[test]
    fn a_file_that_is_a_mount_is_told() {
        let mountinfo =
            "36 35 98:0 /s /conf/settings.json rw - ext4 /dev/x rw\n37 35 98:0 / /data rw - ext4 /dev/x rw\n";
        let paths = [PathBuf::from("/conf/settings.json"), PathBuf::from("/data/settings.json")];
        let told = mounts(mountinfo, &paths);
        assert!(
            told.len() == 1 && told[0].starts_with("/conf/settings.json is mounted by itself"),
            "{told:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_is_one_hint_after_it_is_quiet() {
        assert_eq!(hints_of(&[0, 100, 350, 600], Duration::from_millis(300)).await, [900]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_without_end_is_a_hint_every_two_seconds() {
        let events: Vec<u64> = (0..50).map(|i| i * 100).collect();
        let hints = hints_of(&events, Duration::from_millis(300)).await;
        assert_eq!(hints.len(), 3, "{hints:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_settling_time_each_event_is_a_hint() {
        assert_eq!(hints_of(&[10, 400], Duration::ZERO).await, [10, 400]);
    }
}
