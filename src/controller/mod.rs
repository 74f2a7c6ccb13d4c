//! The loop: read, resolve, admit, plan, apply, publish, and round again whenever anything at all happens.

pub mod admit;
pub mod catalog;
pub mod connector;
pub mod plan;
pub mod report;
pub mod resolve;
pub mod retry;
pub mod snapshot;
pub mod table;

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
use connector::{
    Connector, DisconnectReason, Link, LostError, OpenError, OpenReason, Recorder, Source, Stop, Trigger,
};
use plan::{Action, earlier, plan};
use resolve::{Desired, resolve};
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

    /// Takes one event in. Gives the end when there is nothing left to run for.
    fn handle(&mut self, event: Event<C::Link>) -> Option<End> {
        let now = self.now();
        match event {
            Event::Signal(Signal::Terminate) if self.stopping.is_some() => return Some(End::Aborted),
            Event::Signal(Signal::Terminate) => self.stop(End::Stopped),
            Event::Signal(Signal::Reload) => {
                self.table.make_all_due(now);
                self.request_read(Trigger::Signal);
            }
            Event::Hint => self.request_read(Trigger::Hint),
            Event::Observed => {}
            Event::Timer => self.on_timer(now),
            Event::Done(Ok((id, done))) => {
                self.task_names.remove(&id);
                match done {
                    Done::Read(readings) => self.on_read(*readings, now),
                    Done::Opened(name, Ok(link)) => self.on_opened(name, link, now),
                    Done::Opened(name, Err(error)) => self.on_open_failed(&name, error, now),
                    Done::Served(name, lost) => self.on_served(&name, lost, now),
                }
            }
            Event::Done(Err(error)) => {
                let what = self.task_names.remove(&error.id());
                let message = "a defect of this program ended the task; the log has its text".to_owned();
                match what {
                    Some(Task::Read) | None => {
                        tracing::error!(%error, "reading the sources failed");
                        self.reads = Reads::No;
                        self.resync_at = now + self.settings.resync;
                        if matches!(self.settings.mode, Mode::Once { .. }) {
                            return Some(End::Failed);
                        }
                    }
                    Some(Task::Open(name)) => {
                        self.on_open_failed(&name, OpenError { reason: OpenReason::Panic, message }, now);
                    }
                    Some(Task::Serve(name)) => self.on_served(&name, Some(LostError(message)), now),
                }
            }
        }
        None
    }

    fn on_timer(&mut self, now: Moment) {
        let reread = self.snapshot.as_ref().and_then(Snapshot::reread_at);
        if self.stopping.is_none() && (self.resync_at <= now || reread.is_some_and(|at| at <= now)) {
            self.request_read(Trigger::Timer);
        }
        if let (Mode::Once { timeout }, None) = (self.settings.mode, &self.stopping)
            && Moment::START + timeout <= now
        {
            self.stop(End::TimedOut);
        }
    }

    fn request_read(&mut self, trigger: Trigger) {
        if self.stopping.is_some() {
            return;
        }
        self.reads = match self.reads {
            Reads::No => {
                let source = self.source.clone();
                let handle = self.tasks.spawn_blocking(move || Done::Read(Box::new(source.read())));
                self.task_names.insert(handle.id(), Task::Read);
                Reads::Yes { trigger, began: self.now() }
            }
            Reads::Yes { trigger: first, began } | Reads::YesAndAgain { trigger: first, began, .. } => {
                Reads::YesAndAgain { trigger: first, began, next: trigger }
            }
        };
    }

    fn on_read(&mut self, readings: Readings, now: Moment) {
        let (trigger, began, next) = match self.reads {
            Reads::No => (Trigger::Start, now, None),
            Reads::Yes { trigger, began } => (trigger, began, None),
            Reads::YesAndAgain { trigger, began, next } => (trigger, began, Some(next)),
        };
        self.reads = Reads::No;
        self.resync_at = now + self.settings.resync;
        if self.stopping.is_some() {
            return;
        }
        let snapshot = Snapshot::advance(self.snapshot.as_ref(), readings, now);
        self.log_source_changes(&snapshot);
        let bad = snapshot.has_errors();
        self.snapshot = Some(snapshot);
        self.resolve();
        self.recorder.reconciled(trigger, bad, self.now().since(began));
        if let Some(next) = next {
            self.request_read(next);
        }
    }

    fn resolve(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        let desired = resolve(snapshot, self.settings.ceiling.as_deref(), &self.own, &self.desired);
        for (name, wanted, refusal) in desired.newly_refused(&self.desired) {
            self.recorder.skipped(name, refusal);
            let message = wanted.message.as_deref().unwrap_or_default();
            let (scope, fix) = (wanted.scope.as_str(), refusal.fix());
            tracing::info!(server = %name, reason = %refusal, scope, fix, message, "not connected");
        }
        if desired.generation != self.desired.generation {
            tracing::debug!(
                generation = desired.generation,
                servers = desired.servers.len(),
                "the desired state changed"
            );
        }
        self.desired = desired;
    }

    fn log_source_changes(&self, snapshot: &Snapshot) {
        let before = self.snapshot.as_ref().map(Snapshot::errors).unwrap_or_default();
        for error in snapshot.errors() {
            if !before.contains(&error) {
                tracing::warn!(%error, "a source cannot be used; what it last said stands");
            }
        }
    }

    fn on_opened(&mut self, name: ServerName, link: C::Link, now: Moment) {
        let wanted = self.table.opened(&name, now);
        let Some(running) = self.running.get_mut(&name) else { return };
        if wanted {
            running.link = Some(link.clone());
            let transport = self.desired.servers.get(&name).and_then(|w| w.spec.as_ref());
            let transport = transport.map_or("stdio", |spec| spec.transport.as_str());
            self.recorder.connected(&name, transport);
            tracing::info!(server = %name, transport, tools = link.listing().borrow().tools.len(), "connected");
        } else {
            running.stop.close();
        }
        let (stop, drain) = (running.stop.clone(), self.settings.drain);
        let task = self.tasks.spawn({
            let name = name.clone();
            async move { Done::Served(name, serve(link, stop, drain).await) }
        });
        self.task_names.insert(task.id(), Task::Serve(name));
    }

    fn on_open_failed(&mut self, name: &ServerName, error: OpenError, now: Moment) {
        self.running.remove(name);
        let Some(entry) = self.table.get(name) else { return };
        if entry.phase != Phase::Connecting {
            self.table.ended(name, now);
            return;
        }
        if error.reason == OpenReason::Itself {
            self.own.met.insert(entry.fingerprint);
            self.resolve();
        }
        self.recorder.connect_failed(name, error.reason);
        tracing::warn!(server = %name, reason = error.reason.as_str(), error = %error, "could not connect");
        let needs_auth = error.reason == OpenReason::NeedsAuth;
        let roll = self.random.f64();
        self.table.open_failed(name, error.message, needs_auth, self.attempts(), roll, now);
    }

    fn on_served(&mut self, name: &ServerName, lost: Option<LostError>, now: Moment) {
        self.running.remove(name);
        let Some(entry) = self.table.get(name) else { return };
        let why = match (entry.phase, lost) {
            (Phase::Connected, lost) => {
                let error = lost.map_or_else(|| "the connection ended".to_owned(), |lost| lost.0);
                tracing::warn!(server = %name, %error, "connection lost");
                let roll = self.random.f64();
                self.table.lost(name, error, self.attempts(), roll, now);
                Some(DisconnectReason::Lost)
            }
            (Phase::Waiting { .. } | Phase::Connecting | Phase::Draining | Phase::Closing, _) => {
                self.table.ended(name, now)
            }
        };
        if let Some(why) = why {
            self.recorder.disconnected(name, why);
            tracing::info!(server = %name, reason = why.as_str(), "disconnected");
        }
    }

    /// Plans, applies and publishes. Gives the moment of the next look.
    fn pass(&mut self) -> Moment {
        let now = self.now();
        if self.stopping.is_none() && self.snapshot.is_some() && self.once_settled() {
            self.stop(End::Settled);
        }
        let gone = match self.stopping {
            Some(_) => DisconnectReason::Shutdown,
            None => DisconnectReason::Removed,
        };
        let plan = if self.snapshot.is_some() || self.stopping.is_some() {
            plan(&self.desired, &self.table, gone, now)
        } else {
            plan::Plan::default()
        };
        for action in plan.actions {
            self.apply(action, now);
        }
        self.publish(now);
        let reread = self.snapshot.as_ref().and_then(Snapshot::reread_at);
        let timers = match (&self.stopping, self.settings.mode) {
            (Some(stopping), _) => Some(stopping.deadline),
            (None, Mode::Keep) => earlier(reread, matches!(self.reads, Reads::No).then_some(self.resync_at)),
            (None, Mode::Once { timeout }) => Some(Moment::START + timeout),
        };
        // A read that hangs brings nothing back; an hour is as good as never.
        earlier(plan.wake_at, timers).unwrap_or(now + Duration::from_secs(3600))
    }

    fn apply(&mut self, action: Action, now: Moment) {
        match action {
            Action::Open(name, admitted) => {
                self.table.open(&name, admitted.fingerprint(), admitted.spec().startup_timeout, now);
                let stop = Stop::default();
                self.running.insert(name.clone(), Running { stop: stop.clone(), link: None });
                let connector = self.connector.clone();
                let task = self.tasks.spawn({
                    let name = name.clone();
                    async move { Done::Opened(name, connector.open(admitted, stop).await) }
                });
                self.task_names.insert(task.id(), Task::Open(name));
            }
            Action::Drain(name, why) => {
                let startup = self.desired.servers.get(&name).and_then(|w| w.spec.as_ref());
                let hold = (why == DisconnectReason::Replaced).then(|| {
                    self.settings.drain + startup.map(|spec| spec.startup_timeout).unwrap_or_default()
                });
                self.table.drain(&name, why, hold, now);
                self.stop_task(&name, Stop::drain);
            }
            Action::Close(name, why) => {
                self.table.close(&name, why, now);
                self.stop_task(&name, Stop::close);
            }
            Action::Cancel(name) => {
                let keep = self.desired.servers.get(&name).is_some_and(|wanted| wanted.admitted().is_some());
                self.table.cancel(&name, keep, now);
                self.stop_task(&name, Stop::close);
            }
            Action::Forget(name) => self.table.forget(&name),
        }
    }

    fn stop_task(&mut self, name: &ServerName, how: fn(&Stop)) {
        if let Some(running) = self.running.get_mut(name) {
            running.link = None;
            how(&running.stop);
        }
    }

    fn publish(&mut self, now: Moment) {
        for (name, running) in &self.running {
            if let Some(link) = &running.link {
                self.listings.insert(name.clone(), link.listing().borrow().clone());
            }
        }
        self.listings.retain(|name, _| self.table.get(name).is_some());
        let facts = report::Facts {
            workspace: self.settings.root.path(),
            epoch: self.epoch,
            desired: &self.desired,
            table: &self.table,
            snapshot: self.snapshot.as_ref(),
            listings: self.listings.iter().collect(),
            stopping: self.stopping.is_some(),
            now,
        };
        let status = report::report(&facts, Some(&self.status.borrow()));
        self.status.send_replace(Arc::new(status));
        if self.stopping.is_none() && self.snapshot.is_some() {
            let link = |name: &ServerName| self.running.get(name).and_then(|running| running.link.clone());
            let connections =
                self.listings.iter().map(|(name, list)| (name.clone(), (link(name), list.clone()))).collect();
            let catalog = catalog::catalog(&self.desired, &self.table, &connections, now);
            self.catalog.send_replace(Arc::new(catalog));
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
