//! Decides what agents see: the tools of all servers under their exposed names, and where a call to each goes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::names;
use crate::controller::catalog::{Absent, Catalog, Connection, Served};
use crate::model::ServerName;
use crate::protocol::RawJson;
use crate::protocol::object::raw;

/// What agents are offered now.
#[derive(Debug)]
pub struct Offer<L> {
    /// Rises by one whenever the tools that agents see change.
    pub revision: u64,
    /// The result of `tools/list`, all in one page.
    pub tools: Arc<RawJson>,
    routes: Arc<HashMap<String, Route>>,
    servers: BTreeMap<ServerName, Served<L>>,
    absent: BTreeMap<ServerName, Absent>,
    /// Whether a list is complete as far as first attempts go.
    pub settled: bool,
    /// Until when a first list waits; nothing before the first plan.
    pub list_deadline: Option<Instant>,
}

/// Where a call goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub server: ServerName,
    /// The server's own name of the tool.
    pub tool: String,
}

/// What is known of a name that an agent called.
pub enum Lookup<'a, L> {
    Found(&'a Route, &'a Served<L>),
    /// It would be this server's, which serves nothing now.
    Absent(&'a Absent),
    /// It would be this server's, which has no such tool.
    NoSuchTool(&'a ServerName),
    Unknown,
}

impl<L> Default for Offer<L> {
    fn default() -> Self {
        Offer {
            revision: 0,
            tools: Arc::new(raw(&Tools { tools: Vec::new() })),
            routes: Arc::default(),
            servers: BTreeMap::new(),
            absent: BTreeMap::new(),
            settled: false,
            list_deadline: None,
        }
    }
}

#[derive(Serialize)]
struct Tools<'a> {
    tools: Vec<indexmap::IndexMap<&'a str, &'a serde_json::value::RawValue>>,
}

impl<L: Clone> Offer<L> {
    /// The offer that `catalog` makes, after `previous`.
    fn next(catalog: &Catalog<L>, previous: &Offer<L>, list_deadline: Option<Instant>) -> Self {
        let mut routes = HashMap::new();
        let mut items = Vec::new();
        for (server, served) in &catalog.servers {
            for item in served.listing.tools.iter().filter(|item| served.spec.tools.allows(&item.key)) {
                let name = names::exposed(server.as_str(), &item.key);
                let route = Route { server: server.clone(), tool: item.key.clone() };
                // A server that lists one name twice gets its first.
                if routes.insert(name.clone(), route).is_none() {
                    items.push((raw(&name), item));
                }
            }
        }
        let tools = items.iter().map(|(name, item)| {
            item.fields
                .iter()
                .map(|(key, value)| (key.as_str(), if key == "name" { &**name } else { &**value }))
                .collect()
        });
        let tools = raw(&Tools { tools: tools.collect() });
        let same = tools.get() == previous.tools.get();
        Offer {
            revision: if same { previous.revision } else { previous.revision + 1 },
            tools: if same { previous.tools.clone() } else { Arc::new(tools) },
            routes: Arc::new(routes),
            servers: catalog.servers.clone(),
            absent: catalog.absent.clone(),
            settled: catalog.settled,
            list_deadline,
        }
    }

    /// What is known of `name`.
    pub fn look_up(&self, name: &str) -> Lookup<'_, L> {
        if let Some(route) = self.routes.get(name)
            && let Some(served) = self.servers.get(&route.server)
        {
            return Lookup::Found(route, served);
        }
        let owner = |server: &ServerName| name.starts_with(&names::prefix(server.as_str()));
        let longest = |a: &&ServerName, b: &&ServerName| a.as_str().len().cmp(&b.as_str().len());
        let absent = self.absent.keys().filter(|server| owner(server)).max_by(longest);
        let served = self.servers.keys().filter(|server| owner(server)).max_by(longest);
        match (absent, served) {
            (Some(absent), served) if served.is_none_or(|s| s.as_str().len() < absent.as_str().len()) => {
                Lookup::Absent(&self.absent[absent])
            }
            (_, Some(served)) => Lookup::NoSuchTool(served),
            (_, None) => Lookup::Unknown,
        }
    }

    /// The connection of a route's server, if it is live.
    pub fn live(&self, route: &Route) -> Option<&L> {
        match &self.servers.get(&route.server)?.connection {
            Connection::Live(link) => Some(link),
            Connection::Awaited { .. } => None,
        }
    }
}

