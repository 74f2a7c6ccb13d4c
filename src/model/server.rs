//! What a server is: its name, where it was declared, how to reach it.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// The name of a server as its file spells it, trimmed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct ServerName(Arc<str>);

impl ServerName {
    /// Names `name`, without the blanks around it.
    pub fn new(name: &str) -> Self {
        ServerName(Arc::from(name.trim()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<&str> for ServerName {
    fn from(name: &str) -> Self {
        ServerName::new(name)
    }
}

impl Borrow<str> for ServerName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Where an entry was declared, from the lowest precedence to the highest; extensions fill unused names only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    Extension,
    SystemDefaults,
    User,
    Project,
    Workspace,
    System,
    Config,
}

impl Scope {
    pub const ALL: [Scope; 7] = [
        Scope::Extension,
        Scope::SystemDefaults,
        Scope::User,
        Scope::Project,
        Scope::Workspace,
        Scope::System,
        Scope::Config,
    ];

    /// Whether entries of this scope wait for a person: files that come with a project are somebody else's.
    pub const fn is_gated(self) -> bool {
        matches!(self, Scope::Project | Scope::Workspace)
    }

    /// Whether documents of this scope can allow and exclude names, besides declaring servers.
    pub const fn has_lists(self) -> bool {
        !matches!(self, Scope::Project | Scope::Extension)
    }

    /// The one spelling, in status, metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Scope::Extension => "extension",
            Scope::SystemDefaults => "system-defaults",
            Scope::User => "user",
            Scope::Project => "project",
            Scope::Workspace => "workspace",
            Scope::System => "system",
            Scope::Config => "config",
        }
    }
}

/// The workspace's directory: absolute, lexically normalised, made once and used by gate, status and deciding alike.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Root(PathBuf);

impl Root {
    /// The root for `path`; a relative one is taken from `base`. Links are not followed.
    pub fn new(base: &Path, path: &Path) -> Self {
        Root(normalise(&base.join(path)))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// Removes `.` and `..` of an absolute path by its text alone.
pub fn normalise(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => out.push(part),
        }
    }
    out
}

/// Header or variable names with their values, which nothing may print.
pub type Headers = BTreeMap<String, SecretString>;

/// How a server is reached, expanded and with defaults filled in.
#[derive(Debug, Clone)]
pub enum Transport {
    /// A child process that speaks over its stdin and stdout.
    Stdio { command: String, args: Vec<SecretString>, env: Headers, cwd: PathBuf },
    /// Streamable HTTP. `probe` allows the older HTTP+SSE when the server refuses the first POST.
    Http { url: SecretString, headers: Headers, probe: bool },
    /// HTTP+SSE of MCP 2024-11-05.
    Sse { url: SecretString, headers: Headers },
}

impl Transport {
    /// The one spelling, in status and as a metric label.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Transport::Stdio { .. } => "stdio",
            Transport::Http { .. } => "http",
            Transport::Sse { .. } => "sse",
        }
    }
}

/// Which of a server's tools agents see. Exclusion wins; no include list means all, an empty one none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolFilter {
    pub include: Option<Vec<String>>,
    pub exclude: Vec<String>,
}

impl ToolFilter {
    /// Whether `tool`, under its server's own name for it, passes.
    pub fn allows(&self, tool: &str) -> bool {
        let named = |list: &[String]| list.iter().any(|entry| entry == tool);
        // An include entry may carry a `(…)` suffix, which does not count.
        let included = |list: &Vec<String>| {
            list.iter().any(|entry| entry.split_once('(').map_or(entry.as_str(), |(name, _)| name) == tool)
        };
        !named(&self.exclude) && self.include.as_ref().is_none_or(included)
    }
}

/// One server as its entry asks for it.
#[derive(Debug, Clone)]
pub struct ServerSpec {
    pub transport: Transport,
    /// How long one request may take in all.
    pub timeout: Duration,
    /// How long connecting, the handshake and the first listing may take in all.
    pub startup_timeout: Duration,
    pub tools: ToolFilter,
}

impl ServerSpec {
    /// A request's limit where the entry names none.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
    /// The start-up limit where the entry names none.
    pub const DEFAULT_STARTUP_TIMEOUT: Duration = Duration::from_secs(30);
}

