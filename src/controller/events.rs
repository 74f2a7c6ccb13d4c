//! Decides what each event changes: a signal, a finished task, a hint, the timer.

use super::connector::{
    Connector, DisconnectReason, Link, LostError, OpenError, OpenReason, Recorder, Source, Trigger,
};
use super::resolve::resolve;
use super::snapshot::{Readings, Snapshot};
use super::table::Phase;
use super::{Controller, Done, End, Event, Mode, Reads, Signal, Task, serve};
use crate::model::{Moment, ServerName};

impl<S: Source, C: Connector, R: Recorder> Controller<S, C, R> {
    /// Takes one event in. Gives the end when there is nothing left to run for.
    pub(super) fn handle(&mut self, event: Event<C::Link>) -> Option<End> {
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

    pub(super) fn request_read(&mut self, trigger: Trigger) {
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
            let why = wanted.message.as_deref();
            let (scope, fix) = (wanted.scope.as_str(), refusal.fix());
            tracing::info!(server = %name, reason = %refusal, scope, fix, why, "not connected");
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
        let watching = &snapshot.watching;
        if !watching.active && self.snapshot.as_ref().is_none_or(|before| before.watching != *watching) {
            tracing::warn!(why = watching.message, "not every change is seen at once");
        }
        let before = self.snapshot.as_ref().map(Snapshot::warnings).unwrap_or_default();
        for warning in snapshot.warnings() {
            if !before.contains(&warning) {
                tracing::warn!(%warning, "a source may not mean what was meant");
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
}
