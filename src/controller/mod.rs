//! The loop: read, resolve, admit, plan, apply, publish, and round again whenever anything at all happens.

pub mod admit;
pub mod catalog;
pub mod connector;
mod events;
pub mod plan;
pub mod report;
pub mod resolve;
pub mod retry;
pub mod snapshot;
pub mod table;
mod turn;

#[cfg(test)]
mod history;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{self, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::model::status::Status;
use crate::model::{Listing, Moment, Root, ServerName};
use admit::Own;
use catalog::Catalog;
use connector::{Connector, Link, LostError, OpenError, Recorder, Source, Stop, Trigger};
use resolve::Desired;
use snapshot::{Readings, Snapshot};
use table::{Attempts, Phase, Table};

/// What a run is told at its start and keeps.
#[derive(Debug, Clone)]
pub struct Settings {
    pub root: Root,
    /// `--allowed-mcp-server-names`: what no settings file can widen.
    pub ceiling: Option<Vec<String>>,
    /// The time between two reads when no event comes.
    pub resync: Duration,
    /// How long calls in flight may take to finish when their server is drained.
    pub drain: Duration,
    /// How long a shutdown may take in all.
    pub grace: Duration,
    pub mode: Mode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Until a signal.
    Keep,
    /// Until every admitted server has had one attempt, or the time is over.
    Once { timeout: Duration },
}

/// What the outside tells the loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The first asks for a shutdown, the second ends it at once.
    Terminate,
    /// Read now, and try everything that waits.
    Reload,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    pub end: End,
    /// The status before anything was closed.
    pub status: Status,
    pub took: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A signal asked for it.
    Stopped,
    /// A signal asked twice, or the grace was over.
    Aborted,
    /// Every admitted server has had its attempt.
    Settled,
    /// The time of a single convergence was over.
    TimedOut,
    /// The sources could not be read because of a defect of this program.
    Failed,
}

/// What the loop publishes.
pub struct Outputs<L> {
    pub catalog: watch::Receiver<Arc<Catalog<L>>>,
}

/// What wakes the loop from outside.
#[derive(Debug, Clone, Default)]
pub struct Wakers {
    /// The sources may have changed: read them.
    pub hint: Arc<Notify>,
    /// A server lists other things now: publish them.
    pub observed: Arc<Notify>,
}

/// Reads are coalesced: one runs, and at most one more is wanted.
#[derive(Debug, Clone, Copy)]
enum Reads {
    No,
    Yes { trigger: Trigger, began: Moment },
    YesAndAgain { trigger: Trigger, began: Moment, next: Trigger },
}

/// A task's result.
enum Done<L> {
    Read(Box<Readings>),
    Opened(ServerName, Result<L, OpenError>),
    Served(ServerName, Option<LostError>),
}

/// What a task is for, known also when it panics.
enum Task {
    Read,
    Open(ServerName),
    Serve(ServerName),
}

enum Event<L> {
    Signal(Signal),
    Done(Result<(task::Id, Done<L>), JoinError>),
    Hint,
    Observed,
    Timer,
}

/// One server's task.
struct Running<L> {
    stop: Stop,
    link: Option<L>,
}

/// The control loop. All state is here; nothing of it is shared.
pub struct Controller<S, C: Connector, R> {
    settings: Settings,
    source: Arc<S>,
    connector: Arc<C>,
    recorder: Arc<R>,
    wakers: Wakers,
    random: fastrand::Rng,
    start: Instant,
    epoch: SystemTime,
    own: Own,
    snapshot: Option<Snapshot>,
    desired: Desired,
    table: Table,
    running: BTreeMap<ServerName, Running<C::Link>>,
    listings: BTreeMap<ServerName, Arc<Listing>>,
    tasks: JoinSet<Done<C::Link>>,
    task_names: HashMap<task::Id, Task>,
    reads: Reads,
    resync_at: Moment,
    stopping: Option<Stopping>,
    status: watch::Sender<Arc<Status>>,
    catalog: watch::Sender<Arc<Catalog<C::Link>>>,
}

/// A shutdown under way.
struct Stopping {
    end: End,
    deadline: Moment,
    before: Status,
}

