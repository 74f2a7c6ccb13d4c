//! Decides what of other programs' texts may be shown: configured values are masked.

use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};
use url::Url;

use crate::model::Transport;

/// The shortest value that is masked, in bytes: shorter ones stand in ordinary text by chance.
const SHORTEST: usize = 8;

/// The longest text that is shown of one line, in characters.
const LONGEST_LINE: usize = 300;

/// The values of one server's entry that must not show.
#[derive(Clone)]
pub struct Mask(Arc<[SecretString]>);

impl Mask {
    /// Masks the arguments, variables, headers and the parts of the URL beyond its origin.
    pub fn new(transport: &Transport) -> Self {
        let mut values: Vec<String> = match transport {
            Transport::Stdio { args, env, .. } => {
                let args = args.iter().map(|arg| arg.expose_secret());
                // Of --flag=value a program may tell the value alone.
                let values = args.clone().filter_map(|arg| Some(arg.split_once('=')?.1));
                let env = env.values().map(|value| value.expose_secret());
                args.chain(values).chain(env).map(str::to_owned).collect()
            }
            Transport::Http { url, headers, .. } | Transport::Sse { url, headers } => {
                let headers = headers.values().map(|value| value.expose_secret().to_owned());
                let credentials = headers.flat_map(|value| {
                    let bare = value.split_once(' ').map(|(_, bare)| bare.to_owned());
                    bare.into_iter().chain([value])
                });
                credentials.chain(url_secrets(url.expose_secret())).collect()
            }
        };
        values.retain(|value| value.len() >= SHORTEST);
        // A value inside another must not break the longer one up.
        values.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        values.dedup();
        Mask(values.into_iter().map(SecretString::from).collect())
    }

    /// `text` with every value replaced by `***`.
    pub fn apply(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, value| text.replace(value.expose_secret(), "***"))
    }

    /// One line of another program, fit to be shown: masked, without control characters, and not too long.
    pub fn line(&self, text: &str) -> String {
        let clean: String = self.apply(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let clean = clean.trim();
        match clean.char_indices().nth(LONGEST_LINE) {
            Some((end, _)) => format!("{}…", &clean[..end]),
            None => clean.to_owned(),
        }
    }
}

fn url_secrets(text: &str) -> Vec<String> {
    let mut out = vec![text.to_owned()];
    if let Ok(url) = Url::parse(text) {
        out.extend(url.password().map(str::to_owned));
        out.extend([url.username().to_owned(), url.path().to_owned()]);
        out.extend(url.query().map(str::to_owned));
        out.extend(url.query_pairs().map(|(_, value)| value.into_owned()));
        // The bare origin with its slash may show.
        out.retain(|part| *part != format!("{}/", url.origin().ascii_serialization()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configured_values_are_masked_wherever_they_stand_and_short_ones_are_not() {
        let mask = Mask::new(&Transport::Stdio {
            command: "c".into(),
            args: vec!["--token=abcdefgh".into(), "short".into()],
            env: [("T".to_owned(), "ijklmnop".into())].into(),
            cwd: "/w".into(),
        });
        assert_eq!(
            mask.line("bad --token=abcdefgh, abcdefgh\u{1b}[0m short ijklmnop"),
            "bad ***, *** [0m short ***"
        );
    }

    #[test]
    fn of_a_url_only_the_origin_shows_and_of_a_header_not_even_its_credential() {
        let mask = Mask::new(&Transport::Http {
            url: "https://user:password@example.org/secret/path?key=querysecret".into(),
            headers: [("authorization".to_owned(), "Bearer abcdefgh".into())].into(),
            probe: false,
        });
        assert_eq!(
            mask.line("https://example.org/secret/path?key=querysecret refused abcdefgh of password"),
            "https://example.org***?*** refused *** of ***"
        );
    }

    #[test]
    fn a_long_line_is_cut() {
        let mask = Mask::new(&Transport::Sse { url: "http://h/".into(), headers: [].into() });
        assert_eq!(mask.line(&"ä".repeat(400)).chars().count(), 301);
    }
}
