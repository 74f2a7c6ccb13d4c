//! What reading the sources gave, and what is believed of it: bad is not empty, and gone is not gone at once.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::model::{ApprovalDigest, Decision, Fingerprint, Moment, Refusal, Scope, ServerName, ServerSpec};

/// A deletion is believed only when a second read after this long agrees.
pub const ABSENCE_GRACE: Duration = Duration::from_secs(2);

/// What is wrong with a source, and where. Never holds a value of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceError {
    pub path: PathBuf,
    /// Line and column, from 1.
    pub at: Option<(usize, usize)>,
    pub message: String,
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())?;
        if let Some((line, column)) = self.at {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.message)
    }
}

impl std::error::Error for SourceError {}

/// One server as its file declares it.
#[derive(Debug, Clone)]
pub struct Declared {
    pub spec: Result<Usable, Unusable>,
    /// Only of a gated scope, and only when the entry has one.
    pub digest: Option<ApprovalDigest>,
    /// The entry switches itself off.
    pub disabled: bool,
}

/// An entry that can be used, and what its connection is known by, found out once for all passes.
#[derive(Debug, Clone)]
pub struct Usable {
    pub spec: Arc<ServerSpec>,
    pub fingerprint: Fingerprint,
}

impl Usable {
    pub fn new(spec: ServerSpec) -> Self {
        let fingerprint = Fingerprint::of(&spec.transport);
        Usable { spec: Arc::new(spec), fingerprint }
    }
}

/// Why an entry cannot be used: `Invalid` or `Unsupported`, and what is wrong where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    pub refusal: Refusal,
    pub error: SourceError,
}

/// What one settings document asks for.
#[derive(Debug, Clone, Default)]
pub struct Layer {
    pub servers: BTreeMap<ServerName, Declared>,
    /// `mcp.allowed`: names or globs. Absent allows all, empty allows none.
    pub allowed: Option<Vec<String>>,
    /// `mcp.excluded`: names or globs.
    pub excluded: Vec<String>,
    /// `security.folderTrust.enabled`.
    pub folder_trust: Option<bool>,
    /// What is understood and yet most likely not what was meant.
    pub warnings: Vec<SourceError>,
}

/// The approval store's decisions for this workspace's root, by server name. Several when the store knows the
/// root under several spellings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Approvals {
    pub decisions: BTreeMap<String, Vec<Decision>>,
}

/// What the trust file says of this workspace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TrustVerdict {
    Trusted,
    Distrusted,
    #[default]
    Unknown,
}

/// What one read of one source gave.
#[derive(Debug, Clone)]
pub enum Reading<T> {
    Absent,
    Good(Arc<T>),
    Bad(SourceError),
}

/// One settings document as just read.
#[derive(Debug, Clone)]
pub struct LayerReading {
    pub scope: Scope,
    /// The place among the documents of the same scope, low to high.
    pub rank: usize,
    pub path: PathBuf,
    /// Whether the operator named this very file, so that its absence is an error.
    pub explicit: bool,
    pub reading: Reading<Layer>,
}

/// Everything that one pass over the sources gave.
#[derive(Debug, Clone)]
pub struct Readings {
    pub layers: Vec<LayerReading>,
    pub approvals: (PathBuf, Reading<Approvals>),
    pub trust: (PathBuf, Reading<TrustVerdict>),
    pub watching: Watching,
}

/// Whether file events can be relied on, or the timer alone does the work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Watching {
    pub active: bool,
    /// What is not watched and why; empty when all is.
    pub message: String,
}

/// A source, with what is believed of it.
#[derive(Debug, Clone)]
pub struct Document<T> {
    pub path: PathBuf,
    pub scope: Scope,
    pub rank: usize,
    pub explicit: bool,
    pub state: DocumentState<T>,
    /// When it was last read whole.
    pub last_good_at: Option<Moment>,
}

#[derive(Debug, Clone)]
pub enum DocumentState<T> {
    Absent,
    Good(Arc<T>),
    /// It was there and is not found now; until the grace is over its content stands.
    Missing {
        since: Moment,
        last_good: Arc<T>,
    },
    Bad {
        error: SourceError,
        last_good: Option<Arc<T>>,
    },
}

impl<T> Document<T> {
    /// The content that counts now.
    pub fn content(&self) -> Option<&Arc<T>> {
        match &self.state {
            DocumentState::Good(content) | DocumentState::Missing { last_good: content, .. } => Some(content),
            DocumentState::Bad { last_good, .. } => last_good.as_ref(),
            DocumentState::Absent => None,
        }
    }

