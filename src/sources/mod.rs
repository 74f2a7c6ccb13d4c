//! Where desired state comes from: reads every file afresh, each for itself, and keeps the watches on them.

pub mod approvals;
pub mod digest;
pub mod dotenv;
pub mod entry;
pub mod expand;
pub mod extensions;
pub mod interest;
pub mod json;
pub mod manifest;
pub mod node;
pub mod schema;
pub mod settings;
pub mod text;
pub mod trust;
pub mod watch;
pub mod yaml;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::controller::connector::Source;
use crate::controller::snapshot::{Layer, LayerReading, Reading, Readings, SourceError};
use crate::model::{Root, Scope};
use entry::Surroundings;
use expand::Variables;
use interest::Interest;
use node::{Fault, Node};
use watch::Watch;

/// What the files are found by.
#[derive(Debug, Clone)]
pub struct SourcesConfig {
    pub root: Root,
    /// The directory of the user's `settings.json`.
    pub settings_home: PathBuf,
    pub home: Option<PathBuf>,
    /// The operator's files and directories, low to high.
    pub config: Vec<PathBuf>,
    /// How long files must be quiet before they are read.
    pub settle: Duration,
    pub environment: BTreeMap<String, String>,
}

/// The files on disk.
pub struct Files {
    config: SourcesConfig,
    watch: Watch,
    changed: Arc<Notify>,
    kept: Mutex<Kept>,
}

/// What was last read of what is no document: that it cannot be read now takes nothing away.
#[derive(Default)]
struct Kept {
    env_files: BTreeMap<PathBuf, BTreeMap<String, String>>,
    /// The files of directories.
    listings: BTreeMap<PathBuf, Vec<PathBuf>>,
}

impl Kept {
    /// The files that `list` finds in `directory`.
    ///
    /// # Errors
    /// When it cannot be listed: what it last held, and why.
    fn list(
        &mut self,
        directory: &Path,
        list: fn(&Path) -> io::Result<Vec<PathBuf>>,
    ) -> Result<Vec<PathBuf>, (Vec<PathBuf>, SourceError)> {
        match list(directory) {
            Ok(files) => {
                self.listings.insert(directory.to_owned(), files.clone());
                Ok(files)
            }
            Err(error) => {
                let fault = Fault::whole(format!("cannot be listed: {error}"));
                let files = self.listings.get(directory).cloned().unwrap_or_default();
                Err((files, source_error(directory, fault)))
            }
        }
    }
}

/// How a document's servers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Settings,
    McpJson,
}

/// One document that is read.
struct Planned {
    scope: Scope,
    rank: usize,
    path: PathBuf,
    explicit: bool,
    shape: Shape,
}

impl Planned {
    fn reading(self, reading: Reading<Layer>) -> LayerReading {
        let Planned { scope, rank, path, explicit, shape: _ } = self;
        LayerReading { scope, rank, path, explicit, reading }
    }
}

