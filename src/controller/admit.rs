//! Decides who may connect: the one gate. Nothing else can make an [`Admitted`], and nothing connects without one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use secrecy::ExposeSecret;
use url::{Host, Url};

use super::snapshot::{Approvals, Declared, Document, DocumentState, Snapshot, TrustVerdict};
use crate::model::{
    ApprovalDigest, ApprovalStatus, Fingerprint, Refusal, Scope, ServerName, ServerSpec, Transport,
};

/// The permission to connect to one server by one specification.
#[derive(Debug, Clone)]
pub struct Admitted {
    name: ServerName,
    spec: Arc<ServerSpec>,
    fingerprint: Fingerprint,
}

impl Admitted {
    pub fn name(&self) -> &ServerName {
        &self.name
    }

    pub fn spec(&self) -> &Arc<ServerSpec> {
        &self.spec
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

/// What the gate says of a server.
#[derive(Debug, Clone)]
pub enum Admission {
    Admitted(Admitted),
    /// What could forbid it cannot be read now, and what was read last admitted it: nothing opens, what runs stays.
    Held(Refusal),
    Refused(Refusal),
}

impl Admission {
    /// Why it may not open, if it may not.
    pub fn refusal(&self) -> Option<Refusal> {
        match self {
            Admission::Admitted(_) => None,
            Admission::Held(refusal) | Admission::Refused(refusal) => Some(*refusal),
        }
    }
}

/// Which names may connect: a name passes when every clause matches it. No clause allows all.
#[derive(Debug, Clone, Default)]
pub struct AllowList(Vec<Patterns>);

impl AllowList {
    /// Narrows the list by one more clause. An absent list is no clause; an empty one matches nothing.
    pub fn narrow(&mut self, list: Option<&[String]>) {
        self.0.extend(list.map(|list| Patterns(list.to_vec())));
    }

    /// Whether `name` passes. Case counts.
    pub fn allows(&self, name: &str) -> bool {
        self.0.iter().all(|clause| clause.match_any(name))
    }
}

/// Names or globs of `*` and `?`; there is no escape.
#[derive(Debug, Clone, Default)]
struct Patterns(Vec<String>);

impl Patterns {
    fn match_any(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| glob(pattern.trim(), name))
    }
}

/// Matches in time linear in the two lengths' product, with one point to go back to.
fn glob(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n, mut back) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                back = Some((p, n));
                p += 1;
            }
            Some(&c) if c == '?' || c == name[n] => {
                p += 1;
                n += 1;
            }
            Some(_) | None => match back {
                Some((star, matched)) => {
                    back = Some((star, matched + 1));
                    p = star + 1;
                    n = matched + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// What this sidecar is, so that an entry that leads back to it is known.
#[derive(Debug, Clone, Default)]
pub struct Own {
    /// The addresses it listens on.
    pub listen: Vec<SocketAddr>,
    /// Connections that answered with its own instance id.
    pub met: BTreeSet<Fingerprint>,
}

impl Own {
    fn is(&self, transport: &Transport, fingerprint: Fingerprint) -> bool {
        let url = match transport {
            Transport::Stdio { .. } => None,
            Transport::Http { url, .. } | Transport::Sse { url, .. } => Url::parse(url.expose_secret()).ok(),
        };
        self.met.contains(&fingerprint)
            || url.is_some_and(|url| self.listen.iter().any(|own| leads_to(&url, own)))
    }
}

fn leads_to(url: &Url, own: &SocketAddr) -> bool {
    let ip = match url.host() {
        Some(Host::Ipv4(ip)) => IpAddr::V4(ip),
        Some(Host::Ipv6(ip)) => IpAddr::V6(ip),
        Some(Host::Domain("localhost")) => IpAddr::from([127, 0, 0, 1]),
        Some(Host::Domain(_)) | None => return false,
    };
    let here = |ip: IpAddr| ip.is_loopback() || ip.is_unspecified();
    url.port_or_known_default() == Some(own.port()) && (ip == own.ip() || (here(ip) && here(own.ip())))
}

/// What a decision is made from, gathered once for all servers of a pass.
pub struct Gate<'a> {
    own: &'a Own,
    allow: AllowList,
    exclude: Patterns,
    trusted: bool,
    /// The trust file cannot be read, or a document whose excludes are unknown.
    blocked: bool,
    approvals: &'a Document<Approvals>,
    previous: BTreeMap<&'a ServerName, Standing>,
}

/// What was admitted before: the connection and, for a gated entry, what was approved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub fingerprint: Fingerprint,
    pub digest: Option<ApprovalDigest>,
}

impl<'a> Gate<'a> {
    /// The gate for what `snapshot` holds, under the start-up flag's `ceiling`. `previous` are the servers that
    /// the pass before admitted or held.
    pub fn new(
        snapshot: &'a Snapshot,
        ceiling: Option<&[String]>,
        own: &'a Own,
        previous: BTreeMap<&'a ServerName, Standing>,
    ) -> Self {
        let mut allow = AllowList::default();
        allow.narrow(ceiling);
        let mut exclude = Patterns::default();
        let mut folder_trust = None;
        for (document, layer) in snapshot.layers.iter().filter_map(|d| Some((d, d.content()?))) {
            allow.narrow(layer.allowed.as_deref());
            exclude.0.extend(layer.excluded.iter().map(|pattern| pattern.to_lowercase()));
            // A project's own files may not say whether the project is trusted.
            if matches!(document.scope, Scope::SystemDefaults | Scope::User | Scope::System) {
                folder_trust = layer.folder_trust.or(folder_trust);
            }
        }
        let trust_needed = folder_trust == Some(true);
        let trusted = snapshot.trust.content().is_some_and(|verdict| **verdict == TrustVerdict::Trusted);
        let blocked = (trust_needed && snapshot.trust.error().is_some())
            || snapshot.layers.iter().any(|document| {
                document.scope.has_lists() && document.error().is_some() && document.content().is_none()
            });
        Gate {
            own,
            allow,
            exclude,
            trusted: !trust_needed || trusted,
            blocked,
            approvals: &snapshot.approvals,
            previous,
        }
    }

