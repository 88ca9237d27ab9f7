//! The report of a simulated cluster: a table in Markdown with a column for each size.

use std::{fmt::Write, time::Duration};

use super::course::{Cost, Outcome};

/// A row: what it is, and how it is read from an outcome.
type Row = (&'static str, fn(&Outcome) -> String);

const ROWS: [Row; 23] = [
    ("first write", |one| seconds(one.first_write.0)),
    ("CPU until then", |one| seconds(one.first_write.1)),
    ("CPU until at rest", |one| seconds(one.start_cpu)),
    ("peak at the start", |one| mebibytes(one.start_peak)),
    ("resting", |one| mebibytes(one.resting)),
    ("resting, for each node", |one| kibibytes(one.resting, one.nodes)),
    ("idle cores", |one| format!("{:.4}", one.idle_cores)),
    ("CPU of a node's heartbeat", |one| cost(one.node_update)),
    ("CPU of a pod's condition", |one| cost(one.pod_update)),
    ("CPU of a bind", |one| cost(one.bind)),
    ("CPU of an attach", |one| cost(one.attach)),
    ("CPU of a detach", |one| cost(one.detach)),
    ("binds, attaches, detaches a second", |one| {
        [one.bind, one.attach, one.detach].map(|of| format!("{:.0}", 1.0 / of.wall.as_secs_f64())).join(", ")
    }),
    ("keys planned for a bind, attach, detach", |one| {
        [one.bind, one.attach, one.detach].map(|of| format!("{:.1}", of.planned)).join(", ")
    }),
    ("longest turns at the start", |one| milliseconds(&one.turns[0])),
    // With a sweep, if that lasts for more than five minutes.
    ("longest turns when idle", |one| milliseconds(&one.turns[1])),
    ("longest turns at work", |one| milliseconds(&one.turns[2])),
    ("`/metrics`", |one| {
        let size = one.metrics.1.map_or_else(|| "it fails".to_owned(), |size| format!("{size} bytes"));
        format!("{:.1} ms, {size}", one.metrics.0.as_secs_f64() * 1e3)
    }),
    ("relist of everything, CPU", |one| format!("{}, {}", seconds(one.relist.0), seconds(one.relist.1))),
    ("peak then", |one| mebibytes(one.relist_peak)),
    ("longest turns then", |one| milliseconds(&one.turns[3])),
    ("standing by", |one| if one.standby == 0 { "-".to_owned() } else { mebibytes(one.standby) }),
    ("take-over, CPU", |one| match one.take_over {
        (Duration::ZERO, _) => "-".to_owned(),
        (wall, cpu) => format!("{}, {}", seconds(wall), seconds(cpu)),
    }),
];

/// Renders everything.
pub fn render(results: &[Outcome]) -> String {
    let mut text = String::new();
    let mut row = |cells: Vec<String>| {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    let of_all = |cell: &dyn Fn(&Outcome) -> String| results.iter().map(cell).collect::<Vec<_>>();
    row([vec!["nodes".to_owned()], of_all(&|one| one.nodes.to_string())].concat());
    row(vec!["---".to_owned(); results.len() + 1]);
    for (what, cell) in ROWS {
        row([vec![what.to_owned()], of_all(&cell)].concat());
    }
    for two in results.windows(2) {
        let more = two[1].resting.saturating_sub(two[0].resting);
        let nodes = two[1].nodes.saturating_sub(two[0].nodes);
        row(vec![format!("for each further node from {}", two[0].nodes), kibibytes(more, nodes)]);
    }
    for one in results {
        let _ = writeln!(text, "\nRequests with {} nodes until at rest:\n{}", one.nodes, one.requests);
        text.push_str(&super::super::report::asked(one.nodes, &one.asked));
    }
    text
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// By the clock, and in brackets with a core.
fn milliseconds(times: &[(Duration, Duration)]) -> String {
    let each = times.iter().map(|times| [times.0, times.1].map(|time| time.as_secs_f64() * 1e3));
    let each: Vec<String> = each.map(|[clock, core]| format!("{clock:.0} ({core:.0})")).collect();
    if each.is_empty() { "-".to_owned() } else { format!("{} ms", each.join(", ")) }
}

fn cost(of: Cost) -> String {
    format!("{:.3} ms", of.cpu.as_secs_f64() * 1e3)
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.0} MiB", bytes as f64 / 1024.0 / 1024.0)
}

fn kibibytes(bytes: u64, of: usize) -> String {
    format!("{:.1} KiB", bytes as f64 / 1024.0 / of.max(1) as f64)
}
