//! Decides what one entry means: its transport, expanded and with defaults, or what is wrong with it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;
use url::Url;

use super::digest::{Form, digest};
use super::expand::{Variables, expand};
use super::node::{Fault, Map, Node, Value};
use crate::controller::snapshot::{Declared, SourceError, Unusable, Usable};
use crate::model::server::normalise;
use crate::model::{Headers, Refusal, Root, Scope, ServerSpec, ToolFilter, Transport};

/// What entries of one file are read with.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    pub path: &'a Path,
    pub scope: Scope,
    pub root: &'a Root,
    pub home: Option<&'a Path>,
    pub variables: &'a Variables,
}

/// The keys that an entry may have. Those that only qwen-code looks at count as known.
pub const KEYS: [&str; 27] = [
    "agentPluginV1",
    "alwaysLoadTools",
    "args",
    "authProviderType",
    "command",
    "cwd",
    "description",
    "disabled",
    "discoveryTimeoutMs",
    "enabled",
    "env",
    "excludeTools",
    "extensionName",
    "headers",
    "httpUrl",
    "includeTools",
    "oauth",
    "scope",
    "targetAudience",
    "targetServiceAccount",
    "tcp",
    "timeout",
    "transport",
    "trust",
    "type",
    "url",
    "versionNegotiation",
];

/// The longest name of a server, in characters.
const MAX_NAME: usize = 256;

/// What the entry `name` declares. It never fails: what is wrong is part of what it declares.
pub fn declare(name: &str, node: &Node, around: Surroundings<'_>) -> Declared {
    let field = format!("mcpServers.{name}");
    let invalid = |fault: Fault| Declared {
        spec: Err(unusable(Refusal::Invalid, &fault, around.path)),
        digest: None,
        disabled: false,
    };
    if let Some(what) = wrong_with_name(name) {
        return invalid(Fault::at(node.at, format!("mcpServers: {what}")));
    }
    let map = match node.map(&field) {
        Ok(map) => map,
        Err(fault) => return invalid(fault),
    };
    let form = match around.scope {
        Scope::Project => Some(Form::McpJson),
        Scope::Workspace => Some(Form::Settings(around.variables)),
        Scope::Extension | Scope::SystemDefaults | Scope::User | Scope::System | Scope::Config => None,
    };
    let digest = match form.map(|form| digest(map, form, &field)).transpose() {
        Ok(digest) => digest,
        Err(fault) => return invalid(fault),
    };
    let entry = Entry { field, at: node, map, around };
    let (spec, disabled) = match entry.disabled() {
        Ok(disabled) => (entry.spec(), disabled),
        Err(fault) => (Err((Refusal::Invalid, fault)), false),
    };
    let spec = spec.map(Usable::new).map_err(|(refusal, fault)| unusable(refusal, &fault, around.path));
    Declared { spec, digest, disabled }
}

/// What is most likely a slip in an entry that can be understood.
pub fn warnings(name: &str, node: &Node, around: Surroundings<'_>) -> Vec<Fault> {
    let Value::Map(map) = &node.value else { return Vec::new() };
    let field = format!("mcpServers.{name}");
    let mut out: Vec<Fault> = map
        .iter()
        .filter(|(key, _)| !KEYS.contains(&key.as_str()))
        .filter_map(|(key, node)| Some((key, node, nearest(key, &KEYS)?)))
        .map(|(key, node, near)| {
            Fault::at(node.at, format!("{field}.{key} is not known; did you mean {near}?"))
        })
        .collect();
    let entry = Entry { field, at: node, map, around };
    for (name, value) in entry.values("headers").unwrap_or_default() {
        if is_hollow(&value) {
            let message = format!("headers.{name}: it came out empty and is not sent");
            out.push(entry.fault(&message));
        }
    }
    out
}

/// The name of `known` that `given` was most likely meant to be.
pub fn nearest<'a>(given: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |name: &str| strsim::damerau_levenshtein(&given.to_lowercase(), &name.to_lowercase());
    let near = known.iter().map(|name| (distance(name), *name)).min()?;
    // In a short name two slips make another name.
    let slips = match given.chars().count() {
        0..=2 => 0,
        3 => 1,
        _ => 2,
    };
    (near.0 <= slips).then_some(near.1)
}

