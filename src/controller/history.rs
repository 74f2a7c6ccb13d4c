//! The loop against a fake world: random histories of edits and faults end with what runs equal to what is wanted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::connector::{DisconnectReason, OpenError, OpenReason};
use super::snapshot::{
    Approvals, Declared, Layer, LayerReading, Reading, SourceError, TrustVerdict, Unusable, Usable, Watching,
};
use super::*;
use crate::model::status::ServerState;
use crate::model::{
    ApprovalDigest, ApprovalStatus, Decision, Refusal, Scope, ServerSpec, ToolFilter, Transport,
};

/// How the next attempt on a server goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    Good,
    Fails,
    /// Never answers, until it is told to stop.
    Hangs,
    /// Takes this long.
    Slow(Duration),
}

#[derive(Default)]
struct World {
    behaviours: BTreeMap<String, Behaviour>,
    /// The live connections: the version each was opened with, and what ends it.
    live: BTreeMap<String, (String, CancellationToken)>,
    /// Every attempt, in order.
    opens: Vec<String>,
    twice: bool,
    closing_takes: Duration,
    in_flight: BTreeSet<String>,
}

#[derive(Clone, Default)]
struct Fake(Arc<Mutex<World>>);

impl Fake {
    fn world<T>(&self, with: impl FnOnce(&mut World) -> T) -> T {
        with(&mut self.0.lock().unwrap())
    }
}

#[derive(Clone)]
struct FakeLink {
    name: String,
    fake: Fake,
    gone: CancellationToken,
    listing: watch::Receiver<Arc<Listing>>,
}

impl Connector for Fake {
    type Link = FakeLink;

    async fn open(&self, admitted: admit::Admitted, stop: Stop) -> Result<FakeLink, OpenError> {
        let name = admitted.name().as_str().to_owned();
        let version = version(admitted.spec());
        let behaviour = self.world(|world| {
            world.opens.push(name.clone());
            // From here to the end of its close a server counts as running.
            world.twice |= world.live.insert(name.clone(), (version, CancellationToken::new())).is_some();
            world.behaviours.get(&name).copied().unwrap_or(Behaviour::Good)
        });
        let failed = match behaviour {
            Behaviour::Good => None,
            Behaviour::Fails => Some(OpenReason::Closed),
            Behaviour::Hangs => {
                let limit = tokio::time::sleep(admitted.spec().startup_timeout);
                let passed = stop.close.run_until_cancelled(limit).await;
                Some(passed.map_or(OpenReason::Cancelled, |()| OpenReason::Timeout))
            }
            Behaviour::Slow(time) => {
                let slept = stop.close.run_until_cancelled(tokio::time::sleep(time)).await;
                slept.is_none().then_some(OpenReason::Cancelled)
            }
        };
        if let Some(reason) = failed {
            self.close(&name).await;
            return Err(OpenError { reason, message: "told to".into() });
        }
        let gone = self.world(|world| world.live[&name].1.clone());
        let listing = watch::Sender::new(Arc::new(Listing::default())).subscribe();
        Ok(FakeLink { name, fake: self.clone(), gone, listing })
    }
}

impl Fake {
    async fn close(&self, name: &str) {
        tokio::time::sleep(self.world(|world| world.closing_takes)).await;
        self.world(|world| world.live.remove(name));
    }
}

impl Link for FakeLink {
    fn listing(&self) -> watch::Receiver<Arc<Listing>> {
        self.listing.clone()
    }

    async fn lost(&self) -> LostError {
        self.gone.cancelled().await;
        LostError("killed".into())
    }

    async fn idle(&self) {
        if self.fake.world(|world| world.in_flight.contains(&self.name)) {
            std::future::pending().await
        }
    }

    async fn close(&self) {
        self.fake.close(&self.name).await;
    }
}

