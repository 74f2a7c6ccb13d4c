//! The binary as its users meet it: real processes, real files, real MCP servers and clients, on loopback only.

#![allow(clippy::unwrap_used)] // Helpers of tests may end a test as tests do.

mod architecture;
mod bad_input;
mod cases;
mod check;
mod endpoints;
mod fuzz_corpus;
mod gate;
mod interop;
mod life;
mod once;
mod support;
mod watching;