fn unusable(refusal: Refusal, fault: &Fault, path: &Path) -> Unusable {
    let Fault { at, message } = fault.clone();
    Unusable { refusal, error: SourceError { path: path.to_owned(), at, message } }
}

fn wrong_with_name(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("a name must not be empty")
    } else if name.chars().count() > MAX_NAME {
        Some("a name has at most 256 characters")
    } else if name.chars().any(char::is_control) {
        Some("a name must not hold control characters")
    } else {
        None
    }
}

/// How a server is reached, where the entry says so.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Stdio,
    Http,
    Sse,
    Sdk,
}

/// Every spelling of a kind in the dialects that exist, in lower case.
const KINDS: [(&str, Kind); 7] = [
    ("stdio", Kind::Stdio),
    ("http", Kind::Http),
    ("streamable-http", Kind::Http),
    ("streamable_http", Kind::Http),
    ("streamablehttp", Kind::Http),
    ("sse", Kind::Sse),
    ("sdk", Kind::Sdk),
];

struct Entry<'a> {
    /// The entry's place in the file, as a path of keys.
    field: String,
    at: &'a Node,
    map: &'a Map,
    around: Surroundings<'a>,
}

type Checked<T> = Result<T, Fault>;

impl<'a> Entry<'a> {
    fn spec(&self) -> Result<ServerSpec, (Refusal, Fault)> {
        let invalid = |fault| (Refusal::Invalid, fault);
        let transport = self.transport()?;
        Ok(ServerSpec {
            transport,
            timeout: self.millis("timeout").map_err(invalid)?.unwrap_or(ServerSpec::DEFAULT_TIMEOUT),
            startup_timeout: self
                .millis("discoveryTimeoutMs")
                .map_err(invalid)?
                .map_or(ServerSpec::DEFAULT_STARTUP_TIMEOUT, |time| {
                    time.clamp(Duration::from_millis(100), Duration::from_secs(300))
                }),
            tools: ToolFilter {
                include: self.texts("includeTools").map_err(invalid)?,
                exclude: self.texts("excludeTools").map_err(invalid)?.unwrap_or_default(),
            },
        })
    }

    fn transport(&self) -> Result<Transport, (Refusal, Fault)> {
        let invalid = |fault| (Refusal::Invalid, fault);
        let kind = self.kind().map_err(invalid)?;
        let command = self.text("command").map_err(invalid)?;
        let url = self.url().map_err(invalid)?;
        let unsupported =
            |what: &str| (Refusal::Unsupported, Fault::at(self.at.at, format!("{}: {what}", self.field)));
        match (kind, command, url) {
            (Some(Kind::Sdk), _, _) => Err(unsupported("type sdk runs inside the agent, not here")),
            (None, Some(_), Some((key, _))) => Err(invalid(self.fault(&format!(
                "command and {key} cannot stand together; remove one, or say which by type"
            )))),
            (None | Some(Kind::Stdio), Some(command), _) => self.stdio(command).map_err(invalid),
            (None, None, Some(("httpUrl", url))) | (Some(Kind::Http), _, Some((_, url))) => {
                self.http(url, false).map_err(invalid)
            }
            (None, None, Some((_, url))) => self.http(url, true).map_err(invalid),
            (Some(Kind::Sse), _, Some(("url", url))) => {
                Ok(Transport::Sse { url: url.into(), headers: self.headers().map_err(invalid)? })
            }
            (Some(Kind::Sse), _, Some(_)) => Err(invalid(self.fault("type sse needs url, not httpUrl"))),
            (Some(Kind::Stdio), None, _) => Err(invalid(self.fault("type stdio needs command"))),
            (Some(Kind::Http | Kind::Sse), _, None) => Err(invalid(self.fault("this type needs url"))),
            (None, None, None) if self.member("tcp").is_some() => {
                Err(unsupported("tcp has no transport here"))
            }
            (None, None, None) => Err(invalid(self.fault("command, httpUrl or url is needed"))),
        }
    }