/// What the files say.
#[derive(Clone, Default)]
struct Files {
    user: BTreeMap<String, String>,
    project: BTreeMap<String, String>,
    excluded: BTreeSet<String>,
    approved: BTreeMap<String, (String, ApprovalStatus)>,
    user_bad: bool,
    store_bad: bool,
}

#[derive(Clone, Default)]
struct FakeSource(Arc<Mutex<Files>>);

impl Source for FakeSource {
    fn read(&self) -> Readings {
        let files = self.0.lock().unwrap().clone();
        let bad = |path: &str| SourceError { path: path.into(), at: Some((1, 1)), message: "broken".into() };
        let user = Layer {
            servers: servers(&files.user, false),
            excluded: files.excluded.into_iter().collect(),
            ..Layer::default()
        };
        let project = Layer { servers: servers(&files.project, true), ..Layer::default() };
        let mut decisions: BTreeMap<String, Vec<Decision>> = BTreeMap::new();
        for (name, (version, status)) in files.approved {
            decisions.entry(name).or_default().push(Decision { digest: digest(&version).to_hex(), status });
        }
        let layer = |scope, path: &str, reading| LayerReading {
            scope,
            rank: 0,
            path: path.into(),
            explicit: false,
            reading,
        };
        let user = if files.user_bad { Reading::Bad(bad("/user")) } else { Reading::Good(Arc::new(user)) };
        let store = Approvals { decisions };
        let store =
            if files.store_bad { Reading::Bad(bad("/store")) } else { Reading::Good(Arc::new(store)) };
        Readings {
            layers: vec![
                layer(Scope::User, "/user", user),
                layer(Scope::Project, "/project", Reading::Good(Arc::new(project))),
            ],
            approvals: ("/store".into(), store),
            trust: ("/trust".into(), Reading::Good(Arc::new(TrustVerdict::Unknown))),
            watching: Watching { active: true, message: String::new() },
        }
    }
}

fn servers(versions: &BTreeMap<String, String>, gated: bool) -> BTreeMap<ServerName, Declared> {
    let declared = |version: &String| Declared {
        spec: match version.as_str() {
            "invalid" => Err(Unusable {
                refusal: Refusal::Invalid,
                error: SourceError { path: "/s".into(), at: None, message: "no command".into() },
            }),
            version => Ok(Usable::new(spec(version))),
        },
        digest: gated.then(|| digest(version)),
        disabled: false,
    };
    versions.iter().map(|(name, version)| (ServerName::new(name), declared(version))).collect()
}

fn digest(version: &str) -> ApprovalDigest {
    let mut bytes = [0; 32];
    for (byte, from) in bytes.iter_mut().zip(version.bytes()) {
        *byte = from;
    }
    ApprovalDigest::new(bytes)
}

fn spec(version: &str) -> ServerSpec {
    ServerSpec {
        transport: Transport::Stdio {
            command: version.into(),
            args: vec![],
            env: [].into(),
            cwd: "/".into(),
        },
        timeout: ServerSpec::DEFAULT_TIMEOUT,
        startup_timeout: ServerSpec::DEFAULT_STARTUP_TIMEOUT,
        tools: ToolFilter::default(),
    }
}

fn version(spec: &ServerSpec) -> String {
    match &spec.transport {
        Transport::Stdio { command, .. } => command.clone(),
        Transport::Http { .. } | Transport::Sse { .. } => unreachable!("the fake world is stdio only"),
    }
}

/// What was counted, as words in order.
#[derive(Clone, Default)]
struct Counted(Arc<Mutex<Vec<String>>>);

impl Counted {
    fn add(&self, word: String) {
        self.0.lock().unwrap().push(word);
    }

