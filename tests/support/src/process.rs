//! Child processes that never outlive the test, and their output.
//!
//! Dropping a [`Process`] kills its process. If the test process itself is killed, no destructor runs: a
//! watchdog (a shell that reads from a pipe of ours) then reaches the end of the pipe, kills the remaining
//! processes by their ids, and removes the temporary folder. That needs neither `unsafe` nor a feature of
//! one kernel.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, OnceLock},
    thread,
};

use tokio::sync::watch;

/// Signals are ignored because an interrupt goes to the whole process group, and the watchdog is the
/// one who cleans up after it.
const WATCHDOG: &str = r#"
trap '' HUP INT TERM
pids=
while read -r order pid; do
  case $order in
    watch) pids="$pids $pid" ;;
    forget)
      left=
      for other in $pids; do [ "$other" = "$pid" ] || left="$left $other"; done
      pids=$left ;;
  esac
done
for pid in $pids; do kill -9 "$pid" 2>/dev/null; done
rm -rf "$1"
"#;

struct Watchdog {
    /// Never waited for: it outlives us, by as long as cleaning up takes.
    _shell: Child,
    orders: Mutex<ChildStdin>,
    folder: PathBuf,
}

/// The watchdog, started when it is first needed.
fn watchdog() -> &'static Watchdog {
    static STARTED: OnceLock<Watchdog> = OnceLock::new();
    STARTED.get_or_init(|| {
        let folder = std::env::temp_dir().join(format!("mooring-test-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("create the temporary folder");
        let mut shell = Command::new("sh")
            .arg("-c")
            .arg(WATCHDOG)
            .arg("watchdog")
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("start the watchdog shell");
        let orders = Mutex::new(shell.stdin.take().expect("the watchdog's pipe"));
        Watchdog { _shell: shell, orders, folder }
    })
}

fn order(text: &str, pid: u32) {
    let mut orders = watchdog().orders.lock().unwrap();
    writeln!(orders, "{text} {pid}").expect("the watchdog listens");
}

/// A folder of this test process, removed at its end.
pub fn temporary_folder(name: &str) -> PathBuf {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let folder = watchdog().folder.join(format!("{name}-{count}"));
    std::fs::create_dir_all(&folder).expect("create a temporary folder");
    folder
}

/// A running child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: Log,
}

impl Process {
    /// Starts a program; its output is collected.
    pub fn start(name: &str, program: &Path, arguments: &[String], environment: &[(&str, String)]) -> Self {
        let mut command = Command::new(program);
        command.args(arguments).envs(environment.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
        order("watch", child.id());
        let log = Log::default();
        log.follow(child.stdout.take().expect("stdout is piped"));
        log.follow(child.stderr.take().expect("stderr is piped"));
        Self { name: name.to_owned(), child, log }
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has said so far.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Whether it still runs.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Kills it at once (SIGKILL) and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        self.reap();
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    pub async fn terminate(&mut self) -> ExitStatus {
        let status = Command::new("kill").arg(self.id().to_string()).status().expect("run kill");
        assert!(status.success(), "{} is no longer there to be asked to end", self.name);
        self.ended().await
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        self.log.closed().await;
        self.reap()
    }

    fn reap(&mut self) -> ExitStatus {
        let status = self.child.wait().expect("wait for the child");
        order("forget", self.child.id());
        status
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.is_running() {
            self.kill();
        } else {
            order("forget", self.child.id());
        }
    }
}

/// Where a logger of this process writes, a whole line at a time.
#[derive(Debug)]
pub struct LogWriter(Log);

impl std::io::Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lines.lock().unwrap().push(String::from_utf8_lossy(bytes).trim_end().to_owned());
        self.0.state.send_modify(|(count, _)| *count += 1);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The lines that a process has written.
#[derive(Clone, Debug)]
pub struct Log {
    lines: Arc<Mutex<Vec<String>>>,
    /// Number of lines, and of streams that are still open.
    state: Arc<watch::Sender<(usize, usize)>>,
}

impl Default for Log {
    fn default() -> Self {
        Self { lines: Arc::default(), state: Arc::new(watch::Sender::new((0, 0))) }
    }
}

impl Log {
    /// Takes lines from this process.
    pub fn writer(&self) -> LogWriter {
        LogWriter(self.clone())
    }

    fn follow(&self, stream: impl Read + Send + 'static) {
        let log = self.clone();
        log.state.send_modify(|(_, open)| *open += 1);
        thread::spawn(move || {
            for line in BufReader::new(stream).lines() {
                let Ok(line) = line else { break };
                log.lines.lock().unwrap().push(line);
                log.state.send_modify(|(count, _)| *count += 1);
            }
            log.state.send_modify(|(_, open)| *open -= 1);
        });
    }

    /// Whether the process says nothing any more: it has ended.
    pub fn is_closed(&self) -> bool {
        self.state.borrow().1 == 0
    }

    async fn closed(&self) {
        let mut state = self.state.subscribe();
        state.wait_for(|(_, open)| *open == 0).await.expect("the log outlives its readers");
    }

    /// The lines so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    /// Waits for a line that the function makes something of; `None` when the process ended first.
    pub async fn find<T>(&self, parse: impl Fn(&str) -> Option<T>) -> Option<T> {
        let mut state = self.state.subscribe();
        let mut read = 0;
        loop {
            let (_, open) = *state.borrow_and_update();
            {
                let lines = self.lines.lock().unwrap();
                if let Some(found) = lines[read..].iter().find_map(|line| parse(line)) {
                    return Some(found);
                }
                read = lines.len();
            }
            if open == 0 {
                return None;
            }
            state.changed().await.ok()?;
        }
    }

    /// How many lines say this.
    pub fn count(&self, text: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|line| line.contains(text)).count()
    }

    /// The last lines, for a report.
    pub fn tail(&self, count: usize) -> String {
        let lines = self.lines.lock().unwrap();
        lines[lines.len().saturating_sub(count)..].join("\n")
    }
}
