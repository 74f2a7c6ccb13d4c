//! Owns the metrics: counters of what happened, and gauges made from the status at each scrape.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    CounterVec, Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounterVec, IntGauge,
    IntGaugeVec, Opts, Registry, TextEncoder,
};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::controller::connector::{DisconnectReason, OpenReason, Recorder, Trigger};
use crate::model::status::{ConditionKind, ServerState, SourceState, Status};
use crate::model::{Refusal, Scope, ServerName};

/// The content type of the text format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Ok,
    /// The tool itself says that it failed.
    ToolError,
    /// The server answered with a protocol error.
    Error,
    /// The connection ended before the answer.
    Lost,
    Timeout,
    /// The agent cancelled or went away.
    Cancelled,
    /// No connection came up in time.
    Unavailable,
}

impl Outcome {
    const ALL: [Outcome; 7] = [
        Outcome::Ok,
        Outcome::ToolError,
        Outcome::Error,
        Outcome::Lost,
        Outcome::Timeout,
        Outcome::Cancelled,
        Outcome::Unavailable,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::ToolError => "tool_error",
            Outcome::Error => "error",
            Outcome::Lost => "lost",
            Outcome::Timeout => "timeout",
            Outcome::Cancelled => "cancelled",
            Outcome::Unavailable => "unavailable",
        }
    }
}

/// All metrics, in a registry of their own.
pub struct Metrics {
    registry: Registry,
    connects: IntCounterVec,
    connect_failures: IntCounterVec,
    disconnects: IntCounterVec,
    skips: IntCounterVec,
    reconciles: IntCounterVec,
    reconcile_duration: Histogram,
    calls: IntCounterVec,
    call_duration: HistogramVec,
    config_last_success: Gauge,
}

impl Metrics {
    /// The metrics of a run whose state `status` tells.
    ///
    /// # Errors
    /// When two metrics have one name: a defect.
    pub fn new(status: watch::Receiver<Arc<Status>>) -> prometheus::Result<Metrics> {
        let counter = |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(opts(name, help), labels);
        let metrics = Metrics {
            registry: Registry::new(),
            connects: counter(
                "connects_total",
                "Connections to a server that came up.",
                &["server", "transport"],
            )?,
            connect_failures: counter(
                "connect_failures_total",
                "Attempts to connect to a server that failed.",
                &["server", "reason"],
            )?,
            disconnects: counter(
                "disconnects_total",
                "Connections to a server that ended.",
                &["server", "reason"],
            )?,
            skips: counter(
                "skips_total",
                "Times that a server became refused: it waits for approval, or something else forbids it.",
                &["server", "reason"],
            )?,
            reconciles: counter(
                "reconciles_total",
                "Passes over all sources, by what set them off and how the sources were.",
                &["trigger", "result"],
            )?,
            reconcile_duration: Histogram::with_opts(
                HistogramOpts::from(opts(
                    "reconcile_duration_seconds",
                    "Time from a read's beginning to its plan.",
                ))
                .buckets(vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0]),
            )?,
            calls: counter("calls_total", "Tool calls by agents.", &["server", "outcome"])?,
            call_duration: HistogramVec::new(
                HistogramOpts::from(opts("call_duration_seconds", "Time from a call's sending to its end."))
                    .buckets(vec![0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0]),
                &["server"],
            )?,
            config_last_success: Gauge::with_opts(opts(
                "config_last_success_timestamp_seconds",
                "Unix time of the last pass in which every source could be read.",
            ))?,
        };
        for trigger in Trigger::ALL {
            for result in ["success", "source_bad"] {
                metrics.reconciles.with_label_values(&[trigger.as_str(), result]);
            }
        }
        let all: [Box<dyn Collector>; 11] = [
            Box::new(metrics.connects.clone()),
            Box::new(metrics.connect_failures.clone()),
            Box::new(metrics.disconnects.clone()),
            Box::new(metrics.skips.clone()),
            Box::new(metrics.reconciles.clone()),
            Box::new(metrics.reconcile_duration.clone()),
            Box::new(metrics.calls.clone()),
            Box::new(metrics.call_duration.clone()),
            Box::new(metrics.config_last_success.clone()),
            Box::new(States::new(status)?),
            Box::new(prometheus::process_collector::ProcessCollector::for_self()),
        ];
        for collector in all {
            metrics.registry.register(collector)?;
        }
        Ok(metrics)
    }

    /// A scrape, in the text format.
    ///
    /// # Errors
    /// When a metric cannot be encoded: a defect.
    pub fn scrape(&self) -> prometheus::Result<Vec<u8>> {
        let mut out = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut out)?;
        Ok(out)
    }

    /// A call to `server` begins. It counts as cancelled unless its timer is told otherwise.
    pub fn call(self: &Arc<Self>, server: &ServerName) -> CallTimer {
        CallTimer {
            metrics: self.clone(),
            server: server.clone(),
            began: Instant::now(),
            outcome: Some(Outcome::Cancelled),
        }
    }

    /// All series of a server's counters stand at zero before the first event, so that a rate sees it.
    fn known(&self, server: &ServerName) {
        for reason in DisconnectReason::ALL {
            self.disconnects.with_label_values(&[server.as_str(), reason.as_str()]);
        }
        for outcome in Outcome::ALL {
            self.calls.with_label_values(&[server.as_str(), outcome.as_str()]);
        }
    }
}