    fn stdio(&self, command: String) -> Checked<Transport> {
        if command.trim().is_empty() {
            return Err(self.fault("command must not be blank"));
        }
        let root = self.around.root.path();
        let cwd = match self.text("cwd")? {
            Some(cwd) if cwd.is_empty() => return Err(self.fault("cwd must not be empty")),
            Some(cwd) => normalise(&root.join(cwd)),
            None => root.to_owned(),
        };
        let args = self.texts("args")?.unwrap_or_default();
        let env = self.values("env")?;
        for (name, _) in &env {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(self.fault("env: a name must not be empty and not hold ="));
            }
        }
        let texts = args.iter().chain(env.iter().map(|(_, value)| value)).chain([&command]);
        if texts.into_iter().any(|text| text.contains('\0')) {
            return Err(self.fault("command, args and env must not hold NUL"));
        }
        Ok(Transport::Stdio {
            command: absolute_if_path(root, command),
            args: args.into_iter().map(SecretString::from).collect(),
            env: env.into_iter().map(|(name, value)| (name, SecretString::from(value))).collect(),
            cwd,
        })
    }

    fn http(&self, url: String, probe: bool) -> Checked<Transport> {
        Ok(Transport::Http { url: url.into(), headers: self.headers()?, probe })
    }

    /// The URL and its key; byte for byte, but for blanks around it.
    fn url(&self) -> Checked<Option<(&'static str, String)>> {
        let read = |key: &'static str| -> Checked<Option<(&'static str, String)>> {
            let Some(url) = self.text(key)?.map(|url| url.trim().to_owned()) else { return Ok(None) };
            match Url::parse(&url) {
                Ok(parsed) if matches!(parsed.scheme(), "http" | "https") && parsed.has_host() => {
                    Ok(Some((key, url)))
                }
                Ok(_) | Err(_) => {
                    Err(self.fault_at(key, "a URL that begins with http:// or https:// is needed"))
                }
            }
        };
        match (read("httpUrl")?, read("url")?) {
            (Some((_, http)), Some((_, url))) if http != url => {
                Err(self.fault("httpUrl and url name different places; remove one"))
            }
            (http, url) => Ok(http.or(url)),
        }
    }

    fn headers(&self) -> Checked<Headers> {
        let mut out = BTreeMap::new();
        for (name, value) in self.values("headers")? {
            let lower = name.to_ascii_lowercase();
            if reqwest::header::HeaderName::from_bytes(name.as_bytes()).is_err() {
                return Err(self.fault("headers: a name is no header name"));
            }
            if reqwest::header::HeaderValue::from_str(&value).is_err() {
                return Err(self.fault(&format!("headers.{name}: the value cannot stand in a header")));
            }
            // A reference that came out empty must not be sent as a credential.
            if is_hollow(&value) {
                continue;
            }
            if out.insert(lower, SecretString::from(value)).is_some() {
                return Err(self.fault(&format!("headers.{name}: it stands twice, in different case")));
            }
        }
        Ok(out)
    }

    /// Off wins where `disabled` and `enabled` contradict each other.
    fn disabled(&self) -> Checked<bool> {
        let flag = |key: &str| self.member(key).map(|node| node.bool(&self.path(key))).transpose();
        Ok(flag("disabled")? == Some(true) || flag("enabled")? == Some(false))
    }

    fn kind(&self) -> Checked<Option<Kind>> {
        let read = |key: &str| -> Checked<Option<Kind>> {
            let Some(node) = self.member(key) else { return Ok(None) };
            let text = node.text(&self.path(key))?.to_ascii_lowercase();
            match KINDS.iter().find(|(spelling, _)| *spelling == text) {
                Some((_, kind)) => Ok(Some(*kind)),
                None => Err(self.fault_at(key, "it must be stdio, http, streamable-http, sse or sdk")),
            }
        };
        match (read("type")?, read("transport")?) {
            (Some(a), Some(b)) if a != b => Err(self.fault("type and transport contradict each other")),
            (a, b) => Ok(a.or(b)),
        }
    }

    /// A member that is there; null is as good as absent.
    fn member(&self, key: &str) -> Option<&'a Node> {
        self.map.get(key).filter(|node| !node.is_null())
    }

    fn text(&self, key: &str) -> Checked<Option<String>> {
        self.member(key).map(|node| self.expanded(node, &self.path(key))).transpose()
    }

    fn texts(&self, key: &str) -> Checked<Option<Vec<String>>> {
        let Some(node) = self.member(key) else { return Ok(None) };
        let path = self.path(key);
        let list = node.list(&path)?.iter().enumerate();
        list.map(|(i, node)| self.expanded(node, &format!("{path}[{i}]"))).collect::<Checked<_>>().map(Some)
    }

    /// A map of texts; numbers and booleans count as their JSON text.
    fn values(&self, key: &str) -> Checked<Vec<(String, String)>> {
        let Some(node) = self.member(key) else { return Ok(Vec::new()) };
        let path = self.path(key);
        let value = |name: &str, node: &Node| match &node.value {
            Value::Number(text) => Ok(text.to_string()),
            Value::Bool(value) => Ok(value.to_string()),
            Value::Null | Value::Text(_) | Value::List(_) | Value::Map(_) => {
                self.expanded(node, &format!("{path}.{name}"))
            }
        };
        node.map(&path)?.iter().map(|(name, node)| Ok((name.clone(), value(name, node)?))).collect()
    }

    fn expanded(&self, node: &Node, path: &str) -> Checked<String> {
        let text = node.text(path)?;
        expand(text, self.around.variables, self.around.home)
            .map_err(|error| Fault::at(node.at, format!("{path}: {error}")))
    }

    fn millis(&self, key: &str) -> Checked<Option<Duration>> {
        let Some(node) = self.member(key) else { return Ok(None) };
        let millis = match &node.value {
            Value::Number(text) => text.parse::<f64>().ok(),
            Value::Null | Value::Bool(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => None,
        };
        match millis.filter(|ms| *ms > 0.0).and_then(|ms| Duration::try_from_secs_f64(ms / 1000.0).ok()) {
            Some(time) => Ok(Some(time)),
            None => Err(node.expected(&self.path(key), "a number of milliseconds above 0")),
        }
    }

    fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.field)
    }

    fn fault(&self, what: &str) -> Fault {
        Fault::at(self.at.at, format!("{}: {what}", self.field))
    }

    fn fault_at(&self, key: &str, what: &str) -> Fault {
        let at = self.map.get(key).map_or(self.at.at, |node| node.at);
        Fault::at(at, format!("{}: {what}", self.path(key)))
    }
}