    /// What is wrong, if anything is.
    pub fn error(&self) -> Option<&SourceError> {
        match &self.state {
            DocumentState::Bad { error, .. } => Some(error),
            DocumentState::Absent | DocumentState::Good(_) | DocumentState::Missing { .. } => None,
        }
    }

    fn advance(
        previous: Option<&Document<T>>,
        reading: Reading<T>,
        now: Moment,
    ) -> (DocumentState<T>, Option<Moment>) {
        let last_good = previous.and_then(|document| document.content().cloned());
        let last_good_at = previous.and_then(|document| document.last_good_at);
        match (reading, last_good) {
            (Reading::Good(content), _) => (DocumentState::Good(content), Some(now)),
            (Reading::Bad(error), last_good) => (DocumentState::Bad { error, last_good }, last_good_at),
            (Reading::Absent, None) => (DocumentState::Absent, last_good_at),
            (Reading::Absent, Some(last_good)) => {
                let since = match previous.map(|document| &document.state) {
                    Some(DocumentState::Missing { since, .. }) => *since,
                    Some(DocumentState::Absent | DocumentState::Good(_) | DocumentState::Bad { .. })
                    | None => now,
                };
                if now.since(since) >= ABSENCE_GRACE {
                    (DocumentState::Absent, last_good_at)
                } else {
                    (DocumentState::Missing { since, last_good }, last_good_at)
                }
            }
        }
    }
}

/// All sources, with what is believed of each.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Low to high.
    pub layers: Vec<Document<Layer>>,
    pub approvals: Document<Approvals>,
    pub trust: Document<TrustVerdict>,
    pub watching: Watching,
}

impl Snapshot {
    /// What is believed after `readings`, given what was believed before.
    pub fn advance(previous: Option<&Snapshot>, readings: Readings, now: Moment) -> Snapshot {
        let known = |scope: Scope, path: &PathBuf| {
            previous.and_then(|s| s.layers.iter().find(|d| d.scope == scope && d.path == *path))
        };
        let mut layers = Vec::new();
        for LayerReading { scope, rank, path, explicit, reading } in readings.layers {
            let (state, last_good_at) = Document::advance(known(scope, &path), reading, now);
            layers.push(Document { path, scope, rank, explicit, state, last_good_at });
        }
        // A file that left a directory is no longer read at all: its absence needs the grace as well.
        for old in previous.iter().flat_map(|s| &s.layers) {
            if !layers.iter().any(|d| d.scope == old.scope && d.path == old.path) {
                let (state, last_good_at) = Document::advance(Some(old), Reading::Absent, now);
                if matches!(state, DocumentState::Missing { .. }) {
                    layers.push(Document { state, last_good_at, ..old.clone() });
                }
            }
        }
        layers.sort_by(|a, b| (a.scope, a.rank, &a.path).cmp(&(b.scope, b.rank, &b.path)));
        Snapshot {
            layers,
            approvals: Self::single(previous.map(|s| &s.approvals), readings.approvals, now),
            trust: Self::single(previous.map(|s| &s.trust), readings.trust, now),
            watching: readings.watching,
        }
    }

    fn single<T>(
        previous: Option<&Document<T>>,
        (path, reading): (PathBuf, Reading<T>),
        now: Moment,
    ) -> Document<T> {
        let (state, last_good_at) = Document::advance(previous, reading, now);
        Document { path, scope: Scope::User, rank: 0, explicit: false, state, last_good_at }
    }

    /// What is wrong with which source.
    pub fn errors(&self) -> Vec<&SourceError> {
        let layers = self.layers.iter().filter_map(Document::error);
        layers.chain(self.approvals.error()).chain(self.trust.error()).collect()
    }

    /// What a person should look at in documents that are understood.
    pub fn warnings(&self) -> Vec<&SourceError> {
        self.layers.iter().filter_map(Document::content).flat_map(|layer| &layer.warnings).collect()
    }

    pub fn has_errors(&self) -> bool {
        !self.errors().is_empty()
    }

    /// When the sources must be read again to believe or disbelieve a deletion.
    pub fn reread_at(&self) -> Option<Moment> {
        fn due<T>(document: &Document<T>) -> Option<Moment> {
            match &document.state {
                DocumentState::Missing { since, .. } => Some(*since + ABSENCE_GRACE),
                DocumentState::Absent | DocumentState::Good(_) | DocumentState::Bad { .. } => None,
            }
        }
        self.layers.iter().filter_map(due).chain(due(&self.approvals)).chain(due(&self.trust)).min()
    }
}