impl<S: Source, C: Connector, R: Recorder> Controller<S, C, R> {
    /// A loop that has not read anything yet. `start` and `epoch` are the same moment on the two clocks; `seed`
    /// spreads retries; `status` is where the status is published.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        settings: Settings,
        source: Arc<S>,
        connector: Arc<C>,
        recorder: Arc<R>,
        own: Own,
        wakers: Wakers,
        (start, epoch): (Instant, SystemTime),
        seed: u64,
        status: watch::Sender<Arc<Status>>,
    ) -> (Self, Outputs<C::Link>) {
        let desired = Desired::default();
        let table = Table::default();
        let first = report::report(
            &report::Facts {
                workspace: settings.root.path(),
                epoch,
                desired: &desired,
                table: &table,
                snapshot: None,
                listings: BTreeMap::new(),
                stopping: false,
                now: Moment::START,
            },
            None,
        );
        status.send_replace(Arc::new(first));
        let catalog = watch::Sender::new(Arc::new(Catalog::default()));
        let outputs = Outputs { catalog: catalog.subscribe() };
        let controller = Controller {
            settings,
            source,
            connector,
            recorder,
            wakers,
            random: fastrand::Rng::with_seed(seed),
            start,
            epoch,
            own,
            snapshot: None,
            desired,
            table,
            running: BTreeMap::new(),
            listings: BTreeMap::new(),
            tasks: JoinSet::new(),
            task_names: HashMap::new(),
            reads: Reads::No,
            resync_at: Moment::START,
            stopping: None,
            status,
            catalog,
        };
        (controller, outputs)
    }

    /// Runs until a signal, or in a run of one convergence until that is reached. Every connection is closed when
    /// this returns, unless it was aborted.
    pub async fn run(mut self, mut signals: mpsc::Receiver<Signal>) -> Outcome {
        self.request_read(Trigger::Start);
        loop {
            let wake_at = self.pass();
            if let Some(end) = self.is_over() {
                return self.outcome(end);
            }
            let hint = self.wakers.hint.clone();
            let observed = self.wakers.observed.clone();
            let deadline = self.start + wake_at.since_start();
            let event = tokio::select! {
                Some(signal) = signals.recv() => Event::Signal(signal),
                Some(done) = self.tasks.join_next_with_id() => Event::Done(done),
                () = hint.notified() => Event::Hint,
                () = observed.notified() => Event::Observed,
                () = sleep_until(deadline) => Event::Timer,
            };
            if let Some(end) = self.handle(event) {
                return self.outcome(end);
            }
            // Whatever else is ready belongs to the same pass.
            while let Some(done) = self.tasks.try_join_next_with_id() {
                if let Some(end) = self.handle(Event::Done(done)) {
                    return self.outcome(end);
                }
            }
        }
    }

    fn now(&self) -> Moment {
        Moment::new(self.start.elapsed())
    }

    fn attempts(&self) -> Attempts {
        match self.settings.mode {
            Mode::Keep => Attempts::Forever,
            Mode::Once { .. } => Attempts::One,
        }
    }

    /// Whether a run of one convergence has nothing left to try.
    fn once_settled(&self) -> bool {
        let tried = |name: &ServerName| {
            self.table.get(name).is_some_and(|entry| match entry.phase {
                Phase::Connected => true,
                Phase::Waiting { until } => until.is_none(),
                Phase::Connecting | Phase::Draining | Phase::Closing => false,
            })
        };
        match self.settings.mode {
            Mode::Keep => false,
            Mode::Once { .. } => {
                self.desired.servers.iter().all(|(name, wanted)| wanted.admitted().is_none() || tried(name))
            }
        }
    }

    /// From here on nothing is wanted any more; the same passes bring that about.
    fn stop(&mut self, end: End) {
        let now = self.now();
        self.publish(now);
        let before = self.status.borrow().as_ref().clone();
        self.stopping = Some(Stopping { end, deadline: now + self.settings.grace, before });
        self.desired = Desired { generation: self.desired.generation, servers: BTreeMap::new() };
    }

    fn is_over(&self) -> Option<End> {
        let stopping = self.stopping.as_ref()?;
        if self.running.is_empty() {
            return Some(stopping.end);
        }
        (stopping.deadline <= self.now()).then_some(End::Aborted)
    }

    fn outcome(self, end: End) -> Outcome {
        let took = self.start.elapsed();
        let status = match self.stopping {
            Some(stopping) => stopping.before,
            None => self.status.borrow().as_ref().clone(),
        };
        Outcome { end, status, took }
    }
}

/// A connection's life: until it is lost, or until it is told to go and its calls are done.
async fn serve<L: Link>(link: L, stop: Stop, drain: Duration) -> Option<LostError> {
    let lost = stop.drain.run_until_cancelled(link.lost()).await;
    if lost.is_none() {
        // Whether the calls finished or the time is over, what follows is the same.
        let _ = stop.close.run_until_cancelled(tokio::time::timeout(drain, link.idle())).await;
    }
    link.close().await;
    lost
}