/// Turns each catalogue into an offer, for as long as the loop runs. Lists wait for first attempts until
/// `list_wait` after the first plan.
pub async fn publish<L: Clone + Send + Sync + 'static>(
    mut catalogs: watch::Receiver<Arc<Catalog<L>>>,
    offers: watch::Sender<Arc<Offer<L>>>,
    list_wait: Duration,
) {
    let mut list_deadline = None;
    loop {
        let catalog = catalogs.borrow_and_update().clone();
        if catalog.planned {
            list_deadline = list_deadline.or_else(|| Some(Instant::now() + list_wait));
        }
        let next = Offer::next(&catalog, &offers.borrow(), list_deadline);
        offers.send_replace(Arc::new(next));
        if catalogs.changed().await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use indexmap::IndexMap;
    use serde_json::value::RawValue;

    use super::*;
    use crate::model::{Item, Listing, ServerSpec, ToolFilter, Transport};

    fn item(json: &str) -> Item {
        let fields: IndexMap<String, Box<RawValue>> = serde_json::from_str(json).unwrap();
        Item { key: serde_json::from_str(fields["name"].get()).unwrap(), fields }
    }

    fn catalog(servers: &[(&str, &[&str], ToolFilter)]) -> Catalog<u8> {
        let served = |tools: &[&str], filter: &ToolFilter| Served {
            listing: Arc::new(Listing {
                tools: Arc::new(tools.iter().map(|t| item(t)).collect()),
                ..Listing::default()
            }),
            spec: Arc::new(ServerSpec {
                transport: Transport::Sse { url: String::new().into(), headers: [].into() },
                timeout: ServerSpec::DEFAULT_TIMEOUT,
                startup_timeout: ServerSpec::DEFAULT_STARTUP_TIMEOUT,
                tools: filter.clone(),
            }),
            connection: Connection::Live(1),
        };
        Catalog {
            servers: servers
                .iter()
                .map(|(name, tools, f)| (ServerName::new(name), served(tools, f)))
                .collect(),
            planned: true,
            settled: true,
            ..Catalog::default()
        }
    }

    #[test]
    fn a_listed_tool_keeps_everything_but_its_name() {
        let text = r#"{"x-vendor":{"b":1,"a":1e400},"name":"echo","inputSchema":{"type":"object"}}"#;
        let offer = Offer::next(&catalog(&[("s", &[text], ToolFilter::default())]), &Offer::default(), None);
        assert_eq!(offer.tools.get(), format!(r#"{{"tools":[{}]}}"#, text.replace("echo", "s__echo")));
    }

    #[test]
    fn the_revision_rises_only_when_what_agents_see_changes() {
        let one = catalog(&[("s", &[r#"{"name":"a"}"#, r#"{"name":"b"}"#], ToolFilter::default())]);
        let filter = ToolFilter { include: None, exclude: vec!["b".into()] };
        let filtered = catalog(&[("s", &[r#"{"name":"a"}"#, r#"{"name":"b"}"#], filter)]);
        let first = Offer::next(&one, &Offer::default(), None);
        assert_eq!(first.revision, 1);
        assert_eq!(Offer::next(&one, &first, None).revision, 1);
        let second = Offer::next(&filtered, &first, None);
        assert_eq!(second.revision, 2);
        assert!(matches!(second.look_up("s__b"), Lookup::NoSuchTool(_)), "a filter holds for calls too");
    }

    #[test]
    fn a_name_nobody_serves_is_told_by_the_server_it_would_belong_to() {
        let mut catalog = catalog(&[("a", &[r#"{"name":"t"}"#], ToolFilter::default())]);
        let why = Absent { reason: "pending_approval", message: String::new() };
        catalog.absent.insert("a-b".into(), why);
        let offer = Offer::next(&catalog, &Offer::default(), None);
        assert!(matches!(offer.look_up("a__t"), Lookup::Found(..)));
        assert!(matches!(offer.look_up("a__x"), Lookup::NoSuchTool(server) if server.as_str() == "a"));
        assert!(matches!(offer.look_up("a-b__x"), Lookup::Absent(_)));
        assert!(matches!(offer.look_up("zzz"), Lookup::Unknown));
    }
}
