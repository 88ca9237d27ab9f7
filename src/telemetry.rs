//! Logs: `tracing` events as lines of text or JSON on stderr.

use std::io::{self, IsTerminal};

use thiserror::Error;
use tracing_subscriber::{EnvFilter, filter::ParseError, util::TryInitError};

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

/// Starts the log of this process.
///
/// # Errors
/// See [`TelemetryError`].
pub fn init(config: &LogConfig) -> Result<(), TelemetryError> {
    use tracing_subscriber::{layer::SubscriberExt, util::SubscriberInitExt};

    let registry = tracing_subscriber::registry().with(EnvFilter::try_new(&config.filter)?);
    match config.format {
        LoggingFormat::Text => {
            let colours = io::stderr().is_terminal()
                && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
            let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(colours);
            registry.with(layer).try_init()?;
        }
        LoggingFormat::Json => {
            let layer = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(io::stderr);
            registry.with(layer).try_init()?;
        }
    }
    Ok(())
}