impl Files {
    /// The files of `config`, and the task that turns their events into hints.
    pub fn new(
        config: SourcesConfig,
        hint: Arc<Notify>,
    ) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let changed = Arc::new(Notify::new());
        let settling = watch::settle(changed.clone(), hint, config.settle);
        let watch = Watch::new(changed.clone());
        (Files { config, watch, changed, kept: Mutex::default() }, settling)
    }

    fn variable(&self, name: &str) -> Option<PathBuf> {
        self.config
            .environment
            .get(name)
            .filter(|value| !value.is_empty())
            .map(|value| self.config.root.path().join(value))
    }

    fn approvals_path(&self) -> PathBuf {
        let own = || self.config.settings_home.join("mcpApprovals.json");
        self.variable("QWEN_CODE_MCP_APPROVALS_PATH").unwrap_or_else(own)
    }

    fn trust_path(&self) -> PathBuf {
        let own = || self.config.settings_home.join("trustedFolders.json");
        self.variable("QWEN_CODE_TRUSTED_FOLDERS_PATH").unwrap_or_else(own)
    }

    fn extensions_path(&self) -> PathBuf {
        self.config.settings_home.join("extensions")
    }

    fn env_paths(&self) -> Vec<PathBuf> {
        let home = self.config.home.iter().map(|home| home.join(".env"));
        std::iter::once(self.config.settings_home.join(".env")).chain(home).collect()
    }

    /// The documents that are not the operator's.
    fn settings(&self) -> Vec<Planned> {
        let system = || PathBuf::from("/etc/qwen-code/settings.json");
        let system = self.variable("QWEN_CODE_SYSTEM_SETTINGS_PATH").unwrap_or_else(system);
        let defaults = self
            .variable("QWEN_CODE_SYSTEM_DEFAULTS_PATH")
            .unwrap_or_else(|| system.with_file_name("system-defaults.json"));
        let root = self.config.root.path();
        let mut all = vec![
            (Scope::SystemDefaults, defaults, Shape::Settings),
            (Scope::User, self.config.settings_home.join("settings.json"), Shape::Settings),
            (Scope::Project, root.join(".mcp.json"), Shape::McpJson),
            (Scope::System, system, Shape::Settings),
        ];
        // In the home directory the workspace's file would be the user's own.
        let own = root.join(".qwen");
        let home = self.config.home.as_deref();
        if !same(root, home) && !same(&own, Some(&self.config.settings_home)) {
            all.push((Scope::Workspace, own.join("settings.json"), Shape::Settings));
        }
        let planned = |(scope, path, shape)| Planned { scope, rank: 0, path, explicit: false, shape };
        all.into_iter().map(planned).collect()
    }

    /// What is to be watched, as the directories stand now.
    fn interest(&self) -> Interest {
        let mut interest = Interest::default();
        let singles = [self.approvals_path(), self.trust_path()].into_iter().chain(self.env_paths());
        for path in self.settings().into_iter().map(|planned| planned.path).chain(singles) {
            interest.file(&path);
        }
        let extensions = self.extensions_path();
        let files = extensions::files(&extensions).unwrap_or_default();
        interest.directory(&extensions, &[]);
        files.iter().for_each(|file| interest.file(file));
        for path in &self.config.config {
            match path.is_dir() {
                true => interest.directory(path, &manifest::files(path).unwrap_or_default()),
                false => interest.file(path),
            }
        }
        interest
    }

    fn variables(&self, kept: &mut Kept) -> Variables {
        let kept = &mut kept.env_files;
        let mut files = Vec::new();
        for path in self.env_paths() {
            match text::read(&path) {
                Ok(Some(text)) => drop(kept.insert(path.clone(), dotenv::parse(&text))),
                Ok(None) => drop(kept.remove(&path)),
                Err(fault) => {
                    tracing::debug!(path = %path.display(), fault.message, "what it last held stands")
                }
            }
            files.extend(kept.get(&path).cloned());
        }
        Variables::new(&self.config.environment, files)
    }

    fn layers(&self, variables: &Variables, kept: &mut Kept) -> Vec<LayerReading> {
        let mut out = self.extensions(variables, kept);
        out.extend(self.settings().into_iter().map(|planned| self.layer(planned, variables)));
        for (rank, given) in self.config.config.iter().enumerate() {
            let planned =
                |path| Planned { scope: Scope::Config, rank, path, explicit: true, shape: Shape::Settings };
            match kept.list(given, manifest::files) {
                Ok(files) => out.extend(files.into_iter().map(|path| self.layer(planned(path), variables))),
                Err((files, error)) => {
                    let files = if files.is_empty() { vec![given.clone()] } else { files };
                    out.extend(
                        files.into_iter().map(|path| planned(path).reading(Reading::Bad(error.clone()))),
                    );
                }
            }
        }
        out
    }

    /// What extensions add. One that is disabled here adds nothing, at once.
    fn extensions(&self, variables: &Variables, kept: &mut Kept) -> Vec<LayerReading> {
        let directory = self.extensions_path();
        let planned = |path| Planned {
            scope: Scope::Extension,
            rank: 0,
            path,
            explicit: false,
            shape: Shape::Settings,
        };
        let enablement = document(&directory.join(extensions::ENABLEMENT), |rules, _| Ok(rules.clone()));
        let root = &self.config.root;
        match kept.list(&directory, extensions::files) {
            Err((files, error)) => {
                files.into_iter().map(|path| planned(path).reading(Reading::Bad(error.clone()))).collect()
            }
            Ok(files) => files
                .into_iter()
                .map(|path| {
                    let around = self.around(&path, Scope::Extension, variables);
                    let own = path.parent().unwrap_or(&path);
                    let reading = match &enablement {
                        Reading::Bad(error) => Reading::Bad(error.clone()),
                        Reading::Absent | Reading::Good(_) => document(&path, |document, _| {
                            let name = extensions::name(document)?;
                            let enabled = match &enablement {
                                Reading::Good(rules) => extensions::is_enabled(rules, name, root)?,
                                Reading::Absent | Reading::Bad(_) => true,
                            };
                            match enabled {
                                true => {
                                    settings::servers_layer(&extensions::hydrate(document, own, root), around)
                                }
                                false => Ok(Layer::default()),
                            }
                        }),
                    };
                    planned(path.clone()).reading(reading)
                })
                .collect(),
        }
    }

    fn around<'a>(&'a self, path: &'a Path, scope: Scope, variables: &'a Variables) -> Surroundings<'a> {
        Surroundings { path, scope, root: &self.config.root, home: self.config.home.as_deref(), variables }
    }

    fn layer(&self, planned: Planned, variables: &Variables) -> LayerReading {
        let around = self.around(&planned.path, planned.scope, variables);
        let reading = document(&planned.path, |root, text| match planned.shape {
            Shape::Settings => settings::layer(root, around).map(|mut layer| {
                if planned.scope == Scope::Workspace {
                    layer
                        .warnings
                        .extend(json::trailing_comma(text).map(|fault| source_error(&planned.path, fault)));
                }
                layer
            }),
            Shape::McpJson => settings::servers_layer(root, around),
        });
        planned.reading(reading)
    }
}

