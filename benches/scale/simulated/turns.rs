//! How long the daemon's one thread goes on without looking at what has come, by the kernel's tracepoints, where `perf` may
//! read them.
//!
//! A task that has much to do lets others have their turn, so this is the longest turn, with at most some 60 short ones of
//! other tasks. By the clock time in which the thread had no core counts, too, be it that another process had it or that it waited
//! for a lock, so the time in which it had one is told beside it.

use std::{
    collections::BTreeSet,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use test_support::process::temporary_folder;
use tokio::time::sleep;

const ENTER: &str = "syscalls:sys_enter_epoll_wait";
const EXIT: &str = "syscalls:sys_exit_epoll_wait";

/// How long `perf` takes to begin, of which it says nothing.
const BEGINS: Duration = Duration::from_millis(500);

/// Watches the main thread of a process until it is read.
pub struct Turns {
    perf: Child,
    data: PathBuf,
}

impl Turns {
    /// Begins. `None` where `perf` does not start.
    pub async fn start(process: u32) -> Option<Self> {
        let data = temporary_folder("turns").join("perf.data");
        let mut command = Command::new("perf");
        command.args(["record", "-q", "-e", ENTER, "-e", EXIT, "--switch-events"]);
        command.args(["-t", &process.to_string(), "-o"]).arg(&data);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let perf = command.spawn().ok()?;
        sleep(BEGINS).await;
        Some(Self { perf, data })
    }

    /// The longest, the longest first: by the clock, and how much of it the thread had a core.
    pub fn longest(mut self, count: usize) -> Vec<(Duration, Duration)> {
        let interrupted = Command::new("kill").arg("-INT").arg(self.perf.id().to_string()).status();
        let ended = self.perf.wait();
        let mut script = Command::new("perf");
        script.args(["script", "-F", "time,event", "--show-switch-events", "-i"]).arg(&self.data);
        let (Ok(_), Ok(_), Ok(output)) = (interrupted, ended, script.output()) else { return Vec::new() };
        longest(&String::from_utf8_lossy(&output.stdout), count)
    }
}

/// The longest turns of a script of `perf`.
fn longest(script: &str, count: usize) -> Vec<(Duration, Duration)> {
    let mut began: Option<Duration> = None;
    let (mut on, mut ran) = (Duration::ZERO, Duration::ZERO);
    let mut turns: BTreeSet<(Duration, Duration)> = BTreeSet::new();
    for line in script.lines() {
        let Some((time, event)) = line.trim().split_once(':') else { continue };
        let Ok(seconds) = time.trim().parse::<f64>() else { continue };
        let now = Duration::from_secs_f64(seconds);
        if event.contains("sys_exit") {
            (began, on, ran) = (Some(now), now, Duration::ZERO);
        } else if event.contains("SWITCH OUT") {
            ran += now.saturating_sub(on);
        } else if event.contains("SWITCH IN") {
            on = now;
        } else if let Some(began) = began.take() {
            turns.insert((now.saturating_sub(began), ran + now.saturating_sub(on)));
            if turns.len() > count {
                turns.pop_first();
            }
        }
    }
    turns.into_iter().rev().collect()
}
