//! The commands that read and tell, and change nothing: no server is contacted, nothing is started.

pub mod check;
pub mod plan;

use std::sync::Arc;

use tokio::sync::Notify;

use crate::sources::{Files, SourcesConfig};

/// The sources of this workspace, for one look.
pub fn sources(config: SourcesConfig) -> Files {
    // Nobody waits for hints; the task that would settle them is not run.
    let (files, _settling) = Files::new(config, Arc::new(Notify::new()));
    files
}
