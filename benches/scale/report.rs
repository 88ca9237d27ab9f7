//! The report: a table in Markdown, a line for each subject and size, and what was written at the start.

use std::{fmt::Write, time::Duration};

use super::{
    asking::Asked,
    bout::Measured,
    cost,
    course::{Outcome, PerUpdate},
    subject::Kind,
};

const COLUMNS: [&str; 20] = [
    "nodes",
    "subject",
    "first write s",
    "CPU s until then",
    "CPU s until at rest",
    "peak MiB",
    "resting MiB",
    "peak at work MiB",
    "peak after relists MiB",
    "CPU s of those",
    "idle cores",
    "CPU ms/node update",
    "CPU ms/node update, only read",
    "CPU ms/pod update",
    "bind",
    "attach",
    "detach",
    "single attach p50 ms",
    "p99 ms",
    "bare node patch p50 ms",
];

/// Renders everything.
pub fn render(results: &[Outcome]) -> String {
    let mut text =
        String::from("Of bind, attach and detach: per s, CPU ms per operation, 1 000 instructions.\n\n");
    let mut row = |cells: Vec<String>| {
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    row(COLUMNS.iter().map(ToString::to_string).collect());
    row(COLUMNS.iter().map(|_| "---".to_owned()).collect());
    for one in results {
        row(cells(one));
    }
    for one in results {
        let writes = one.start_requests.count(|verb, _| cost::writes(verb));
        let _ = writeln!(
            text,
            "\n{} with {} nodes, until at rest after the start: {writes} writes; {}",
            one.kind.name(),
            one.nodes,
            one.start_requests.list()
        );
    }
    for one in results {
        let is_two = |two: &&Outcome| two.kind == Kind::Mooring && two.nodes == one.nodes;
        if let (Kind::MooringStorage, Some(two)) = (one.kind, results.iter().find(is_two)) {
            let more = |of: fn(&Outcome) -> u64| (of(one) as f64 / of(two) as f64 - 1.0) * 1e2;
            let _ = writeln!(
                text,
                "\nPeak memory with {} nodes, seven controllers beside two: {:+.1} % at the start, {:+.1} % at work, \
                 {:+.1} % after relists",
                one.nodes,
                more(|one| one.start_peak),
                more(|one| one.work_peak),
                more(|one| one.relist_peak),
            );
        }
    }
    for one in results {
        text.push_str(&asked(one.nodes, &one.asked));
    }
    text
}

/// A table of questions, if any were asked.
pub fn asked(nodes: usize, all: &[Asked]) -> String {
    let mut text = String::new();
    if all.is_empty() {
        return text;
    }
    let _ = writeln!(text, "\nAsked with {nodes} nodes:\n");
    text.push_str("| question | s | CPU s | peak MiB | exit code | first line |\n");
    text.push_str("| --- | --- | --- | --- | --- | --- |\n");
    for asked in all {
        let _ = writeln!(
            text,
            "| `{}` | {:.2} | {:.2} | {} | {} | {} |",
            asked.question,
            asked.wall.as_secs_f64(),
            asked.cpu.as_secs_f64(),
            mebibytes(asked.peak),
            asked.code.map_or_else(String::new, |code| code.to_string()),
            asked.first_line,
        );
    }
    text
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.0}", bytes as f64 / 1024.0 / 1024.0)
}

fn cells(one: &Outcome) -> Vec<String> {
    let milliseconds = |latencies: &[Duration], percent: usize| {
        let rank = (latencies.len() * percent).div_ceil(100).saturating_sub(1);
        format!("{:.1}", latencies.get(rank).copied().unwrap_or_default().as_secs_f64() * 1e3)
    };
    vec![
        one.nodes.to_string(),
        one.kind.name().to_owned(),
        format!("{:.1}", one.first_write.0.as_secs_f64()),
        format!("{:.1}", one.first_write.1.as_secs_f64()),
        format!("{:.1}", one.start_cpu.as_secs_f64()),
        mebibytes(one.start_peak),
        mebibytes(one.resting),
        mebibytes(one.work_peak),
        mebibytes(one.relist_peak),
        format!("{:.1}", one.relist_cpu.as_secs_f64()),
        format!("{:.4}", one.idle_cores),
        update(one.node_update),
        update(one.bare_update),
        update(one.pod_update),
        operation(&one.bind),
        operation(&one.attach),
        operation(&one.detach),
        milliseconds(&one.single_attach.latencies, 50),
        milliseconds(&one.single_attach.latencies, 99),
        milliseconds(&one.bare_patches, 50),
    ]
}

fn update(one: PerUpdate) -> String {
    let instructions = one.instructions.map_or_else(String::new, |count| format!(" ({}k)", count / 1_000));
    format!("{:.3}{instructions}", one.cpu.as_secs_f64() * 1e3)
}

fn operation(one: &Measured) -> String {
    let count = one.latencies.len().max(1) as f64;
    let rate = count / one.wall.as_secs_f64();
    let cpu = one.cpu.subject.as_secs_f64() * 1e3 / count;
    let instructions = one
        .instructions
        .map_or_else(|| "-".to_owned(), |counted| format!("{:.0}k", counted as f64 / 1e3 / count));
    format!("{rate:.0}/s, {cpu:.2} ms, {instructions}")
}
