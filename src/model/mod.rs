//! The plain data that every side speaks of: no I/O, no clock, no runtime.

pub mod admission;
pub mod listing;
pub mod server;
pub mod status;
pub mod time;

pub use admission::{ApprovalDigest, ApprovalStatus, Decision, Refusal};
pub use listing::{Item, Listing};
pub use server::{Fingerprint, Headers, Root, Scope, ServerName, ServerSpec, ToolFilter, Transport};
pub use time::Moment;
