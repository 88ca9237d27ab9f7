//! The report: the conditions, one line each, then the table, then who used the machine meanwhile.

use std::{collections::BTreeSet, fmt::Write, time::Duration};

use super::{Options, bout::Measured, cost, phases::Outcome, subject::Kind, traffic::Bytes};

/// Under what conditions this was measured.
#[derive(Debug)]
pub struct Conditions {
    pub kubernetes: String,
    cores: usize,
    load_average: String,
    parameters: String,
}

impl Conditions {
    /// As they are before anything is started.
    pub fn now(options: &Options) -> Self {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Self {
            kubernetes: String::new(),
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            load_average: load.split_whitespace().take(3).collect::<Vec<_>>().join(" "),
            parameters: if options.is_at_rest() {
                format!("a cluster at rest for {} s", options.idle_for)
            } else {
                format!(
                    "{} nodes, {} volumes together, {} one at a time, {} after their claims",
                    options.nodes, options.volumes, options.one_at_a_time, options.late_volumes
                )
            },
        }
    }
}

/// Renders everything.
pub fn render(conditions: &Conditions, results: &[Outcome]) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<12} {value}");
    };
    line("parameters", &conditions.parameters);
    line("versions", &format!("mooring {}, Kubernetes {}", env!("CARGO_PKG_VERSION"), conditions.kubernetes));
    line(
        "machine",
        &format!(
            "{} cores, shared by subject, API server, etcd and stand-ins; load average before: {}",
            conditions.cores, conditions.load_average
        ),
    );
    line(
        "attacher",
        "answers at once: per attach a finalizer patch and a status patch, per detach a finalizer patch",
    );
    line(
        "together",
        "the subject is paused, all work is created, go; latencies count from go to the watch event",
    );
    line(
        "as they come",
        "work is created while the subject is at it; rate from the first request, latencies from each answer",
    );
    line("one by one", "latency from the API server's answer to our request to the watch event");
    line(
        "bound",
        "the claim's phase; attached: listed in the node's volumesAttached; detached: no VolumeAttachment",
    );
    line(
        "ratio",
        "of rates where all is there at once, of medians (inverted) one at a time; above 1 mooring beats KCM",
    );
    line("instr/op", "instructions of the subject in user mode, which the machine's speed does not change");
    line(
        "floor",
        "the writes of each operation alone and the event of an attach, nothing searched and nothing decided; one patch per node; its CPU is in the stand-ins'",
    );
    line(
        "elected",
        "in the term of a leader, in which most writes wait until the API server asks for the body (100 Continue)",
    );
    line("watching", "beside all watches that mooring has, read and discarded");
    line(
        "watch events",
        "on all watches: those of the stand-ins, which are the same for each subject, and those of the subject",
    );
    line(
        "others",
        "whoever else ran on the machine; all CPU: subject, API server, etcd and stand-ins, whatever others did",
    );
    text.push('\n');
    if results.iter().any(|result| !result.phases.is_empty()) {
        text.push_str(&aligned(&main_table(results), &[0, 1]));
        text.push('\n');
        text.push_str(&aligned(&cost_table(results), &[0, 1, 13]));
        text.push('\n');
        text.push_str(&aligned(&cluster_table(results), &[0, 1]));
        text.push('\n');
    }
    text.push_str(&aligned(&idle_table(results), &[0, 1, 2, 7]));
    text.push('\n');
    text.push_str(&aligned(&request_table(results), &[0, 1, 2]));
    text
}

