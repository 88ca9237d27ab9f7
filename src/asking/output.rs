//! How the commands that ask end: a line, an answer on stdout, an exit code.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use serde::Serialize;

use crate::{
    explain::{read::Unreachable, report::Verdict},
    kube_api::connect::ConnectError,
    terminal::{block_on, complain},
};

/// The command line cannot be followed.
pub const USAGE: u8 = 4;
/// The API server cannot be reached, or does not know who asks.
pub const UNREACHABLE: u8 = 5;

/// Least time between two looks while one waits.
pub(super) const PAUSE: Duration = Duration::from_secs(2);
/// Looking is at most one part in so many of the time: a look at all volumes of a large cluster takes seconds.
pub(super) const SHARE: u32 = 5;

/// Why there is no answer: a line, and the exit code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Stop(pub u8, pub String);

impl From<ConnectError> for Stop {
    fn from(error: ConnectError) -> Self {
        let code = if matches!(error, ConnectError::Refused { .. }) { USAGE } else { UNREACHABLE };
        Self(code, error.to_string())
    }
}

impl From<Unreachable> for Stop {
    fn from(error: Unreachable) -> Self {
        match error {
            Unreachable::Connect(error) => error.into(),
            Unreachable::NoAnswer { .. } | Unreachable::Unauthorized { .. } => {
                Self(UNREACHABLE, error.to_string())
            }
        }
    }
}

/// From an answer to the exit code of its verdict.
pub(super) fn finish(answer: impl Future<Output = Result<Verdict, Stop>>) -> ExitCode {
    match block_on(1, answer) {
        Ok(Ok(verdict)) => ExitCode::from(verdict.exit_code()),
        Ok(Err(Stop(code, line))) => {
            complain(&line);
            ExitCode::from(code)
        }
        Err(error) => {
            complain(&format!("cannot start the runtime: {error}"));
            ExitCode::from(UNREACHABLE)
        }
    }
}

/// Of lists that take long a line is worth it where one looks on.
pub(super) fn progress(line: &str) {
    if io::stderr().is_terminal() {
        complain(line);
    }
}

fn unprintable(error: &dyn std::error::Error) -> Stop {
    Stop(UNREACHABLE, format!("the answer cannot be printed: {error}"))
}

pub(super) fn json(answer: &impl Serialize) -> Result<String, Stop> {
    Ok(serde_json::to_string_pretty(answer).map_err(|error| unprintable(&error))? + "\n")
}

pub(super) fn yaml(answer: &impl Serialize) -> Result<String, Stop> {
    serde_saphyr::to_string(answer).map_err(|error| unprintable(&error))
}

/// Whether there is still someone to print for.
pub(super) fn print(form: &str) -> bool {
    let mut stdout = io::stdout().lock();
    stdout.write_all(form.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}