/// SHA-256 over what a connection is made of. Two entries with the same one share a connection's life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// The fingerprint of a connection by `transport`. Names and lengths are hashed too, so that no two
    /// different transports feed the hash the same bytes.
    pub fn of(transport: &Transport) -> Self {
        let mut hash = Fields(Sha256::new());
        hash.text(transport.as_str());
        match transport {
            Transport::Stdio { command, args, env, cwd } => {
                hash.text(command);
                hash.count(args.len());
                args.iter().for_each(|arg| hash.text(arg.expose_secret()));
                hash.map(env);
                hash.bytes(cwd.as_os_str().as_encoded_bytes());
            }
            Transport::Http { url, headers, probe } => {
                hash.text(url.expose_secret());
                hash.map(headers);
                hash.count(usize::from(*probe));
            }
            Transport::Sse { url, headers } => {
                hash.text(url.expose_secret());
                hash.map(headers);
            }
        }
        Fingerprint(hash.0.finalize().into())
    }

    /// The first eight hex digits: enough to tell two apart in a status, too few to guess a secret from.
    pub fn short(&self) -> String {
        hex(&self.0[..4])
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({})", self.short())
    }
}

struct Fields(Sha256);

impl Fields {
    fn count(&mut self, n: usize) {
        self.0.update((n as u64).to_be_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.count(bytes.len());
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn map(&mut self, map: &Headers) {
        self.count(map.len());
        for (name, value) in map {
            self.text(name);
            self.text(value.expose_secret());
        }
    }
}

/// Lower-case hex of `bytes`.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, byte| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{byte:02x}");
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stdio(args: &[&str], env: &[(&str, &str)]) -> Fingerprint {
        Fingerprint::of(&Transport::Stdio {
            command: "node".into(),
            args: args.iter().map(|a| SecretString::from(*a)).collect(),
            env: env.iter().map(|(k, v)| ((*k).to_owned(), SecretString::from(*v))).collect(),
            cwd: "/w".into(),
        })
    }

    #[test]
    fn a_fingerprint_tells_every_connection_field_apart_and_keeps_argument_order() {
        let all = [
            stdio(&["a", "b"], &[]),
            stdio(&["b", "a"], &[]),
            stdio(&["ab"], &[]),
            stdio(&["a", "b"], &[("K", "v")]),
            stdio(&["a", "b", "K", "v"], &[]),
        ];
        for (i, one) in all.iter().enumerate() {
            for other in &all[i + 1..] {
                assert_ne!(one, other);
            }
        }
        assert_eq!(stdio(&[], &[("A", "1"), ("B", "2")]), stdio(&[], &[("B", "2"), ("A", "1")]));
    }

    #[test]
    fn secrets_do_not_show_in_debug_output() {
        let spec = Transport::Stdio {
            command: "node".into(),
            args: vec![SecretString::from("canary-arg")],
            env: [("TOKEN".to_owned(), SecretString::from("canary-env"))].into(),
            cwd: "/w".into(),
        };
        assert!(!format!("{spec:?}").contains("canary"));
    }

    #[test]
    fn a_root_is_absolute_and_has_no_dots() {
        let root = Root::new(Path::new("/home/me"), Path::new("./a/../b/."));
        assert_eq!(root.path(), Path::new("/home/me/b"));
        assert_eq!(
            Root::new(Path::new("/home/me"), Path::new("/x/")),
            Root::new(Path::new("/x"), Path::new(""))
        );
    }

    #[test]
    fn a_tool_passes_its_filter_when_included_and_not_excluded() {
        let filter = |include: Option<&[&str]>, exclude: &[&str]| ToolFilter {
            include: include.map(|list| list.iter().map(|s| (*s).to_owned()).collect()),
            exclude: exclude.iter().map(|s| (*s).to_owned()).collect(),
        };
        assert!(filter(None, &[]).allows("a"));
        assert!(!filter(Some(&[]), &[]).allows("a"));
        assert!(filter(Some(&["a(x)"]), &[]).allows("a"));
        assert!(!filter(Some(&["a"]), &["a"]).allows("a"));
    }
}
