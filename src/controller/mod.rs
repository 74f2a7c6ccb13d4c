//! The controller.

pub mod admit;
pub mod connector;
pub mod snapshot;
