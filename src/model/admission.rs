//! What can stand between a declared server and its connection.

use std::fmt;

use serde::Serialize;

use super::server::hex;

/// SHA-256 over an entry as a person was shown it. Never mixed with a connection's fingerprint.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApprovalDigest([u8; 32]);

impl ApprovalDigest {
    pub const fn new(bytes: [u8; 32]) -> Self {
        ApprovalDigest(bytes)
    }

    /// All 64 hex digits, as the store spells them.
    pub fn to_hex(self) -> String {
        hex(&self.0)
    }
}

impl fmt::Debug for ApprovalDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApprovalDigest({}…)", hex(&self.0[..4]))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ApprovalStatus {
    Approved,
    Rejected,
}

/// One record of the approval store: what a person decided about an entry with this digest (hex as stored).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub digest: String,
    pub status: ApprovalStatus,
}

/// Why a server may not connect, in order of precedence: the first that holds is the one told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// The entry is this sidecar.
    Itself,
    /// The entry cannot be understood.
    Invalid,
    /// The entry is understood, but no transport here serves it.
    Unsupported,
    /// A source that could forbid the server cannot be read.
    SourceBad,
    /// The entry switches itself off.
    Disabled,
    /// The workspace is not trusted.
    Untrusted,
    /// An exclude list names it.
    Excluded,
    /// An allow list does not name it.
    NotAllowed,
    /// A person said no to this entry.
    Rejected,
    /// No person has decided about this entry yet.
    PendingApproval,
}

impl Refusal {
    pub const ALL: [Refusal; 10] = [
        Refusal::Itself,
        Refusal::Invalid,
        Refusal::Unsupported,
        Refusal::SourceBad,
        Refusal::Disabled,
        Refusal::Untrusted,
        Refusal::Excluded,
        Refusal::NotAllowed,
        Refusal::Rejected,
        Refusal::PendingApproval,
    ];

    /// The one spelling, in status, metrics, logs and answers to the agent.
    pub const fn as_str(self) -> &'static str {
        match self {
            Refusal::Itself => "itself",
            Refusal::Invalid => "invalid",
            Refusal::Unsupported => "unsupported",
            Refusal::SourceBad => "source_bad",
            Refusal::Disabled => "disabled",
            Refusal::Untrusted => "untrusted",
            Refusal::Excluded => "excluded",
            Refusal::NotAllowed => "not_allowed",
            Refusal::Rejected => "rejected",
            Refusal::PendingApproval => "pending_approval",
        }
    }

    /// What the person in charge can do about it.
    pub const fn fix(self) -> &'static str {
        match self {
            Refusal::Itself => "remove the entry, or name another server",
            Refusal::Invalid => "correct the entry",
            Refusal::Unsupported => "use command, httpUrl, or url with type http",
            Refusal::SourceBad => "correct the source that cannot be read",
            Refusal::Disabled => "enable the entry",
            Refusal::Untrusted => "trust the folder",
            Refusal::Excluded => "remove the name from mcp.excluded",
            Refusal::NotAllowed => {
                "add the name to mcp.allowed, and to --allowed-mcp-server-names if that is given"
            }
            Refusal::Rejected => "approve it, or edit the entry",
            Refusal::PendingApproval => "a person must approve it",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
