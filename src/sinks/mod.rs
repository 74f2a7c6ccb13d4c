//! What is driven: the connections to servers, the endpoint for agents, and what operators look at.

pub mod agent;
pub mod guard;
pub mod metrics;
pub mod names;
pub mod offer;
pub mod ops;
pub mod run_file;
pub mod status_text;
pub mod upstream;
