//! Connections to servers.
