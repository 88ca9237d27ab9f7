//! Instructions of a process, counted by `perf stat` where there is one: unlike CPU time they do not depend
//! on how fast the machine happens to be, nor on who else has been through its caches.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use tokio::time::sleep;

/// In user mode, where a subject's own work is done.
const EVENT: &str = "instructions:u";

/// How long `perf` takes to begin, of which it says nothing.
const BEGINS: Duration = Duration::from_millis(300);

/// Counts until it is read.
pub struct Counter(Child);

impl Counter {
    /// Starts to count for a process. `None` where `perf` does not start.
    pub async fn start(process: u32) -> Option<Self> {
        let mut command = Command::new("perf");
        command.args(["stat", "-x,", "-e", EVENT, "-p", &process.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let counter = command.spawn().ok().map(Self)?;
        sleep(BEGINS).await;
        Some(counter)
    }

    /// What was counted.
    pub fn read(self) -> Option<u64> {
        // It prints when it is interrupted.
        let interrupted = Command::new("kill").arg("-INT").arg(self.0.id().to_string()).status().ok()?;
        let output = self.0.wait_with_output().ok().filter(|_| interrupted.success())?;
        let text = String::from_utf8_lossy(&output.stderr);
        text.lines().find(|line| line.contains(EVENT))?.split(',').next()?.parse().ok()
    }
}