/// Nothing, or an authentication scheme with nothing after it.
fn is_hollow(value: &str) -> bool {
    matches!(value.trim().to_ascii_lowercase().as_str(), "" | "bearer" | "basic" | "token")
}

/// A command that is a relative path counts from the workspace; a bare name is looked up in PATH.
fn absolute_if_path(root: &Path, command: String) -> String {
    if command.contains('/') && !command.starts_with('/') {
        normalise(&root.join(PathBuf::from(&command))).to_string_lossy().into_owned()
    } else {
        command
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::super::json;
    use super::*;
    use crate::model::Fingerprint;

    fn declared(name: &str, text: &str) -> Declared {
        let environment = [("A", "x"), ("EMPTY", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let variables = Variables::new(&environment, []);
        let root = Root::new("/".as_ref(), "/w".as_ref());
        let around = Surroundings {
            path: Path::new("/s.json"),
            scope: Scope::User,
            root: &root,
            home: Some(Path::new("/home/me")),
            variables: &variables,
        };
        declare(name, &json::parse(text).unwrap(), around)
    }

    fn spec(text: &str) -> ServerSpec {
        declared("a", text).spec.unwrap().spec.as_ref().clone()
    }

    fn refused(text: &str) -> (Refusal, String) {
        let unusable = declared("a", text).spec.unwrap_err();
        (unusable.refusal, unusable.error.to_string())
    }

    fn invalid(text: &str) -> String {
        let (refusal, message) = refused(text);
        assert_eq!(refusal, Refusal::Invalid, "{text}");
        message
    }

    fn fingerprint(text: &str) -> Fingerprint {
        Fingerprint::of(&spec(text).transport)
    }

    #[test]
    fn a_command_is_expanded_and_its_paths_count_from_the_workspace() {
        let text = r#"{"command":"./bin/${A}","args":["~/d","$U"],"env":{"P":8080,"D":true,"T":"$A"},"cwd":"sub/../dir"}"#;
        let Transport::Stdio { command, args, env, cwd } = spec(text).transport else { panic!() };
        assert_eq!((command.as_str(), cwd.as_path()), ("/w/bin/x", Path::new("/w/dir")));
        let args: Vec<_> = args.iter().map(ExposeSecret::expose_secret).collect();
        assert_eq!(args, ["/home/me/d", "$U"]);
        let env: Vec<_> = env.iter().map(|(k, v)| (k.as_str(), v.expose_secret())).collect();
        assert_eq!(env, [("D", "true"), ("P", "8080"), ("T", "x")]);
        let Transport::Stdio { command, cwd, .. } = spec(r#"{"command":"node"}"#).transport else { panic!() };
        assert_eq!((command.as_str(), cwd.as_path()), ("node", Path::new("/w")));
    }

    #[test]
    fn every_spelling_of_streamable_http_is_one_fingerprint() {
        let first = fingerprint(r#"{"httpUrl":"http://h/mcp"}"#);
        for text in [
            r#"{"type":"http","url":"http://h/mcp"}"#,
            r#"{"type":"HTTP","url":" http://h/mcp "}"#,
            r#"{"type":"streamable-http","url":"http://h/mcp"}"#,
            r#"{"type":"streamableHttp","url":"http://h/mcp"}"#,
            r#"{"transport":"streamable_http","url":"http://h/mcp"}"#,
            r#"{"httpUrl":"http://h/mcp","url":"http://h/mcp","headers":{},"timeout":5,"description":"d"}"#,
        ] {
            assert_eq!(fingerprint(text), first, "{text}");
        }
        assert!(matches!(spec(r#"{"url":"http://h/mcp"}"#).transport, Transport::Http { probe: true, .. }));
        assert!(matches!(spec(r#"{"type":"sse","url":"http://h/sse"}"#).transport, Transport::Sse { .. }));
    }

    #[test]
    fn an_explicit_type_decides_between_command_and_url() {
        let both = r#""command":"c","url":"http://h/""#;
        assert!(invalid(&format!("{{{both}}}")).contains("command and url"));
        assert!(matches!(spec(&format!("{{{both},\"type\":\"stdio\"}}")).transport, Transport::Stdio { .. }));
        assert!(matches!(spec(&format!("{{{both},\"type\":\"http\"}}")).transport, Transport::Http { .. }));
    }

    #[test]
    fn what_is_wrong_is_told_with_file_place_field_and_what_is_needed() {
        for (text, needle) in [
            ("null", "/s.json:1:1: mcpServers.a: a map is needed, found null"),
            ("{}", "command, httpUrl or url is needed"),
            (
                "{\n\"command\":\"c\",\"args\":true}",
                "/s.json:2:22: mcpServers.a.args: a list is needed, found true or false",
            ),
            (r#"{"command":"c","args":"-y,pkg"}"#, "a list is needed, found text"),
            (r#"{"command":"c","args":[1]}"#, "mcpServers.a.args[0]: text is needed, found a number"),
            (r#"{"command":"c","env":[]}"#, "mcpServers.a.env: a map is needed, found a list"),
            (r#"{"command":"c","env":{"X":null}}"#, "mcpServers.a.env.X: text is needed, found null"),
            (r#"{"command":"c","env":{"A=B":"x"}}"#, "env: a name"),
            (r#"{"httpUrl":"http://h/","headers":"x"}"#, "mcpServers.a.headers: a map is needed"),
            (r#"{"httpUrl":"http://h/","headers":{"a b":"x"}}"#, "no header name"),
            (r#"{"httpUrl":"http://h/","headers":{"a":"x\ny"}}"#, "headers.a: the value cannot stand"),
            (r#"{"httpUrl":"http://h/","url":"http://i/"}"#, "different places"),
            (r#"{"httpUrl":"ftp://h/"}"#, "mcpServers.a.httpUrl: a URL"),
            (r#"{"type":"htt","url":"http://h/"}"#, "it must be stdio, http"),
            (r#"{"type":"","url":"http://h/"}"#, "it must be stdio, http"),
            (r#"{"type":7,"url":"http://h/"}"#, "text is needed, found a number"),
            (r#"{"command":"${U}"}"#, "mcpServers.a.command: the variable U is not set"),
            (r#"{"command":"${"}"#, "mcpServers.a.command: a reference is malformed"),
            (r#"{"command":" "}"#, "command must not be blank"),
            (r#"{"command":"c","timeout":0}"#, "a number of milliseconds above 0"),
            (r#"{"command":"c","timeout":"5"}"#, "a number of milliseconds above 0"),
            (r#"{"command":"c","includeTools":"x"}"#, "mcpServers.a.includeTools: a list is needed"),
            (r#"{"command":"c","disabled":"true"}"#, "mcpServers.a.disabled: true or false is needed"),
        ] {
            let message = invalid(text);
            assert!(message.contains(needle), "{text}: {message}");
        }
    }

    #[test]
    fn what_no_transport_serves_is_unsupported() {
        assert_eq!(refused(r#"{"type":"sdk"}"#).0, Refusal::Unsupported);
        assert_eq!(refused(r#"{"tcp":"h:1"}"#).0, Refusal::Unsupported);
    }

    #[test]
    fn a_header_that_came_out_empty_is_not_sent() {
        let text =
            r#"{"httpUrl":"http://h/","headers":{"Authorization":"Bearer ${EMPTY:-}","X":"$EMPTY","Y":"y"}}"#;
        let Transport::Http { headers, .. } = spec(text).transport else { panic!() };
        assert_eq!(headers.keys().collect::<Vec<_>>(), ["y"]);
    }

    #[test]
    fn a_slip_of_the_pen_is_told_with_what_was_most_likely_meant() {
        let root = Root::new("/".as_ref(), "/w".as_ref());
        let variables = Variables::default();
        let path = Path::new("/s.json");
        let around =
            Surroundings { path, scope: Scope::User, root: &root, home: None, variables: &variables };
        let text = "{\"command\":\"c\",\n\"arsg\":[],\"envv\":{},\"x\":1,\"vendorThing\":1,\"headers\":{\"A\":\"Bearer ${U:-}\"}}";
        let warnings = warnings("a", &json::parse(text).unwrap(), around);
        let messages: Vec<_> = warnings.iter().map(|fault| fault.message.as_str()).collect();
        assert_eq!(
            messages,
            [
                "mcpServers.a.arsg is not known; did you mean args?",
                "mcpServers.a.envv is not known; did you mean env?",
                "mcpServers.a: headers.A: it came out empty and is not sent",
            ]
        );
        assert_eq!(warnings[0].at, Some((2, 8)));
    }

    #[test]
    fn off_wins_and_null_is_as_good_as_absent() {
        for (text, disabled) in [
            (r#"{"command":"c"}"#, false),
            (r#"{"command":"c","disabled":true}"#, true),
            (r#"{"command":"c","enabled":false}"#, true),
            (r#"{"command":"c","disabled":false,"enabled":false}"#, true),
            (r#"{"command":"c","disabled":null,"env":null,"args":null}"#, false),
        ] {
            let declared = declared("a", text);
            assert_eq!((declared.disabled, declared.spec.is_ok()), (disabled, true), "{text}");
        }
    }

    #[test]
    fn a_name_may_be_odd_but_not_empty_long_or_unprintable() {
        for (name, ok) in [
            ("__proto__", true),
            ("constructor", true),
            ("数据库", true),
            ("a/b", true),
            ("", false),
            ("a\nb", false),
            (&"x".repeat(256), true),
            (&"x".repeat(257), false),
        ] {
            assert_eq!(declared(name, r#"{"command":"c"}"#).spec.is_ok(), ok, "{name}");
        }
    }
}
