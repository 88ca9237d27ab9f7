//! Logs: `tracing` events as lines of text, logfmt or JSON, on stderr or in a file.
//!
//! What goes to stderr goes through a bounded queue to a thread of its own: a pipe that is not read, or a
//! full disk behind it, must not stop the threads that elect, watch and write. Lines that find the queue full
//! are dropped and counted. [`flush`] writes what is left before the process ends.

pub mod filter;
pub mod lines;

use std::{
    fs::File,
    io::{self, IsTerminal},
    sync::{OnceLock, mpsc},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use thiserror::Error;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, filter::ParseError, fmt::MakeWriter, layer::SubscriberExt, reload, util::SubscriberInitExt,
    util::TryInitError,
};

pub use lines::LoggingFormat;

use filter::Switch;
use lines::Lines;

/// Lines that may wait to be written: some 2 MiB, more than a mass move writes before the thread gets to it.
const QUEUED_LINES: usize = 8_192;

/// How long the last lines may take. The thread's own patience is a little shorter.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(1_200);

/// Lines that found the queue full.
static DROPPED: OnceLock<ErrorCounter> = OnceLock::new();

/// Writes what is queued when it is dropped.
static WRITER: Mutex<Option<WorkerGuard>> = Mutex::new(None);

/// Log output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Form of a line.
    pub format: LoggingFormat,
    /// What to log.
    pub filter: String,
}

/// Why there is no log.
#[derive(Debug, Error)]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error("--log-level: {0}")]
    Filter(#[from] ParseError),
    /// Something else already receives this process' log.
    #[error("the log is already set up: {0}")]
    Taken(#[from] TryInitError),
}

/// Starts the log of this process, on stderr, without waiting for who reads it.
///
/// # Errors
/// See [`TelemetryError`].
pub fn init(config: &LogConfig) -> Result<(), TelemetryError> {
    let colours =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (writer, guard) = NonBlockingBuilder::default()
        .thread_name("log")
        .lossy(true)
        .buffered_lines_limit(QUEUED_LINES)
        .finish(io::stderr());
    let dropped = writer.error_counter();
    start(config, writer, colours)?;
    let _ = DROPPED.set(dropped);
    *WRITER.lock() = Some(guard);
    Ok(())
}

/// How many lines were dropped because they came faster than they were taken.
pub fn dropped_lines() -> u64 {
    DROPPED.get().map_or(0, |counter| counter.dropped_lines() as u64)
}

/// Waits until what was logged is written, if it is read: for the end of the process, after which
/// nothing is logged any more.
pub fn flush() {
    // Held meanwhile, so that a second thread that ends the process waits for the first one's lines.
    let mut writer = WRITER.lock();
    let Some(guard) = writer.take() else { return };
    let (done, is_done) = mpsc::channel::<()>();
    // If the lines are not read the guard complains on stdout, which may be as full.
    let flushing = thread::Builder::new().name("log-flush".to_owned()).spawn(move || {
        drop(guard);
        drop(done);
    });
    if flushing.is_ok() {
        let _ = is_done.recv_timeout(FLUSH_TIMEOUT);
    }
}

/// Starts the log of this process, in a file.
///
/// # Errors
/// See [`TelemetryError`].
pub fn init_to(config: &LogConfig, file: File) -> Result<(), TelemetryError> {
    start(config, std::sync::Mutex::new(file), false)
}

fn start<W>(config: &LogConfig, writer: W, colours: bool) -> Result<(), TelemetryError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let (filter, handle) = reload::Layer::new(EnvFilter::try_new(&config.filter)?);
    let lines = Lines::new(config.format, colours, writer);
    tracing_subscriber::registry().with(filter).with(lines).try_init()?;
    Switch::install(handle, &config.filter);
    Ok(())
}
