//! Logs: `tracing` events as lines of text or JSON, on stderr or in a file.

use std::{
    fs::File,
    io::{self, IsTerminal},
    sync::Mutex,
};

use thiserror::Error;
use tracing_subscriber::{EnvFilter, filter::ParseError, fmt::MakeWriter, util::TryInitError};

use crate::{cli::LoggingFormat, config::LogConfig};

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

/// Starts the log of this process, on stderr.
///
/// # Errors
/// See [`TelemetryError`].
pub fn init(config: &LogConfig) -> Result<(), TelemetryError> {
    let colours =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    start(config, io::stderr, colours)
}

/// Starts the log of this process, in a file.
///
/// # Errors
/// See [`TelemetryError`].
pub fn init_to(config: &LogConfig, file: File) -> Result<(), TelemetryError> {
    start(config, Mutex::new(file), false)
}

fn start<W>(config: &LogConfig, writer: W, colours: bool) -> Result<(), TelemetryError>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    use tracing_subscriber::{layer::SubscriberExt, util::SubscriberInitExt};

    let registry = tracing_subscriber::registry().with(EnvFilter::try_new(&config.filter)?);
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colours);
    match config.format {
        LoggingFormat::Text => registry.with(layer).try_init()?,
        LoggingFormat::Json => registry.with(layer.json().flatten_event(true)).try_init()?,
    }
    Ok(())
}