    fn words(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Recorder for Counted {
    fn connected(&self, server: &ServerName, _: &'static str) {
        self.add(format!("connected {server}"));
    }
    fn connect_failed(&self, server: &ServerName, reason: OpenReason) {
        self.add(format!("failed {server} {}", reason.as_str()));
    }
    fn disconnected(&self, server: &ServerName, reason: DisconnectReason) {
        self.add(format!("disconnected {server} {}", reason.as_str()));
    }
    fn skipped(&self, server: &ServerName, refusal: Refusal) {
        self.add(format!("skipped {server} {refusal}"));
    }
    fn reconciled(&self, _: Trigger, _: bool, _: Duration) {}
}

struct Run {
    files: FakeSource,
    fake: Fake,
    counted: Counted,
    wakers: Wakers,
    signals: mpsc::Sender<Signal>,
    status: watch::Receiver<Arc<Status>>,
    catalog: watch::Receiver<Arc<Catalog<FakeLink>>>,
    task: tokio::task::JoinHandle<Outcome>,
}

impl Run {
    fn start(files: Files, fake: Fake, mode: Mode, seed: u64) -> Run {
        let files = FakeSource(Arc::new(Mutex::new(files)));
        let counted = Counted::default();
        let wakers = Wakers::default();
        let settings = Settings {
            root: Root::new("/".as_ref(), "/w".as_ref()),
            ceiling: None,
            resync: Duration::from_secs(30),
            drain: Duration::from_secs(10),
            grace: Duration::from_secs(25),
            mode,
        };
        let (published, status) = watch::channel(Arc::default());
        let (controller, outputs) = Controller::new(
            settings,
            Arc::new(files.clone()),
            Arc::new(fake.clone()),
            Arc::new(counted.clone()),
            Own::default(),
            wakers.clone(),
            (Instant::now(), SystemTime::UNIX_EPOCH),
            seed,
            published,
        );
        let (signals, receiver) = mpsc::channel(4);
        let task = tokio::spawn(controller.run(receiver));
        let Outputs { catalog } = outputs;
        Run { files, fake, counted, wakers, signals, status, catalog, task }
    }

    fn edit(&self, edit: impl FnOnce(&mut Files)) {
        edit(&mut self.files.0.lock().unwrap());
        self.wakers.hint.notify_one();
    }

    /// Waits until the status is as `what` says. Time is paused: an hour of it is nothing.
    async fn until(&mut self, what: impl FnMut(&Arc<Status>) -> bool) {
        let waited =
            tokio::time::timeout(Duration::from_secs(3600), self.status.wait_for(what)).await.is_ok();
        assert!(waited, "it never came: {:#?}", self.status.borrow());
    }

    /// Waits until `version` of `name` runs.
    async fn until_runs(&mut self, name: &str, version: &str) {
        let fake = self.fake.clone();
        let live = |name: &str| fake.world(|world| world.live.get(name).map(|(version, _)| version.clone()));
        let state = |s: &Arc<Status>| s.servers.iter().find(|x| x.name.as_str() == name).map(|x| x.state);
        self.until(|s| live(name).as_deref() == Some(version) && state(s) == Some(ServerState::Connected))
            .await;
    }

    async fn shut_down(self) -> Outcome {
        self.signals.send(Signal::Terminate).await.unwrap();
        self.task.await.unwrap()
    }
}

fn user(servers: &[(&str, &str)]) -> Files {
    Files { user: servers.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect(), ..Files::default() }
}

/// What should run, said once more in the plainest way.
fn wanted(files: &Files) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for name in files.user.keys().chain(files.project.keys()) {
        let approval = |version: &String| match files.approved.get(name) {
            Some((approved, status)) if approved == version => Some(*status),
            Some(_) | None => None,
        };
        let version = match files.project.get(name) {
            Some(version) if approval(version) == Some(ApprovalStatus::Approved) => Some(version),
            Some(version) if approval(version) == Some(ApprovalStatus::Rejected) => files.user.get(name),
            Some(_) => None,
            None => files.user.get(name),
        };
        if let Some(version) = version.filter(|v| *v != "invalid" && !files.excluded.contains(name)) {
            out.insert(name.clone(), version.clone());
        }
    }
    out
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const VERSIONS: [&str; 4] = ["v1", "v2", "v3", "invalid"];

/// One random edit or fault.
fn step(random: &mut fastrand::Rng, files: &mut Files, world: &mut World) {
    let name = NAMES[random.usize(..NAMES.len())].to_owned();
    let version = VERSIONS[random.usize(..VERSIONS.len())].to_owned();
    match random.u8(..14) {
        0..=2 => drop(files.user.insert(name, version)),
        3 => drop(files.user.remove(&name)),
        4 | 5 => drop(files.project.insert(name, version)),
        6 => drop(files.project.remove(&name)),
        7 => drop(files.approved.insert(name, (version, ApprovalStatus::Approved))),
        8 => drop(files.approved.insert(name, (version, ApprovalStatus::Rejected))),
        9 => {
            if !files.excluded.remove(&name) {
                files.excluded.insert(name);
            }
        }
        10 => files.user_bad = !files.user_bad,
        11 => files.store_bad = !files.store_bad,
        12 => {
            let all = [
                Behaviour::Good,
                Behaviour::Fails,
                Behaviour::Hangs,
                Behaviour::Slow(Duration::from_secs(7)),
            ];
            world.behaviours.insert(name.clone(), all[random.usize(..all.len())]);
            world.closing_takes = Duration::from_millis(random.u64(..3000));
            if random.bool() {
                world.in_flight.insert(name);
            }
        }
        _ => {
            if let Some((_, gone)) = world.live.get(&name) {
                gone.cancel();
            }
        }
    }
}

async fn history(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut run = Run::start(Files::default(), Fake::default(), Mode::Keep, seed);
    for _ in 0..random.usize(5..40) {
        let mut files = run.files.0.lock().unwrap().clone();
        run.fake.world(|world| step(&mut random, &mut files, world));
        run.edit(|now| *now = files);
        if random.bool() {
            tokio::time::sleep(Duration::from_millis(random.u64(..20_000))).await;
        }
    }
    // The world is well again; from here on only the loop acts.
    run.fake.world(|world| {
        world.behaviours.clear();
        world.in_flight.clear();
    });
    run.edit(|files| {
        files.user_bad = false;
        files.store_bad = false;
    });
    let files = run.files.0.lock().unwrap().clone();
    let wanted = wanted(&files);
    let fake = run.fake.clone();
    let live = || -> BTreeMap<String, String> {
        fake.world(|world| {
            world.live.iter().map(|(name, (version, _))| (name.clone(), version.clone())).collect()
        })
    };
    // A status from before the last fault can look right for a moment: let every wait pass first.
    tokio::time::sleep(Duration::from_secs(150)).await;
    run.until(|status| status.converged && live() == wanted).await;
    assert!(!run.fake.world(|world| world.twice), "seed {seed}: two at once for one name");

    let opened = run.fake.world(|world| world.opens.len());
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(
        run.fake.world(|world| world.opens.len()),
        opened,
        "seed {seed}: what is as wanted is left alone"
    );

    let outcome = run.shut_down().await;
    assert_eq!(outcome.end, End::Stopped, "seed {seed}");
    assert!(live().is_empty(), "seed {seed}: nothing is left after a shutdown");
}

#[test]
fn every_random_history_ends_with_what_runs_equal_to_what_is_wanted_and_never_two_at_once() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime")
    };
    std::thread::scope(|scope| {
        for half in 0..2 {
            scope.spawn(move || (0..1000).for_each(|n| runtime().block_on(history(2 * n + half))));
        }
    });
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_in_its_handshake_delays_no_other() {
    let fake = Fake::default();
    fake.world(|world| world.behaviours.insert("a".into(), Behaviour::Hangs));
    let mut run = Run::start(user(&[("a", "v1"), ("b", "v1")]), fake, Mode::Keep, 1);
    run.until_runs("b", "v1").await;
    run.edit(|files| drop(files.user.insert("c".into(), "v1".into())));
    run.until_runs("c", "v1").await;
    let state = run.status.borrow().servers.iter().find(|s| s.name.as_str() == "a").map(|s| s.state);
    assert_eq!(state, Some(ServerState::Connecting));
}

#[tokio::test(start_paused = true)]
async fn only_what_differs_is_touched() {
    let mut run = Run::start(user(&[("a", "v1"), ("b", "v1")]), Fake::default(), Mode::Keep, 1);
    run.until_runs("b", "v1").await;
    run.edit(|files| drop(files.user.insert("a".into(), "v2".into())));
    run.until_runs("a", "v2").await;
    run.edit(|files| drop(files.user.remove("a")));
    run.until(|status| status.servers.len() == 1 && status.converged).await;
    assert_eq!(
        run.counted.words(),
        ["connected a", "connected b", "disconnected a replaced", "connected a", "disconnected a removed"]
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_comes_back_with_no_edit_and_keeps_its_tools_meanwhile() {
    let mut run = Run::start(user(&[("a", "v1")]), Fake::default(), Mode::Keep, 1);
    run.until_runs("a", "v1").await;
    run.fake.world(|world| {
        world.behaviours.insert("a".into(), Behaviour::Slow(Duration::from_secs(3)));
        world.live["a"].1.cancel();
    });
    run.until(|status| status.servers[0].state == ServerState::Connecting).await;
    assert!(run.catalog.borrow().servers.contains_key("a"), "held while it reconnects");
    run.until_runs("a", "v1").await;
    assert_eq!(run.status.borrow().servers[0].restarts, 1);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_stays_away_loses_its_tools_after_the_hold() {
    let mut run = Run::start(user(&[("a", "v1")]), Fake::default(), Mode::Keep, 1);
    run.until_runs("a", "v1").await;
    run.fake.world(|world| {
        world.behaviours.insert("a".into(), Behaviour::Fails);
        world.live["a"].1.cancel();
    });
    let gone = run.catalog.wait_for(|catalog| !catalog.servers.contains_key("a"));
    let gone =
        tokio::time::timeout(Duration::from_secs(3600), gone).await.unwrap().unwrap().absent["a"].clone();
    assert_eq!(gone.reason, "failed");
}

#[tokio::test(start_paused = true)]
async fn a_replacement_that_fails_takes_the_old_tools_with_it() {
    let mut run = Run::start(user(&[("a", "v1")]), Fake::default(), Mode::Keep, 1);
    run.until_runs("a", "v1").await;
    run.fake.world(|world| world.behaviours.insert("a".into(), Behaviour::Fails));
    run.edit(|files| drop(files.user.insert("a".into(), "v2".into())));
    run.until(|status| status.servers[0].state == ServerState::Waiting).await;
    assert!(!run.catalog.borrow().servers.contains_key("a"));
}

#[tokio::test(start_paused = true)]
async fn an_unapproved_server_is_never_opened_and_its_skip_is_counted_once() {
    let project = [("p".to_owned(), "v1".to_owned())].into();
    let mut run = Run::start(Files { project, ..Files::default() }, Fake::default(), Mode::Keep, 1);
    run.until(|status| status.servers.iter().any(|s| s.reason.as_deref() == Some("pending_approval"))).await;
    for _ in 0..5 {
        tokio::time::sleep(Duration::from_secs(31)).await;
        run.edit(|_| ());
    }
    run.signals.send(Signal::Reload).await.unwrap();
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert!(run.fake.world(|world| world.opens.is_empty()));
    assert_eq!(run.counted.words(), ["skipped p pending_approval"]);

    run.edit(|files| drop(files.approved.insert("p".into(), ("v1".into(), ApprovalStatus::Approved))));
    run.until_runs("p", "v1").await;
    run.edit(|files| drop(files.project.insert("p".into(), "v2".into())));
    run.until(|status| status.servers[0].state == ServerState::Refused).await;
    assert!(run.fake.world(|world| world.live.is_empty()), "an edit takes the approval away");
    assert_eq!(
        run.counted.words()[1..],
        ["connected p", "skipped p pending_approval", "disconnected p refused"]
    );
}

#[tokio::test(start_paused = true)]
async fn while_the_store_cannot_be_read_what_runs_stays_and_nothing_new_opens() {
    let project = [("p".to_owned(), "v1".to_owned())].into();
    let approved = [("p".to_owned(), ("v1".to_owned(), ApprovalStatus::Approved))].into();
    let mut run = Run::start(Files { project, approved, ..Files::default() }, Fake::default(), Mode::Keep, 1);
    run.until_runs("p", "v1").await;
    run.edit(|files| {
        files.store_bad = true;
        files.project.insert("q".into(), "v1".into());
    });
    run.until(|status| status.servers.len() == 2).await;
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(run.fake.world(|world| world.live.keys().cloned().collect::<Vec<_>>()), ["p"]);
    assert_eq!(run.status.borrow().servers[1].reason.as_deref(), Some("source_bad"));
}

#[tokio::test(start_paused = true)]
async fn a_retry_is_never_brought_forward_by_a_tick_but_by_an_edit() {
    let fake = Fake::default();
    fake.world(|world| world.behaviours.insert("a".into(), Behaviour::Fails));
    let mut run = Run::start(user(&[("a", "v1")]), fake, Mode::Keep, 7);
    run.until(|status| status.servers.iter().any(|s| s.next_attempt_seconds.is_some_and(|s| s > 8.0))).await;
    let opens = |run: &Run| run.fake.world(|world| world.opens.len());
    let before = opens(&run);
    for _ in 0..50 {
        run.edit(|_| ());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(opens(&run), before, "fifty ticks bring nothing forward");
    run.fake.world(|world| world.behaviours.clear());
    run.edit(|files| drop(files.user.insert("a".into(), "v2".into())));
    run.until_runs("a", "v2").await;
    assert_eq!(opens(&run), before + 1);
}

#[tokio::test(start_paused = true)]
async fn one_convergence_gives_each_admitted_server_one_attempt_and_leaves_nothing_running() {
    let fake = Fake::default();
    fake.world(|world| world.behaviours.insert("b".into(), Behaviour::Fails));
    let mode = Mode::Once { timeout: Duration::from_secs(60) };
    let run = Run::start(user(&[("a", "v1"), ("b", "v1"), ("x", "invalid")]), fake.clone(), mode, 1);
    let outcome = run.task.await.unwrap();
    assert_eq!(outcome.end, End::Settled);
    let states: Vec<_> = outcome.status.servers.iter().map(|s| s.state).collect();
    assert_eq!(states, [ServerState::Connected, ServerState::Waiting, ServerState::Refused]);
    let mut opens = fake.world(|world| world.opens.clone());
    opens.sort();
    assert_eq!(opens, ["a", "b"]);
    assert!(fake.world(|world| world.live.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn one_convergence_ends_when_its_time_is_over() {
    let fake = Fake::default();
    fake.world(|world| world.behaviours.insert("a".into(), Behaviour::Hangs));
    let mode = Mode::Once { timeout: Duration::from_secs(5) };
    let outcome = Run::start(user(&[("a", "v1")]), fake.clone(), mode, 1).task.await.unwrap();
    assert_eq!(outcome.end, End::TimedOut);
    assert!(fake.world(|world| world.live.is_empty()));
}

#[tokio::test(start_paused = true)]
async fn the_second_terminate_ends_it_at_once() {
    let mut run = Run::start(user(&[("a", "v1")]), Fake::default(), Mode::Keep, 1);
    run.until_runs("a", "v1").await;
    run.fake.world(|world| {
        world.in_flight.insert("a".into());
    });
    run.signals.send(Signal::Terminate).await.unwrap();
    run.until(|status| status.servers.iter().any(|s| s.state == ServerState::Draining)).await;
    run.signals.send(Signal::Terminate).await.unwrap();
    assert_eq!(run.task.await.unwrap().end, End::Aborted);
}
