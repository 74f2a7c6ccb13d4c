//! Decides who may talk to an endpoint: Host and Origin against rebinding, a bearer token where one is asked for.

use std::net::IpAddr;

use axum::http::{HeaderMap, StatusCode, header};
use sha2::{Digest, Sha256};

/// What requests to one endpoint must bring.
#[derive(Debug, Clone, Default)]
pub struct Guard {
    /// Host names besides IP literals and `localhost`.
    allowed_hosts: Vec<String>,
    /// The hash of the token, so that comparing takes the same time for every guess.
    token: Option<[u8; 32]>,
}

impl Guard {
    pub fn new(allowed_hosts: Vec<String>, token: Option<&str>) -> Self {
        let token = token.map(|token| Sha256::digest(token.as_bytes()).into());
        Guard { allowed_hosts, token }
    }

    /// The same guard, asking for no token.
    #[must_use]
    pub fn without_token(&self) -> Self {
        Guard { token: None, ..self.clone() }
    }

    /// # Errors
    /// 403 for a Host or Origin that is not ours, 401 for a missing or wrong token, each with what to do.
    pub fn check(&self, headers: &HeaderMap) -> Result<(), (StatusCode, &'static str)> {
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        if !text(header::HOST).is_some_and(|host| self.is_ours(host)) {
            return Err((
                StatusCode::FORBIDDEN,
                "the Host is not one of this endpoint's; see --allowed-hosts",
            ));
        }
        let origin_host = |origin: &str| {
            let host = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
            host.is_some_and(|host| self.is_ours(host))
        };
        if text(header::ORIGIN).is_some_and(|origin| !origin_host(origin)) {
            return Err((StatusCode::FORBIDDEN, "the Origin is not allowed; see --allowed-hosts"));
        }
        let Some(expected) = self.token else { return Ok(()) };
        let given = text(header::AUTHORIZATION).and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
        match given.map(|token| <[u8; 32]>::from(Sha256::digest(token.as_bytes()))) {
            Some(given) if given == expected => Ok(()),
            Some(_) | None => {
                Err((StatusCode::UNAUTHORIZED, "a valid bearer token is needed; see --token-file"))
            }
        }
    }

    fn is_ours(&self, authority: &str) -> bool {
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !host.ends_with(':') => host,
            Some(_) | None => authority,
        };
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        bare.parse::<IpAddr>().is_ok()
            || bare.eq_ignore_ascii_case("localhost")
            || self.allowed_hosts.iter().any(|allowed| allowed.eq_ignore_ascii_case(bare))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(guard: &Guard, headers: &[(&str, &str)]) -> u16 {
        let map = headers
            .iter()
            .map(|(k, v)| (k.parse::<axum::http::HeaderName>().unwrap(), v.parse().unwrap()))
            .collect::<HeaderMap>();
        guard.check(&map).map_or_else(|(status, _)| status.as_u16(), |()| 200)
    }

    #[test]
    fn only_literals_localhost_and_named_hosts_pass() {
        let guard = Guard::new(vec!["sidecar.pod".into()], None);
        for (host, status) in [
            ("127.0.0.1:7411", 200),
            ("[::1]:7411", 200),
            ("[::1]", 200),
            ("10.1.2.3", 200),
            ("LOCALHOST:1", 200),
            ("sidecar.pod:7411", 200),
            ("evil.example:7411", 403),
            ("localhost.evil.example", 403),
            ("", 403),
        ] {
            assert_eq!(check(&guard, &[("host", host)]), status, "{host}");
        }
        assert_eq!(check(&guard, &[]), 403);
    }

    #[test]
    fn a_foreign_origin_is_refused_and_none_is_fine() {
        let guard = Guard::default();
        for (origin, status) in [
            ("http://localhost:3000", 200),
            ("https://127.0.0.1", 200),
            ("https://evil.example", 403),
            ("null", 403),
        ] {
            assert_eq!(check(&guard, &[("host", "localhost"), ("origin", origin)]), status, "{origin}");
        }
    }

    #[test]
    fn where_a_token_is_set_every_request_must_bring_it() {
        let guard = Guard::new(vec![], Some("s3cret"));
        for (value, status) in
            [("Bearer s3cret", 200), ("bearer  s3cret", 200), ("Bearer other", 401), ("s3cret", 401)]
        {
            assert_eq!(check(&guard, &[("host", "localhost"), ("authorization", value)]), status, "{value}");
        }
        assert_eq!(check(&guard, &[("host", "localhost")]), 401);
    }
}