fn main_table(results: &[Outcome]) -> Vec<Vec<String>> {
    let mut rows = vec![cells([
        "phase",
        "subject",
        "per s",
        "ratio",
        "of floor",
        "p50 ms",
        "p99 ms",
        "CPU ms/op",
        "instr/op",
        "peak RSS MiB",
    ])];
    for (phase, measured) in by_phase(results) {
        let other = |wanted| measured.iter().find(|(kind, _)| *kind == wanted);
        let (stock, floor) = (other(Kind::Kcm), other(Kind::Floor));
        for (number, (kind, one)) in measured.iter().enumerate() {
            let beside = |other: Option<&(Kind, &Measured)>, is_asked: bool| {
                let other = other.filter(|_| is_asked);
                other.map_or_else(|| "-".to_owned(), |(_, other)| format!("{:.2}", ratio(one, other)))
            };
            rows.push(vec![
                if number == 0 { phase.to_owned() } else { String::new() },
                kind.name().to_owned(),
                if one.together { format!("{:.0}", rate(one)) } else { "-".to_owned() },
                beside(stock, !kind.is_floor() && *kind != Kind::Kcm),
                beside(floor, *kind != Kind::Floor && *kind != Kind::Kcm),
                milliseconds(percentile(&one.latencies, 50)),
                milliseconds(percentile(&one.latencies, 99)),
                format!("{:.2}", per_operation(one, one.cpu.subject)),
                one.instructions.map_or_else(|| "-".to_owned(), |count| thousands(count, one)),
                format!("{:.0}", one.peak_memory as f64 / 1024.0 / 1024.0),
            ]);
        }
    }
    rows
}

/// What an operation costs the cluster. The CPU time is that until the last sighting, the rest until all is quiet.
fn cluster_table(results: &[Outcome]) -> Vec<Vec<String>> {
    let mut rows = vec![cells([
        "cost to the cluster",
        "subject",
        "API server ms/op",
        "etcd ms/op",
        "requests/op",
        "watch events/op",
        "KiB sent/op",
        "KiB received/op",
    ])];
    for (phase, measured) in by_phase(results) {
        for (number, (kind, one)) in measured.iter().filter(|(_, one)| one.together).enumerate() {
            let each = |all: u64| all as f64 / one.latencies.len().max(1) as f64;
            let kibibytes = |of: fn(&Bytes) -> u64| {
                one.bytes
                    .as_ref()
                    .map_or_else(|| "-".to_owned(), |bytes| format!("{:.2}", each(of(bytes)) / 1024.0))
            };
            rows.push(vec![
                if number == 0 { phase.to_owned() } else { String::new() },
                kind.name().to_owned(),
                format!("{:.2}", per_operation(one, one.cpu.api_server)),
                format!("{:.2}", per_operation(one, one.cpu.etcd)),
                format!("{:.2}", each(one.requests.count(|_, _| true))),
                format!("{:.2}", each(one.requests.watch_events())),
                kibibytes(|bytes| bytes.sent),
                kibibytes(|bytes| bytes.received),
            ]);
        }
    }
    rows
}

/// Who used the machine, and how many requests an operation cost. The bench's own requests are
/// made before "go" where all is there at once; one at a time they would be counted, so that is
/// left out.
fn cost_table(results: &[Outcome]) -> Vec<Vec<String>> {
    let mut rows = vec![cells([
        "cores used by",
        "subject",
        "subject",
        "API server",
        "etcd",
        "stand-ins",
        "others",
        "all CPU ms/op",
        "writes/op",
        "events/op",
        "reads/op",
        "tail s",
        "tail CPU ms/op",
        "slow watches",
    ])];
    for (phase, measured) in by_phase(results) {
        for (number, (kind, one)) in measured.iter().filter(|(_, one)| one.together).enumerate() {
            let count = one.latencies.len().max(1) as f64;
            let cores = |used: Duration| format!("{:.2}", used.as_secs_f64() / one.wall.as_secs_f64());
            let requests = |of: &dyn Fn(&str, &str) -> bool| {
                format!("{:.2}", one.requests.count(|verb, resource| of(verb, resource)) as f64 / count)
            };
            rows.push(vec![
                if number == 0 { phase.to_owned() } else { String::new() },
                kind.name().to_owned(),
                cores(one.cpu.subject),
                cores(one.cpu.api_server),
                cores(one.cpu.etcd),
                cores(one.cpu.bench),
                cores(one.cpu.others),
                format!("{:.2}", per_operation(one, one.cpu.total())),
                requests(&|verb, resource| cost::writes(verb) && resource != "events"),
                requests(&|verb, resource| cost::writes(verb) && resource == "events"),
                requests(&|verb, _| !cost::writes(verb)),
                format!("{:.1}", one.tail.wall.as_secs_f64()),
                format!("{:.2}", per_operation(one, one.tail.cpu)),
                one.requests.slow_watches(),
            ]);
        }
    }
    rows
}

