//! What is driven.

pub mod upstream;
