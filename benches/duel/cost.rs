//! Who paid: CPU time and memory of processes from `/proc`, requests from the API server's metrics.
//!
//! Both are read before and after a phase; what is reported is the difference.

use std::{collections::BTreeMap, time::Duration};

use kube::Client;

/// Length of the clock tick in which `/proc` counts CPU time: `USER_HZ` is 100 on every
/// architecture, for any clock of the kernel's own.
const TICK: Duration = Duration::from_millis(10);

/// Kinds that a subject reads or writes; requests for others are the API server's own business.
const RESOURCES: [&str; 9] = [
    "csidrivers",
    "csinodes",
    "events",
    "nodes",
    "persistentvolumeclaims",
    "persistentvolumes",
    "pods",
    "storageclasses",
    "volumeattachments",
];

/// The fields of `/proc/<pid>/stat` after the command, which is in parentheses and may hold any
/// character. The first is the state, number 3 in proc(5).
fn stat(process: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// State of a process: `T` when it is stopped by a signal.
pub fn state(process: u32) -> char {
    stat(process).and_then(|fields| fields[0].chars().next()).unwrap_or('X')
}

/// CPU time a process has used, in user and kernel mode.
pub fn cpu(process: u32) -> Duration {
    let Some(fields) = stat(process) else { return Duration::ZERO };
    // Numbers 14 and 15 in proc(5).
    let ticks: u32 = [&fields[11], &fields[12]].iter().filter_map(|field| field.parse::<u32>().ok()).sum();
    TICK * ticks
}

/// CPU time that the whole machine has used, time stolen by its host included.
fn machine() -> Duration {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let total = text.lines().next().unwrap_or_default().split_whitespace().skip(1);
    // user, nice, system, idle, iowait, irq, softirq, steal; the guests after them are in user.
    let busy = total.take(8).enumerate().filter(|(field, _)| !matches!(field, 3 | 4));
    TICK * busy.filter_map(|(_, ticks)| ticks.parse::<u32>().ok()).sum::<u32>()
}

/// Largest resident set of a process so far, in bytes.
pub fn peak_memory(process: u32) -> u64 {
    memory(process, "VmHWM:")
}

/// A line of `/proc/<process>/status` about memory, in bytes.
pub fn memory(process: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or_default() * 1024
}

/// The child of ours that runs a program of this name.
pub fn child(name: &str) -> Option<u32> {
    let own = std::process::id().to_string();
    for entry in std::fs::read_dir("/proc").ok()?.flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let command = std::fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if command.trim() == name && stat(process).is_some_and(|fields| fields[1] == own) {
            return Some(process);
        }
    }
    None
}

/// CPU time of all processes that share the machine with the subject, and of the subject.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu {
    pub subject: Duration,
    pub api_server: Duration,
    pub etcd: Duration,
    /// This process: stand-ins and watches.
    pub bench: Duration,
    /// Other processes of this machine; should be idle.
    pub others: Duration,
}

impl Cpu {
    /// As of now.
    pub fn read(subject: u32, api_server: u32, etcd: u32) -> Self {
        let mut used = Self {
            subject: cpu(subject),
            api_server: cpu(api_server),
            etcd: cpu(etcd),
            bench: cpu(std::process::id()),
            others: Duration::ZERO,
        };
        used.others = machine().saturating_sub(used.total());
        used
    }

    /// All that the work cost, of all processes.
    pub fn total(self) -> Duration {
        self.subject + self.api_server + self.etcd + self.bench
    }

    /// What was used since.
    pub fn since(self, before: Self) -> Self {
        Self {
            subject: self.subject.saturating_sub(before.subject),
            api_server: self.api_server.saturating_sub(before.api_server),
            etcd: self.etcd.saturating_sub(before.etcd),
            bench: self.bench.saturating_sub(before.bench),
            others: self.others.saturating_sub(before.others),
        }
    }
}

/// Requests that the API server has answered, by verb and resource.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    counts: BTreeMap<(String, String), u64>,
    /// Watches that it ended because their reader was too slow, by resource.
    terminated_watches: BTreeMap<String, u64>,
    /// Events that it sent on all watches, those of the stand-ins included.
    watch_events: u64,
}

impl Requests {
    /// As of now.
    pub async fn read(client: &Client) -> Self {
        let request = http::Request::get("/metrics").body(Vec::new()).unwrap();
        let text = client.request_text(request).await.expect("read the API server's metrics");
        let mut requests = Self::default();
        for line in text.lines() {
            let Some((name, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            // The exposition format writes counts as floating point numbers.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let value = value as u64;
            if name.starts_with("apiserver_request_total{") {
                let (verb, resource) = (label(name, "verb"), label(name, "resource"));
                if RESOURCES.contains(&resource) && verb != "WATCH" {
                    let resource = match label(name, "subresource") {
                        "" => resource.to_owned(),
                        part => format!("{resource}/{part}"),
                    };
                    *requests.counts.entry((verb.to_owned(), resource)).or_default() += value;
                }
            } else if name.starts_with("apiserver_watch_events_total{") {
                requests.watch_events += value;
            } else if name.starts_with("apiserver_terminated_watchers_total{") {
                *requests.terminated_watches.entry(label(name, "resource").to_owned()).or_default() += value;
            }
        }
        requests
    }

    /// What was answered since.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            counts: difference(&self.counts, &before.counts),
            terminated_watches: difference(&self.terminated_watches, &before.terminated_watches),
            watch_events: self.watch_events - before.watch_events,
        }
    }

    /// The watches that were ended because their reader was too slow, for a reader.
    pub fn slow_watches(&self) -> String {
        let each = self.terminated_watches.iter().map(|(resource, count)| format!("{resource} {count}"));
        each.collect::<Vec<_>>().join(", ")
    }

    /// Events that were sent on all watches.
    pub fn watch_events(&self) -> u64 {
        self.watch_events
    }

    /// How many, of which resource or of all.
    pub fn count(&self, of: impl Fn(&str, &str) -> bool) -> u64 {
        self.counts.iter().filter(|((verb, resource), _)| of(verb, resource)).map(|(_, count)| count).sum()
    }

    /// Each verb and resource, and how many.
    pub fn each(&self) -> impl Iterator<Item = (&(String, String), &u64)> {
        self.counts.iter()
    }

    /// All of them, for a reader.
    pub fn list(&self) -> String {
        let each = self.counts.iter().map(|((verb, resource), count)| format!("{verb} {resource} {count}"));
        each.collect::<Vec<_>>().join(", ")
    }
}

fn difference<K: Ord + Clone>(now: &BTreeMap<K, u64>, before: &BTreeMap<K, u64>) -> BTreeMap<K, u64> {
    let grown = now.iter().map(|(key, count)| (key, count - before.get(key).copied().unwrap_or_default()));
    grown.filter(|(_, count)| *count > 0).map(|(key, count)| (key.clone(), count)).collect()
}

/// Whether a verb, as the metrics name it, writes.
pub fn writes(verb: &str) -> bool {
    matches!(verb, "POST" | "PUT" | "PATCH" | "APPLY" | "DELETE" | "DELETECOLLECTION")
}

/// The value of a label in a line of the exposition format; none of ours holds an escape.
fn label<'a>(line: &'a str, name: &str) -> &'a str {
    let Some((_, rest)) = line.split_once(&format!("{name}=\"")) else { return "" };
    rest.split('"').next().unwrap_or_default()
}
