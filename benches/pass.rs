//! What one pass costs that changes nothing: resolve and plan, pure, by number of servers.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use mcp_reconciler::controller::admit::Own;
use mcp_reconciler::controller::connector::DisconnectReason;
use mcp_reconciler::controller::plan::plan;
use mcp_reconciler::controller::resolve::{Desired, resolve};
use mcp_reconciler::controller::snapshot::{LayerReading, Reading, Readings, Snapshot, Watching};
use mcp_reconciler::controller::table::Table;
use mcp_reconciler::model::{Moment, Root, Scope};
use mcp_reconciler::sources::entry::Surroundings;
use mcp_reconciler::sources::expand::Variables;
use mcp_reconciler::sources::{json, settings};

fn text(servers: usize) -> String {
    let mut text = "{\"mcpServers\":{".to_owned();
    for n in 0..servers {
        let comma = if n > 0 { "," } else { "" };
        write!(text, "{comma}\"s{n}\":{{\"command\":\"node\",\"args\":[\"server.js\",\"{n}\"],\"env\":{{\"A\":\"$A\"}}}}")
            .expect("a String takes everything");
    }
    text + "}}"
}

fn snapshot(text: &str) -> Snapshot {
    let (root, variables) = (Root::new("/".as_ref(), "/w".as_ref()), Variables::default());
    let path = Path::new("/s.json");
    let around = Surroundings { path, scope: Scope::User, root: &root, home: None, variables: &variables };
    let layer = settings::layer(&json::parse(text).expect("JSON"), around).expect("settings");
    let reading = Reading::Good(Arc::new(layer));
    let layers =
        vec![LayerReading { scope: Scope::User, rank: 0, path: path.into(), explicit: false, reading }];
    let readings = Readings {
        layers,
        approvals: ("/a".into(), Reading::Absent),
        trust: ("/t".into(), Reading::Absent),
        watching: Watching { active: true, message: String::new() },
    };
    Snapshot::advance(None, readings, Moment::START)
}

fn passes(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pass");
    for servers in [10, 100, 1000, 5000] {
        let text = text(servers);
        let snapshot = snapshot(&text);
        let own = Own::default();
        let desired = resolve(&snapshot, None, &own, &Desired::default());
        let mut table = Table::default();
        for (name, wanted) in &desired.servers {
            let admitted = wanted.admitted().expect("admitted");
            table.open(name, admitted.fingerprint(), admitted.spec().startup_timeout, Moment::START);
            table.opened(name, Moment::START);
        }
        group.bench_with_input(BenchmarkId::new("read_text", servers), &servers, |b, _| {
            b.iter(|| self::snapshot(&text))
        });
        group.bench_with_input(BenchmarkId::new("resolve_and_plan", servers), &servers, |b, _| {
            b.iter(|| {
                let desired = resolve(&snapshot, None, &own, &desired);
                let plan = plan(&desired, &table, DisconnectReason::Removed, Moment::START);
                assert!(plan.actions.is_empty());
            });
        });
    }
    group.finish();
}

criterion_group!(benches, passes);
criterion_main!(benches);
