//! Decides which variables a child process gets: a base that programs need to run, what the operator adds, and its own.

use std::collections::BTreeMap;

use secrecy::ExposeSecret;

use crate::model::Headers;

/// The variable by which the children of a sidecar that is gone are known.
pub const OWNER: &str = "MCP_RECONCILER_OWNER";

/// Variables that every child gets. Those of proxies count in both cases.
const BASE: [&str; 18] = [
    "HOME",
    "PATH",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TERM",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
];

/// Beginnings of further ones.
const PREFIXES: [&str; 2] = ["LC_", "XDG_"];

/// The variables of a child, from the sidecar's own `environment`.
pub fn child(
    environment: &BTreeMap<String, String>,
    pass: &[String],
    owner: &str,
    own: &Headers,
) -> BTreeMap<String, String> {
    let wanted = |name: &str| {
        BASE.contains(&name.to_ascii_uppercase().as_str())
            || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
            || pass.iter().any(|passed| passed == name)
    };
    let mut out: BTreeMap<String, String> =
        environment.iter().filter(|(name, _)| wanted(name)).map(|(k, v)| (k.clone(), v.clone())).collect();
    out.insert(OWNER.to_owned(), owner.to_owned());
    out.extend(own.iter().map(|(name, value)| (name.clone(), value.expose_secret().to_owned())));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_gets_the_base_what_is_passed_and_its_own_and_nothing_else() {
        let environment =
            ["PATH", "LC_ALL", "https_proxy", "AWS_SECRET_ACCESS_KEY", "MINE", "XDG_RUNTIME_DIR"];
        let environment = environment.map(|name| (name.to_owned(), "outer".to_owned())).into();
        let own = [("PATH".to_owned(), "inner".into()), ("TOKEN".to_owned(), "t".into())].into();
        let child = child(&environment, &["MINE".to_owned()], "1.2", &own);
        let pairs: Vec<_> = child.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let expected = [
            "LC_ALL=outer",
            "MCP_RECONCILER_OWNER=1.2",
            "MINE=outer",
            "PATH=inner",
            "TOKEN=t",
            "XDG_RUNTIME_DIR=outer",
            "https_proxy=outer",
        ];
        assert_eq!(pairs, expected);
    }
}
