//! mcp-reconciler keeps an agent's MCP servers in the state that its settings ask for.
//!
//! ```text
//!  settings files  .mcp.json  YAML/ConfigMap  approvals  trust  flags
//!         \___________\____________|_____________/_________/______/
//!    sources          watch ──hint──> read ──> Readings
//!                      |                        |
//!  --------------------|------------------------|--------------------------- pure: no I/O, no clock, no await
//!                      v                        v
//!    controller      LOOP         Snapshot -> resolve -> admit -> Desired ─┐
//!                      ^ ^ ^                                               ├─> plan -> actions
//!                      | | |                             Table (observed) ─┘            |
//!               timer ─┘ | └─ a task finished <── one task for each server <────────────┘
//!                 signal ┘                              |
//!  -----------------------------------------------------|-------------------------------------------------
//!    sinks       upstream: open, serve, drain, close  <─┘
//!                agent endpoint, metrics, status  <── watch channels: Status, Catalog
//! ```
//!
//! The invariants, each with the test that holds it:
//! - What runs becomes what is wanted, and never two connections for one name:
//!   `controller::history::every_random_history_ends_with_what_runs_equal_to_what_is_wanted_and_never_two_at_once`.
//! - Each cell of wanted against running has its one action:
//!   `controller::plan::tests::each_cell_of_the_table_has_its_one_action`.
//! - Nothing connects past the gate: `Connector::open` takes an `Admitted`, which only `Gate::admit` makes; and
//!   `controller::history::an_unapproved_server_is_never_opened_and_its_skip_is_counted_once`.
//! - `model` and `protocol` import nothing of ours, `controller` imports neither sources nor sinks, pure files no
//!   runtime: `tests/it/architecture.rs`.

pub mod cli;
pub mod command;
pub mod controller;
pub mod demo_server;
pub mod model;
pub mod protocol;
pub mod sinks;
pub mod sources;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::serve::ListenerExt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use cli::Options;
use controller::admit::Own;
use controller::{Controller, Mode, Outcome, Outputs, Settings, Signal, Wakers};
use model::Root;
use model::server::hex;
use sinks::agent::{self, Agent};
use sinks::guard::Guard;
use sinks::metrics::Metrics;
use sinks::offer::{self, Offer};
use sinks::ops::{self, Ops};
use sinks::run_file::{self, Run, RunFileError};
use sinks::upstream::{UpstreamConfig, Upstreams};
use sources::{Files, SourcesConfig};