/// Counts one call when it ends.
pub struct CallTimer {
    metrics: Arc<Metrics>,
    server: ServerName,
    began: Instant,
    outcome: Option<Outcome>,
}

impl CallTimer {
    pub fn done(mut self, outcome: Outcome) {
        self.outcome = Some(outcome);
    }

    /// The call begins again elsewhere and is counted there.
    pub fn forget(mut self) {
        self.outcome = None;
    }
}

impl Drop for CallTimer {
    fn drop(&mut self) {
        if let Some(outcome) = self.outcome {
            let server = self.server.as_str();
            self.metrics.calls.with_label_values(&[server, outcome.as_str()]).inc();
            let took = self.began.elapsed().as_secs_f64();
            self.metrics.call_duration.with_label_values(&[server]).observe(took);
        }
    }
}

impl Recorder for Metrics {
    fn connected(&self, server: &ServerName, transport: &'static str) {
        self.known(server);
        self.connects.with_label_values(&[server.as_str(), transport]).inc();
    }

    fn connect_failed(&self, server: &ServerName, reason: OpenReason) {
        self.connect_failures.with_label_values(&[server.as_str(), reason.as_str()]).inc();
    }

    fn disconnected(&self, server: &ServerName, reason: DisconnectReason) {
        self.disconnects.with_label_values(&[server.as_str(), reason.as_str()]).inc();
    }

    fn skipped(&self, server: &ServerName, refusal: Refusal) {
        self.skips.with_label_values(&[server.as_str(), refusal.as_str()]).inc();
    }

    fn reconciled(&self, trigger: Trigger, bad: bool, took: Duration) {
        let result = if bad { "source_bad" } else { "success" };
        self.reconciles.with_label_values(&[trigger.as_str(), result]).inc();
        self.reconcile_duration.observe(took.as_secs_f64());
        if !bad && let Ok(now) = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
            self.config_last_success.set(now.as_secs_f64());
        }
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("mcp_reconciler")
}

/// The gauges: made anew from the status, so that a server's series go when it goes.
struct States {
    status: watch::Receiver<Arc<Status>>,
    server_state: GaugeVec,
    tools: IntGaugeVec,
    restarts: CounterVec,
    source_up: IntGaugeVec,
    approvals_pending: IntGauge,
    watching: IntGauge,
    generation: IntGauge,
    build_info: IntGaugeVec,
}

impl States {
    fn new(status: watch::Receiver<Arc<Status>>) -> prometheus::Result<States> {
        let gauges = |name: &str, help: &str, labels: &[&str]| IntGaugeVec::new(opts(name, help), labels);
        let states = States {
            status,
            server_state: GaugeVec::new(
                opts("server_state", "1 for the state that the server is in, 0 for the others."),
                &["server", "state"],
            )?,
            tools: gauges("tools", "Tools that the server lists.", &["server"])?,
            restarts: CounterVec::new(
                opts("restarts_total", "Times that the server was connected again after its first time."),
                &["server"],
            )?,
            source_up: gauges(
                "source_up",
                "1 when every source of the scope can be read, else 0.",
                &["scope"],
            )?,
            approvals_pending: IntGauge::with_opts(opts(
                "approvals_pending",
                "Servers that wait for a person.",
            ))?,
            watching: IntGauge::with_opts(opts(
                "watching",
                "1 when file events are watched, 0 when only the timer works.",
            ))?,
            generation: IntGauge::with_opts(opts("generation", "Generation of the desired state."))?,
            build_info: gauges("build_info", "1, with the version.", &["version"])?,
        };
        states.build_info.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        Ok(states)
    }

    fn all(&self) -> [&dyn Collector; 8] {
        [
            &self.server_state,
            &self.tools,
            &self.restarts,
            &self.source_up,
            &self.approvals_pending,
            &self.watching,
            &self.generation,
            &self.build_info,
        ]
    }
}

impl Collector for States {
    fn desc(&self) -> Vec<&Desc> {
        self.all().iter().flat_map(|collector| collector.desc()).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let status = self.status.borrow().clone();
        self.server_state.reset();
        self.tools.reset();
        self.restarts.reset();
        self.source_up.reset();
        for server in &status.servers {
            let name = server.name.as_str();
            for state in ServerState::ALL {
                let is = f64::from(u8::from(server.state == state));
                self.server_state.with_label_values(&[name, state.as_str()]).set(is);
            }
            self.tools.with_label_values(&[name]).set(i64::try_from(server.tools).unwrap_or(i64::MAX));
            #[allow(clippy::cast_precision_loss)]
            self.restarts.with_label_values(&[name]).inc_by(server.restarts as f64);
        }
        for scope in Scope::ALL {
            let mut of_scope = status.sources.iter().filter(|source| source.scope == scope).peekable();
            if of_scope.peek().is_some() {
                let up = of_scope.all(|source| source.state != SourceState::Bad);
                self.source_up.with_label_values(&[scope.as_str()]).set(i64::from(up));
            }
        }
        let pending = Refusal::PendingApproval.as_str();
        let pending =
            status.servers.iter().filter(|server| server.reason.as_deref() == Some(pending)).count();
        self.approvals_pending.set(i64::try_from(pending).unwrap_or(i64::MAX));
        let watching = status.conditions.iter().any(|c| c.kind == ConditionKind::Watching && c.status);
        self.watching.set(i64::from(watching));
        self.generation.set(i64::try_from(status.generation).unwrap_or(i64::MAX));
        self.all().iter().flat_map(|collector| collector.collect()).collect()
    }
}