impl Files {
    /// Reads one file that a person names, as what its name says that it is.
    pub fn read_one(&self, path: &Path) -> LayerReading {
        let path = self.config.root.path().join(path);
        let variables = self.variables(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        let known = self.settings().into_iter().find(|planned| planned.path == path);
        let by_name = || match path.file_name().and_then(|name| name.to_str()) {
            Some(".mcp.json") => (Scope::Project, Shape::McpJson),
            Some(_) | None => (Scope::Config, Shape::Settings),
        };
        let (scope, shape) = known.map_or_else(by_name, |planned| (planned.scope, planned.shape));
        self.layer(Planned { scope, rank: 0, path: path.clone(), explicit: true, shape }, &variables)
    }
}

impl Source for Files {
    fn read(&self) -> Readings {
        // Watched before it is read, so that no change falls in between.
        let _ = self.watch.arm(&self.interest(), Vec::new());
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let variables = self.variables(&mut kept);
        let (approvals, trust) = (self.approvals_path(), self.trust_path());
        let root = &self.config.root;
        let layers = self.layers(&variables, &mut kept);
        let approvals_reading = document(&approvals, |store, _| approvals::decisions(store, root));
        let trust_reading = document(&trust, |rules, _| trust::verdict(rules, root));
        let paths: Vec<PathBuf> = layers.iter().map(|layer| layer.path.clone()).collect();
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let (added, watching) = self.watch.arm(&self.interest(), watch::mounts(&mountinfo, &paths));
        if added {
            self.changed.notify_one();
        }
        Readings {
            layers,
            approvals: (approvals, approvals_reading),
            trust: (trust, trust_reading),
            watching,
        }
    }
}

/// Reads the document at `path` and has `understand` make sense of it.
fn document<T>(path: &Path, understand: impl FnOnce(&Node, &str) -> Result<T, Fault>) -> Reading<T> {
    let text = match text::read(path) {
        Ok(Some(text)) => text,
        Ok(None) => return Reading::Absent,
        Err(fault) => return Reading::Bad(source_error(path, fault)),
    };
    let parse = match path.extension().and_then(|ending| ending.to_str()) {
        Some("yaml" | "yml") => yaml::parse,
        Some(_) | None => json::parse,
    };
    match parse(&text).and_then(|root| understand(&root, &text)) {
        Ok(content) => Reading::Good(Arc::new(content)),
        Err(fault) => Reading::Bad(source_error(path, fault)),
    }
}

fn source_error(path: &Path, fault: Fault) -> SourceError {
    SourceError { path: path.to_owned(), at: fault.at, message: fault.message }
}

/// Whether two paths lead to one directory.
fn same(a: &Path, b: Option<&Path>) -> bool {
    let real = |path: &Path| fs::canonicalize(path).ok();
    b.is_some_and(|b| a == b || real(a).is_some_and(|a| real(b) == Some(a)))
}

#[cfg(test)]
mod tests;