    /// What a person decided about an entry; nothing while the store cannot be read.
    pub fn decision(&self, name: &ServerName, scope: Scope, declared: &Declared) -> Option<Approval> {
        if !scope.is_gated() {
            return Some(Approval::NotNeeded);
        }
        let store = match &self.approvals.state {
            DocumentState::Bad { .. } => return None,
            DocumentState::Absent => return Some(Approval::Pending),
            DocumentState::Good(store) | DocumentState::Missing { last_good: store, .. } => store,
        };
        let Some(digest) = declared.digest.map(ApprovalDigest::to_hex) else {
            return Some(Approval::Pending);
        };
        let decided: BTreeSet<ApprovalStatus> = store
            .decisions
            .get(name.as_str())
            .into_iter()
            .flatten()
            .filter(|decision| decision.digest == digest)
            .map(|decision| decision.status)
            .collect();
        Some(if decided.contains(&ApprovalStatus::Rejected) {
            Approval::Rejected
        } else if decided.contains(&ApprovalStatus::Approved) {
            Approval::Approved
        } else {
            Approval::Pending
        })
    }

    /// Decides about one server. Every way to a spawn or a request comes through here.
    pub fn admit(&self, name: &ServerName, scope: Scope, declared: &Declared) -> Admission {
        let mut refusals = BTreeSet::new();
        let mut refuse_if = |holds: bool, refusal: Refusal| {
            if holds {
                refusals.insert(refusal);
            }
        };
        let usable = match &declared.spec {
            Ok(usable) => Some((usable.spec.clone(), usable.fingerprint)),
            Err(unusable) => {
                refuse_if(true, unusable.refusal);
                None
            }
        };
        if let Some((spec, fingerprint)) = &usable {
            refuse_if(self.own.is(&spec.transport, *fingerprint), Refusal::Itself);
            refuse_if(matches!(spec.transport, Transport::Sse { .. }), Refusal::Unsupported);
        }
        let decision = self.decision(name, scope, declared);
        refuse_if(self.blocked || decision.is_none(), Refusal::SourceBad);
        refuse_if(declared.disabled, Refusal::Disabled);
        refuse_if(!self.trusted, Refusal::Untrusted);
        refuse_if(self.exclude.match_any(&name.as_str().to_lowercase()), Refusal::Excluded);
        refuse_if(!self.allow.allows(name.as_str()), Refusal::NotAllowed);
        refuse_if(decision == Some(Approval::Rejected), Refusal::Rejected);
        refuse_if(decision == Some(Approval::Pending), Refusal::PendingApproval);

        match (usable, refusals.first().copied()) {
            (Some((spec, fingerprint)), None) => {
                Admission::Admitted(Admitted { name: name.clone(), spec, fingerprint })
            }
            (Some((_, fingerprint)), Some(Refusal::SourceBad))
                if refusals.len() == 1
                    && self.previous.get(name)
                        == Some(&Standing { fingerprint, digest: declared.digest }) =>
            {
                Admission::Held(Refusal::SourceBad)
            }
            (_, Some(refusal)) => Admission::Refused(refusal),
            // Unreachable by construction: an unusable entry has its refusal.
            (None, None) => Admission::Refused(Refusal::Invalid),
        }
    }
}

/// What a person decided about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approval {
    NotNeeded,
    Approved,
    Rejected,
    Pending,
}

#[cfg(test)]
pub(crate) fn admitted_for_test(name: &str, spec: ServerSpec) -> Admitted {
    let fingerprint = Fingerprint::of(&spec.transport);
    Admitted { name: name.into(), spec: Arc::new(spec), fingerprint }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_allow_list_allows_all_and_an_empty_one_none() {
        let mut list = AllowList::default();
        list.narrow(None);
        assert!(list.allows("a"));
        list.narrow(Some(&[]));
        assert!(!list.allows("a"));
    }

    #[test]
    fn a_later_clause_can_narrow_a_ceiling_of_globs_and_never_widen_it() {
        let clause = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let mut list = AllowList::default();
        list.narrow(Some(&clause(&["a*"])));
        list.narrow(Some(&clause(&["ab", "c"])));
        assert!(list.allows("ab"));
        assert!(!list.allows("c"));
        assert!(!list.allows("ax"));
        assert!(!list.allows("AB"), "case counts");
    }

    #[test]
    fn globs_know_star_and_question_mark_only() {
        for (pattern, name, matches) in [
            ("a*c", "abbc", true),
            ("a*c", "ac", true),
            ("a?c", "ac", false),
            ("*", "", true),
            ("**b*", "aab", true),
            ("[a]", "a", false),
            ("a*b*c", "aXbYbZ", false),
        ] {
            assert_eq!(glob(pattern, name), matches, "{pattern} {name}");
        }
    }

    #[test]
    fn an_address_that_leads_back_here_is_known_in_every_spelling() {
        let own: SocketAddr = "127.0.0.1:7411".parse().unwrap();
        for (url, itself) in [
            ("http://127.0.0.1:7411/mcp", true),
            ("http://localhost:7411/", true),
            ("http://[::1]:7411/mcp", true),
            ("http://0.0.0.0:7411/mcp", true),
            ("http://127.0.0.1:7413/mcp", false),
            ("http://example.org:7411/mcp", false),
        ] {
            assert_eq!(leads_to(&Url::parse(url).unwrap(), &own), itself, "{url}");
        }
    }
}