/// Why a run could not begin.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("{flag} {address}: {error}; is another sidecar running? Give this one another address")]
    Listen { flag: &'static str, address: SocketAddr, error: io::Error },
    #[error("--token-file {path}: {error}")]
    Token { path: PathBuf, error: io::Error },
    #[error("--token-file {0}: it is empty")]
    EmptyToken(PathBuf),
    #[error("the HTTP client cannot be made: {0}")]
    Client(String),
    #[error("the metrics cannot be made: {0}")]
    Metrics(#[from] prometheus::Error),
    #[error(transparent)]
    RunFile(#[from] RunFileError),
    #[error("the system gives no randomness")]
    Randomness,
}

/// What a run is told by its process.
pub struct Process {
    /// The variables, captured once.
    pub environment: BTreeMap<String, String>,
    pub root: Root,
    pub home: Option<PathBuf>,
    pub settings_home: PathBuf,
}

impl Process {
    /// What the sources are found by.
    pub fn sources(&self, options: &Options) -> SourcesConfig {
        SourcesConfig {
            root: self.root.clone(),
            settings_home: self.settings_home.clone(),
            home: self.home.clone(),
            config: options.config.clone(),
            settle: options.settle,
            environment: self.environment.clone(),
        }
    }
}

/// Runs the sidecar until a signal ends it, or with `--reconcile-once` until one convergence is over.
///
/// # Errors
/// When it cannot begin: an address is taken, the token cannot be read. Nothing has been started then.
pub async fn run(
    options: &Options,
    process: Process,
    signals: mpsc::Receiver<Signal>,
) -> Result<Outcome, RunError> {
    let Process { environment, root, .. } = &process;
    let (start, epoch) = (Instant::now(), SystemTime::now());
    let instance = instance_id()?;
    let token = options.token_file.as_ref().map(read_token).transpose()?;
    let endpoints = match options.reconcile_once {
        true => None,
        false => Some(Endpoints::bind(options).await?),
    };
    let wakers = Wakers::default();
    let mut tasks = JoinSet::new();

    // Read.
    let (files, settling) = Files::new(process.sources(options), wakers.hint.clone());
    tasks.spawn(settling);

    // Connect.
    let upstreams = Upstreams::new(UpstreamConfig {
        root: root.clone(),
        environment: environment.clone(),
        pass_env: cli::not_blank(&options.pass_env),
        instance: instance.clone(),
        observed: wakers.observed.clone(),
        nofile: raise_descriptor_limit(),
    })
    .map_err(|error| RunError::Client(error.to_string()))?;

    // Decide.
    let (status, status_now) = watch::channel(Arc::default());
    let metrics = Arc::new(Metrics::new(status_now.clone())?);
    let settings = Settings {
        root: root.clone(),
        ceiling: options.ceiling(),
        resync: options.resync,
        drain: options.drain,
        grace: options.grace,
        mode: match options.reconcile_once {
            true => Mode::Once { timeout: options.timeout },
            false => Mode::Keep,
        },
    };
    let own = Own {
        listen: endpoints.iter().flat_map(|e| [e.agent_address, e.ops_address]).collect(),
        ..Own::default()
    };
    let (controller, Outputs { catalog }) = Controller::new(
        settings,
        Arc::new(files),
        Arc::new(upstreams),
        metrics.clone(),
        own,
        wakers,
        (start, epoch),
        fastrand::u64(..),
        status,
    );

    // Publish.
    let closing = CancellationToken::new();
    let mut servers = JoinSet::new();
    let mut held = None;
    if let Some(endpoints) = endpoints {
        let (offers, offers_now) = watch::channel(Arc::new(Offer::default()));
        tasks.spawn(offer::publish(catalog, offers, options.list_wait));
        let guard = Guard::new(cli::not_blank(&options.allowed_hosts), token.as_deref());
        let ops_guard = match endpoints.ops_address.ip().is_loopback() {
            true => guard.without_token(),
            false => guard.clone(),
        };
        let run = Run {
            pid: std::process::id(),
            listen: endpoints.agent_address,
            ops_listen: endpoints.ops_address,
        };
        let directory = run_file::directory(environment.get("XDG_RUNTIME_DIR").map(PathBuf::from).as_deref());
        held = run_file::write(&directory, root, &run)?;
        tracing::info!(
            workspace = %root,
            mcp = format!("http://{}/mcp", endpoints.agent_address),
            ops = format!("http://{}", endpoints.ops_address),
            "listening"
        );
        let agent = agent::router(Agent {
            offers: offers_now,
            guard,
            metrics: metrics.clone(),
            instance,
            list_wait: options.list_wait,
            closing: closing.clone(),
        });
        let ops = ops::router(Ops { status: status_now, metrics, guard: ops_guard, start });
        servers.spawn(serve(endpoints.agent, agent, closing.clone()));
        servers.spawn(serve(endpoints.ops, ops, closing.clone()));
    }

    let outcome = controller.run(signals).await;
    closing.cancel();
    // Answers that are being sent may leave; a peer that does not read holds nothing up.
    let _ = tokio::time::timeout(Duration::from_secs(1), servers.join_all()).await;
    tasks.abort_all();
    drop(held);
    Ok(outcome)
}

/// The two listeners, bound before anything is started.
struct Endpoints {
    agent: TcpListener,
    agent_address: SocketAddr,
    ops: TcpListener,
    ops_address: SocketAddr,
}

impl Endpoints {
    async fn bind(options: &Options) -> Result<Endpoints, RunError> {
        async fn bind(
            flag: &'static str,
            address: SocketAddr,
        ) -> Result<(TcpListener, SocketAddr), RunError> {
            let error = |error| RunError::Listen { flag, address, error };
            let listener = TcpListener::bind(address).await.map_err(error)?;
            let local = listener.local_addr().map_err(error)?;
            Ok((listener, local))
        }
        let (agent, agent_address) = bind("--listen", options.listen).await?;
        let (ops, ops_address) = bind("--ops-listen", options.ops_listen).await?;
        Ok(Endpoints { agent, agent_address, ops, ops_address })
    }
}

async fn serve(listener: TcpListener, router: Router, closing: CancellationToken) {
    // Small messages must not wait for each other's acknowledgements.
    let listener = listener.tap_io(|socket| {
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY");
        }
    });
    if let Err(error) = axum::serve(listener, router).with_graceful_shutdown(closing.cancelled_owned()).await
    {
        tracing::error!(%error, "an endpoint ended");
    }
}

/// 32 hex digits that no other process has.
fn instance_id() -> Result<String, RunError> {
    let mut bytes = [0; 16];
    match rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()) {
        Ok(16) => Ok(hex(&bytes)),
        Ok(_) | Err(_) => Err(RunError::Randomness),
    }
}

/// The first line of the token file.
///
/// # Errors
/// When it cannot be read or is empty.
pub fn read_token(path: &PathBuf) -> Result<String, RunError> {
    let text = fs::read_to_string(path).map_err(|error| RunError::Token { path: path.clone(), error })?;
    match text.lines().next().map(str::trim) {
        Some(token) if !token.is_empty() => Ok(token.to_owned()),
        Some(_) | None => Err(RunError::EmptyToken(path.clone())),
    }
}

/// Raises our soft limit of open files to the hard one. Gives the soft limit that children are to have.
fn raise_descriptor_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => current,
        Err(error) => {
            tracing::debug!(%error, "the limit of open files stays as it is");
            None
        }
    }
}
