//! Decides what to do next: compares what is wanted with what runs. The whole controller is this table.

use super::admit::{Admission, Admitted};
use super::connector::DisconnectReason;
use super::resolve::{Desired, Wanted};
use super::table::{Entry, Phase, Table};
use crate::model::{Moment, ServerName};

/// One thing to do.
#[derive(Debug, Clone)]
pub enum Action {
    /// Start an attempt to connect.
    Open(ServerName, Admitted),
    /// Let calls in flight finish, then close.
    Drain(ServerName, DisconnectReason),
    /// Close at once.
    Close(ServerName, DisconnectReason),
    /// Call off an attempt.
    Cancel(ServerName),
    /// Nothing runs and nothing shall: drop the entry.
    Forget(ServerName),
}

/// What to do now, and when to look again if nothing else happens.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub actions: Vec<Action>,
    pub wake_at: Option<Moment>,
}

/// What is wanted of one server, set against what runs of it: the rows of the table.
enum Want<'a> {
    Same(&'a Admitted),
    Other(&'a Admitted),
    Held,
    Nothing,
    Refused,
}

impl<'a> Want<'a> {
    fn of(wanted: Option<&'a Wanted>, entry: Option<&Entry>) -> Self {
        match wanted.map(|wanted| &wanted.admission) {
            None => Want::Nothing,
            Some(Admission::Held(_)) => Want::Held,
            Some(Admission::Refused(_)) => Want::Refused,
            Some(Admission::Admitted(admitted)) => match entry {
                Some(entry) if entry.fingerprint != admitted.fingerprint() => Want::Other(admitted),
                Some(_) | None => Want::Same(admitted),
            },
        }
    }
}

/// What brings `table` closer to `desired` at `now`. `gone` is why a server that nobody wants any more goes.
pub fn plan(desired: &Desired, table: &Table, gone: DisconnectReason, now: Moment) -> Plan {
    let mut plan = Plan::default();
    let running_only = table.iter().map(|(name, _)| name).filter(|name| !desired.servers.contains_key(*name));
    for name in desired.servers.keys().chain(running_only) {
        let entry = table.get(name);
        plan.actions.extend(decide(name, Want::of(desired.servers.get(name), entry), entry, gone, now));
        plan.wake_at = earlier(plan.wake_at, entry.and_then(|entry| wake_at(entry, now)));
    }
    plan
}

/// One cell of the table.
fn decide(
    name: &ServerName,
    want: Want<'_>,
    entry: Option<&Entry>,
    gone: DisconnectReason,
    now: Moment,
) -> Option<Action> {
    let name = name.clone();
    let Some(entry) = entry else {
        return match want {
            Want::Same(admitted) | Want::Other(admitted) => Some(Action::Open(name, admitted.clone())),
            Want::Held | Want::Nothing | Want::Refused => None,
        };
    };
    match (want, entry.phase) {
        (Want::Same(admitted), Phase::Waiting { until }) => {
            until.is_some_and(|until| until <= now).then(|| Action::Open(name, admitted.clone()))
        }
        (Want::Same(_), Phase::Connecting | Phase::Connected | Phase::Draining | Phase::Closing) => None,

        (Want::Other(admitted), Phase::Waiting { .. }) => Some(Action::Open(name, admitted.clone())),
        (Want::Other(_), Phase::Connecting) => Some(Action::Cancel(name)),
        (Want::Other(_), Phase::Connected) => Some(Action::Drain(name, DisconnectReason::Replaced)),
        (Want::Other(_), Phase::Draining | Phase::Closing) => None,

        (Want::Held | Want::Nothing | Want::Refused, Phase::Waiting { .. }) => Some(Action::Forget(name)),
        (Want::Held | Want::Nothing | Want::Refused, Phase::Connecting) => Some(Action::Cancel(name)),
        (Want::Held, Phase::Connected | Phase::Draining | Phase::Closing) => None,

        (Want::Nothing, Phase::Connected) => Some(Action::Drain(name, gone)),
        (Want::Nothing, Phase::Draining | Phase::Closing) => None,

        (Want::Refused, Phase::Connected | Phase::Draining) => {
            Some(Action::Close(name, DisconnectReason::Refused))
        }
        (Want::Refused, Phase::Closing) => None,
    }
}

/// When `entry` needs another look: its next attempt, or the end of what is held for it.
fn wake_at(entry: &Entry, now: Moment) -> Option<Moment> {
    let attempt = match entry.phase {
        Phase::Waiting { until } => until.filter(|until| *until > now),
        Phase::Connecting | Phase::Connected | Phase::Draining | Phase::Closing => None,
    };
    earlier(attempt, entry.held(now).map(|hold| hold.until))
}

/// The earlier of two moments that may not be.
pub fn earlier(a: Option<Moment>, b: Option<Moment>) -> Option<Moment> {
    a.into_iter().chain(b).min()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::controller::admit::admitted_for_test;
    use crate::controller::retry::Retry;
    use crate::controller::table::{Hold, HoldKind};
    use crate::model::{Fingerprint, Refusal, Scope, ServerSpec, ToolFilter, Transport};

    const NOW: Moment = Moment::new(Duration::from_secs(100));

    fn spec(command: &str) -> ServerSpec {
        ServerSpec {
            transport: Transport::Stdio {
                command: command.into(),
                args: vec![],
                env: [].into(),
                cwd: "/".into(),
            },
            timeout: ServerSpec::DEFAULT_TIMEOUT,
            startup_timeout: ServerSpec::DEFAULT_STARTUP_TIMEOUT,
            tools: ToolFilter::default(),
        }
    }

    fn entry(phase: Phase) -> Entry {
        Entry {
            phase,
            fingerprint: Fingerprint::of(&spec("running").transport),
            retry: Retry::default(),
            since: Moment::START,
            hold: None,
            last_error: None,
            needs_auth: false,
            connects: 0,
            ending: None,
        }
    }

    fn desired(admission: Option<Admission>) -> Desired {
        let wanted = admission.map(|admission| Wanted {
            scope: Scope::User,
            path: "/settings.json".into(),
            overrides: None,
            stands_in_for: None,
            spec: None,
            fingerprint: None,
            digest: None,
            admission,
            message: None,
        });
        Desired { generation: 1, servers: wanted.into_iter().map(|w| (ServerName::from("s"), w)).collect() }
    }

    fn told(plan: &Plan) -> String {
        let words = plan.actions.iter().map(|action| match action {
            Action::Open(..) => "Open".to_owned(),
            Action::Drain(_, why) => format!("Drain {}", why.as_str()),
            Action::Close(_, why) => format!("Close {}", why.as_str()),
            Action::Cancel(_) => "Cancel".to_owned(),
            Action::Forget(_) => "Forget".to_owned(),
        });
        words.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn each_cell_of_the_table_has_its_one_action() {
        let same = || Some(Admission::Admitted(admitted_for_test("s", spec("running"))));
        let other = || Some(Admission::Admitted(admitted_for_test("s", spec("edited"))));
        let held = || Some(Admission::Held(Refusal::SourceBad));
        let refused = || Some(Admission::Refused(Refusal::Excluded));
        let later = Phase::Waiting { until: Some(NOW + Duration::from_secs(5)) };
        let due = Phase::Waiting { until: Some(NOW) };
        #[rustfmt::skip]
        let cells: [(&str, Option<Admission>, Option<Phase>, &str); 31] = [
            ("same, absent",       same(),    None,                    "Open"),
            ("same, due",          same(),    Some(due),               "Open"),
            ("same, waiting",      same(),    Some(later),             ""),
            ("same, connecting",   same(),    Some(Phase::Connecting), ""),
            ("same, connected",    same(),    Some(Phase::Connected),  ""),
            ("same, draining",     same(),    Some(Phase::Draining),   ""),
            ("same, closing",      same(),    Some(Phase::Closing),    ""),
            ("other, absent",      other(),   None,                    "Open"),
            ("other, waiting",     other(),   Some(later),             "Open"),
            ("other, connecting",  other(),   Some(Phase::Connecting), "Cancel"),
            ("other, connected",   other(),   Some(Phase::Connected),  "Drain replaced"),
            ("other, draining",    other(),   Some(Phase::Draining),   ""),
            ("other, closing",     other(),   Some(Phase::Closing),    ""),
            ("held, absent",       held(),    None,                    ""),
            ("held, waiting",      held(),    Some(due),               "Forget"),
            ("held, connecting",   held(),    Some(Phase::Connecting), "Cancel"),
            ("held, connected",    held(),    Some(Phase::Connected),  ""),
            ("held, draining",     held(),    Some(Phase::Draining),   ""),
            ("held, closing",      held(),    Some(Phase::Closing),    ""),
            ("nothing, absent",    None,      None,                    ""),
            ("nothing, waiting",   None,      Some(due),               "Forget"),
            ("nothing, connecting",None,      Some(Phase::Connecting), "Cancel"),
            ("nothing, connected", None,      Some(Phase::Connected),  "Drain removed"),
            ("nothing, draining",  None,      Some(Phase::Draining),   ""),
            ("nothing, closing",   None,      Some(Phase::Closing),    ""),
            ("refused, absent",    refused(), None,                    ""),
            ("refused, waiting",   refused(), Some(due),               "Forget"),
            ("refused, connecting",refused(), Some(Phase::Connecting), "Cancel"),
            ("refused, connected", refused(), Some(Phase::Connected),  "Close refused"),
            ("refused, draining",  refused(), Some(Phase::Draining),   "Close refused"),
            ("refused, closing",   refused(), Some(Phase::Closing),    ""),
        ];
        for (cell, admission, phase, action) in cells {
            let mut table = Table::default();
            if let Some(phase) = phase {
                table.put("s", entry(phase));
            }
            let plan = plan(&desired(admission), &table, DisconnectReason::Removed, NOW);
            assert_eq!(told(&plan), action, "{cell}");
        }
    }

    #[test]
    fn the_next_look_is_at_the_earliest_attempt_or_end_of_a_hold() {
        let soon = NOW + Duration::from_secs(1);
        let late = NOW + Duration::from_secs(9);
        let hold = |until| Some(Hold { kind: HoldKind::Reconnecting, until });
        for (until, held, wake) in [
            (late, hold(soon), Some(soon)),
            (soon, hold(late), Some(soon)),
            (late, hold(NOW), Some(late)),
            (NOW, None, None),
        ] {
            let mut table = Table::default();
            table.put("s", Entry { hold: held, ..entry(Phase::Waiting { until: Some(until) }) });
            assert_eq!(plan(&desired(None), &table, DisconnectReason::Removed, NOW).wake_at, wake);
        }
    }
}
