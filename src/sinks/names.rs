//! Decides what a tool is called by agents: a function of the server and the tool alone, so that no other server
//! can rename it.

use sha2::{Digest, Sha256};

use crate::model::server::hex;

/// The longest name that every agent takes.
const MAX: usize = 64;

/// What stands between the server's name and the tool's.
const SEPARATOR: &str = "__";

/// The name of `server`'s tool `tool` for agents: `[A-Za-z0-9_-]`, at most 64 characters. Eight hex digits of a
/// hash are appended where the plain form could be read two ways or is not the whole name.
pub fn exposed(server: &str, tool: &str) -> String {
    let plain = format!("{}{SEPARATOR}{}", clean(server), clean(tool));
    let ambiguous = server.contains(SEPARATOR) || server.ends_with('_');
    let cleaned = plain.len() != server.len() + SEPARATOR.len() + tool.len()
        || clean(server) != server
        || clean(tool) != tool;
    if !ambiguous && !cleaned && plain.len() <= MAX {
        return plain;
    }
    let digest: [u8; 32] =
        Sha256::new().chain_update(server).chain_update([0]).chain_update(tool).finalize().into();
    let suffix = format!("_{}", hex(&digest[..4]));
    // Cleaned text is ASCII: it may be cut anywhere.
    format!("{}{suffix}", &plain[..plain.len().min(MAX - suffix.len())])
}

/// The start that all names of `server`'s tools have, unless they were shortened.
pub fn prefix(server: &str) -> String {
    format!("{}{SEPARATOR}", clean(server))
}

fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_plain_name_is_the_server_two_underscores_and_the_tool() {
        assert_eq!(exposed("time", "get_current-time"), "time__get_current-time");
    }

    #[test]
    fn no_two_tools_share_a_name_and_every_name_is_within_the_limits() {
        let long = "x".repeat(70);
        let mut seen = BTreeMap::new();
        for server in ["a", "a_", "a__b", "a.b", "a b", "a_b", "é", "e\u{301}", "数据库", "数据表", &long]
        {
            for tool in ["b", "_b", "b__c", "c", "b.c", "b c", &long, ""] {
                let name = exposed(server, tool);
                assert!(name.len() <= MAX, "{name}");
                assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-'), "{name}");
                assert_eq!(seen.insert(name.clone(), (server, tool)), None, "{name} {server} {tool}");
            }
        }
    }

    #[test]
    fn a_name_that_was_cleaned_carries_the_first_eight_hex_digits_of_its_hash() {
        let digest: [u8; 32] = Sha256::digest(b"a.b\0tool").into();
        assert_eq!(exposed("a.b", "tool"), format!("a_b__tool_{}", hex(&digest[..4])));
    }
}