fn idle_table(results: &[Outcome]) -> Vec<Vec<String>> {
    let mut rows =
        vec![cells(["idle", "subject", "with", "cores", "peak RSS MiB", "requests", "requests/s", "which"])];
    for (result, idle) in results.iter().filter_map(|result| Some((result, result.idle.as_ref()?))) {
        let seconds = idle.wall.as_secs_f64();
        rows.push(vec![
            format!("{seconds:.0} s"),
            result.kind.name().to_owned(),
            idle.with.clone(),
            format!("{:.4}", idle.cpu.as_secs_f64() / seconds),
            format!("{:.0}", idle.peak_memory as f64 / 1024.0 / 1024.0),
            idle.requests.count(|_, _| true).to_string(),
            format!("{:.1}", idle.requests.count(|_, _| true) as f64 / seconds),
            idle.requests.list(),
        ]);
    }
    rows
}

/// Every request of a phase where all was there at once or came by itself. As it comes, those include the
/// bench's own, one per operation.
fn request_table(results: &[Outcome]) -> Vec<Vec<String>> {
    let mut subjects: Vec<Kind> = Vec::new();
    for result in results {
        if !subjects.contains(&result.kind) {
            subjects.push(result.kind);
        }
    }
    let mut rows = vec![cells(["requests", "verb", "resource"])];
    rows[0].extend(subjects.iter().map(|kind| kind.name().to_owned()));
    for (phase, measured) in by_phase(results) {
        let measured: Vec<_> = measured.into_iter().filter(|(_, one)| one.together).collect();
        let which = measured.iter().flat_map(|(_, one)| one.requests.each().map(|(which, _)| which));
        let which: BTreeSet<&(String, String)> = which.collect();
        for (number, (verb, resource)) in which.into_iter().enumerate() {
            let phase = if number == 0 { phase } else { "" };
            let mut row = cells([phase, verb, resource]);
            row.extend(subjects.iter().map(|kind| {
                let of = measured.iter().find(|(other, _)| other == kind);
                let count = |one: &Measured| one.requests.count(|v, r| v == verb && r == resource);
                of.map_or_else(|| "-".to_owned(), |(_, one)| count(one).to_string())
            }));
            rows.push(row);
        }
    }
    rows
}

/// The same phase of every subject, side by side.
fn by_phase(results: &[Outcome]) -> Vec<(&'static str, Vec<(Kind, &Measured)>)> {
    let mut phases: Vec<(&'static str, Vec<(Kind, &Measured)>)> = Vec::new();
    for (result, one) in results.iter().flat_map(|result| result.phases.iter().map(move |one| (result, one)))
    {
        match phases.iter_mut().find(|(phase, _)| *phase == one.phase) {
            Some((_, measured)) => measured.push((result.kind, one)),
            None => phases.push((one.phase, vec![(result.kind, one)])),
        }
    }
    phases
}

pub fn rate(measured: &Measured) -> f64 {
    measured.latencies.len() as f64 / measured.wall.as_secs_f64()
}

fn ratio(one: &Measured, other: &Measured) -> f64 {
    if one.together {
        return rate(one) / rate(other);
    }
    percentile(&other.latencies, 50).as_secs_f64() / percentile(&one.latencies, 50).as_secs_f64()
}

/// Nearest rank.
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

pub fn per_operation(measured: &Measured, cpu: Duration) -> f64 {
    cpu.as_secs_f64() * 1e3 / measured.latencies.len().max(1) as f64
}

fn thousands(count: u64, measured: &Measured) -> String {
    format!("{:.0}k", count as f64 / 1e3 / measured.latencies.len().max(1) as f64)
}

fn milliseconds(duration: Duration) -> String {
    let milliseconds = duration.as_secs_f64() * 1e3;
    if milliseconds < 100.0 { format!("{milliseconds:.1}") } else { format!("{milliseconds:.0}") }
}

fn cells<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).into()
}

/// Columns as wide as their widest cell: numbers to the right, texts to the left.
pub fn aligned(rows: &[Vec<String>], texts: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or_default()
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let gap = if column == 0 { "" } else { "  " };
            let left = texts.contains(&column);
            let _ =
                if left { write!(line, "{gap}{cell:<width$}") } else { write!(line, "{gap}{cell:>width$}") };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}
