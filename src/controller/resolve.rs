//! Decides what is wanted: merges the layers by name, asks the gate about each, and says where each came from.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::admit::{Admission, Admitted, Approval, Gate, Own, Standing};
use super::snapshot::{Declared, Document, Layer, Snapshot};
use crate::model::{ApprovalDigest, Fingerprint, Refusal, Scope, ServerName, ServerSpec};

/// Every server that any source names, with what the gate said of it.
#[derive(Debug, Clone, Default)]
pub struct Desired {
    /// Rises by one whenever anything else here changes.
    pub generation: u64,
    pub servers: BTreeMap<ServerName, Wanted>,
}

#[derive(Debug, Clone)]
pub struct Wanted {
    pub scope: Scope,
    pub path: PathBuf,
    /// The scope of the next lower entry of the same name.
    pub overrides: Option<Scope>,
    /// The scope of a rejected entry of the same name that this one stands in for.
    pub stands_in_for: Option<Scope>,
    pub spec: Option<Arc<ServerSpec>>,
    pub fingerprint: Option<Fingerprint>,
    pub digest: Option<ApprovalDigest>,
    pub admission: Admission,
    /// What is wrong with the entry.
    pub message: Option<String>,
}

impl Wanted {
    /// The permission to connect, if there is one.
    pub fn admitted(&self) -> Option<&Admitted> {
        match &self.admission {
            Admission::Admitted(admitted) => Some(admitted),
            Admission::Held(_) | Admission::Refused(_) => None,
        }
    }

    fn same(&self, other: &Wanted) -> bool {
        let kind = |admission: &Admission| match admission {
            Admission::Admitted(_) => (0, None),
            Admission::Held(refusal) => (1, Some(*refusal)),
            Admission::Refused(refusal) => (2, Some(*refusal)),
        };
        let live = |wanted: &Wanted| {
            wanted.spec.as_ref().map(|spec| (spec.timeout, spec.startup_timeout, spec.tools.clone()))
        };
        (self.scope, &self.path, self.overrides, self.stands_in_for, self.fingerprint, self.digest)
            == (
                other.scope,
                &other.path,
                other.overrides,
                other.stands_in_for,
                other.fingerprint,
                other.digest,
            )
            && kind(&self.admission) == kind(&other.admission)
            && self.message == other.message
            && live(self) == live(other)
    }
}

impl Desired {
    /// The servers that became refused, or refused for another reason, since `previous`.
    pub fn newly_refused<'a>(
        &'a self,
        previous: &'a Desired,
    ) -> impl Iterator<Item = (&'a ServerName, &'a Wanted, Refusal)> {
        self.servers.iter().filter_map(|(name, wanted)| match wanted.admission {
            Admission::Refused(refusal) => {
                let before = previous.servers.get(name).and_then(|wanted| wanted.admission.refusal());
                (before != Some(refusal)).then_some((name, wanted, refusal))
            }
            Admission::Admitted(_) | Admission::Held(_) => None,
        })
    }
}

/// What `snapshot` asks for. `previous` is what the last pass wanted: it keeps the generation, and what it
/// admitted is held while a source that could forbid it cannot be read.
pub fn resolve(snapshot: &Snapshot, ceiling: Option<&[String]>, own: &Own, previous: &Desired) -> Desired {
    let standing = previous
        .servers
        .iter()
        .filter(|(_, wanted)| !matches!(wanted.admission, Admission::Refused(_)))
        .filter_map(|(name, w)| Some((name, Standing { fingerprint: w.fingerprint?, digest: w.digest })))
        .collect();
    let gate = Gate::new(snapshot, ceiling, own, standing);
    let mut servers = BTreeMap::new();
    for (name, entries) in by_name(snapshot) {
        servers.insert(name.clone(), choose(name, &entries, &gate));
    }
    let same = servers.len() == previous.servers.len()
        && servers
            .iter()
            .all(|(name, wanted)| previous.servers.get(name).is_some_and(|old| old.same(wanted)));
    let generation = if same { previous.generation } else { previous.generation + 1 };
    Desired { generation, servers }
}

type Entry<'a> = (&'a Document<Layer>, &'a Declared);

/// The entries of each name, the highest first.
fn by_name(snapshot: &Snapshot) -> BTreeMap<&ServerName, Vec<Entry<'_>>> {
    let mut names: BTreeMap<&ServerName, Vec<Entry<'_>>> = BTreeMap::new();
    for (document, layer) in snapshot.layers.iter().rev().filter_map(|d| Some((d, d.content()?))) {
        for (name, declared) in &layer.servers {
            names.entry(name).or_default().push((document, declared));
        }
    }
    names
}

/// The highest entry counts, whole. Only when a person rejected it does the next lower one run, so that a cloned
/// repository cannot switch off a user's own server for good.
fn choose(name: &ServerName, entries: &[Entry<'_>], gate: &Gate<'_>) -> Wanted {
    let rejected = |(document, declared): &Entry<'_>| {
        gate.decision(name, document.scope, declared) == Some(Approval::Rejected)
    };
    let at = entries.iter().position(|entry| !rejected(entry)).unwrap_or(0);
    let (document, declared) = entries[at];
    let (usable, message) = match &declared.spec {
        Ok(usable) => (Some(usable), None),
        Err(unusable) => (None, Some(unusable.error.to_string())),
    };
    Wanted {
        scope: document.scope,
        path: document.path.clone(),
        overrides: entries.get(at + 1).map(|(lower, _)| lower.scope),
        stands_in_for: at.checked_sub(1).map(|above| entries[above].0.scope),
        fingerprint: usable.map(|usable| usable.fingerprint),
        spec: usable.map(|usable| usable.spec.clone()),
        digest: declared.digest,
        admission: gate.admit(name, document.scope, declared),
        message,
    }
}
