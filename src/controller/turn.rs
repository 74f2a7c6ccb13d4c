//! Owns what follows an event: plan, apply, publish.

use std::sync::Arc;
use std::time::Duration;

use super::connector::{Connector, DisconnectReason, Link, Recorder, Source, Stop};
use super::plan::{Action, Plan, earlier, plan};
use super::snapshot::Snapshot;
use super::{Controller, Done, End, Mode, Reads, Running, Task, catalog, report};
use crate::model::{Moment, ServerName};

impl<S: Source, C: Connector, R: Recorder> Controller<S, C, R> {
    /// Plans, applies and publishes. Gives the moment of the next look.
    pub(super) fn pass(&mut self) -> Moment {
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
            Plan::default()
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

    pub(super) fn publish(&mut self, now: Moment) {
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
}
