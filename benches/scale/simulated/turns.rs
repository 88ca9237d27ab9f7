//! How long the daemon's one thread goes on without looking at what has come, by the kernel's tracepoints, where `perf` may
//! read them.
//!
//! A task that has much to do lets others have their turn, so this is the longest turn, with at most some 60 short ones of
//! other tasks. Time in which another process had the core counts, too.

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
        command.args(["record", "-q", "-e", ENTER, "-e", EXIT, "-t", &process.to_string(), "-o"]).arg(&data);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let perf = command.spawn().ok()?;
        sleep(BEGINS).await;
        Some(Self { perf, data })
    }

    /// The longest, the longest first.
    pub fn longest(mut self, count: usize) -> Vec<Duration> {
        let interrupted = Command::new("kill").arg("-INT").arg(self.perf.id().to_string()).status();
        let ended = self.perf.wait();
        let script = Command::new("perf").args(["script", "-F", "time,event", "-i"]).arg(&self.data).output();
        let (Ok(_), Ok(_), Ok(output)) = (interrupted, ended, script) else { return Vec::new() };
        let mut back: Option<Duration> = None;
        let mut turns: BTreeSet<Duration> = BTreeSet::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Some((time, event)) = line.trim().split_once(':') else { continue };
            let Ok(seconds) = time.trim().parse::<f64>() else { continue };
            let now = Duration::from_secs_f64(seconds);
            if event.contains("sys_exit") {
                back = Some(now);
            } else if let Some(back) = back.take() {
                turns.insert(now.saturating_sub(back));
                if turns.len() > count {
                    turns.pop_first();
                }
            }
        }
        turns.into_iter().rev().collect()
    }
}
