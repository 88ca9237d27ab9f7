//! How the commands end, and how they look again: a line, an answer on stdout, an exit code.

use std::{
    env,
    fmt::Display,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use apiserver::connect::ConnectError;
use rustix::termios::tcgetwinsize;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{
    cli::{
        PLUGIN, is_called,
        query::{OutputForm, ViewArgs},
    },
    explain::{
        report::Verdict,
        sheet::{
            Printed, clean,
            text::{Style, text},
        },
    },
    terminal::{block_on, complain},
};

/// The command line cannot be followed.
pub const USAGE: u8 = 4;
/// The API server cannot be reached, or does not know who asks.
pub const UNREACHABLE: u8 = 5;

/// Columns where no one says how many there are.
const WIDTH: usize = 80;
/// Least time between two looks while one waits.
const WATCH_PAUSE: Duration = Duration::from_secs(2);
/// Looking is at most one part in so many of the time: a look at all volumes of a large cluster takes seconds.
const SHARE: u32 = 5;

/// Why there is no answer: the exit code, and a line.
#[derive(Debug, PartialEq, Eq)]
pub struct QueryStop(pub(super) u8, pub(super) String);

impl From<ConnectError> for QueryStop {
    fn from(error: ConnectError) -> Self {
        let code = if matches!(error, ConnectError::Refused { .. }) { USAGE } else { UNREACHABLE };
        Self(code, error.to_string())
    }
}

/// An API server that does not answer.
pub(super) fn unreachable(why: impl Display) -> QueryStop {
    QueryStop(UNREACHABLE, why.to_string())
}

/// From an answer to the exit code of its verdict.
pub fn finish(answer: impl Future<Output = Result<Verdict, QueryStop>>) -> ExitCode {
    match block_on(1, answer) {
        Ok(Ok(verdict)) => ExitCode::from(verdict.exit_code()),
        Ok(Err(QueryStop(code, line))) => {
            complain(&clean(&line));
            ExitCode::from(code)
        }
        Err(error) => {
            complain(&format!("cannot start the runtime: {error}"));
            ExitCode::from(UNREACHABLE)
        }
    }
}

/// An answer in the form that was asked for.
pub(super) fn printed<T: Printed + Serialize>(answer: &T, view: &ViewArgs) -> Result<String, QueryStop> {
    form(answer, view.output, || text(answer, style(view)))
}

/// The same of one whose text is made apart.
pub(super) fn form(
    answer: &impl Serialize,
    form: OutputForm,
    text: impl FnOnce() -> String,
) -> Result<String, QueryStop> {
    let unprintable = |error: &dyn std::error::Error| {
        QueryStop(UNREACHABLE, format!("the answer cannot be printed: {error}"))
    };
    match form {
        OutputForm::Json => {
            Ok(serde_json::to_string_pretty(answer).map_err(|error| unprintable(&error))? + "\n")
        }
        OutputForm::Yaml => serde_saphyr::to_string(answer).map_err(|error| unprintable(&error)),
        OutputForm::Text | OutputForm::Wide => Ok(text()),
    }
}

/// Lines without what steers a terminal: a server may say anything.
pub(super) fn clean_lines(text: &str) -> String {
    text.lines().map(|line| clean(line) + "\n").collect()
}

/// How text is printed here.
pub(super) fn style(view: &ViewArgs) -> Style {
    let is_terminal = io::stdout().is_terminal();
    let asks_for_none = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
    let columns = tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|it| *it > 0);
    Style {
        color: is_terminal && !view.no_color && !asks_for_none && !is_dumb,
        ascii: view.ascii,
        utc: view.utc,
        wide: view.output == OutputForm::Wide,
        width: columns.unwrap_or(WIDTH).max(WIDTH),
        program: program(),
    }
}

/// The name under which a person called the program, so that the commands of an answer can be typed again: to kubectl, it is a
/// plugin.
pub(super) fn program() -> &'static str {
    if is_called(env::args_os().next().as_ref(), PLUGIN) { "kubectl mooring" } else { "mooring" }
}

/// Looks that follow each other: one alone; or without end, to print what has changed; or until all is well, or a time is over, and
/// then the last answer is printed.
pub(super) struct Looks {
    watch: bool,
    /// How long at most.
    wait: Option<Duration>,
    printed: Value,
    first: Instant,
    latest: Instant,
}

impl Looks {
    pub(super) fn new(watch: bool, wait: Option<Duration>) -> Self {
        let now = Instant::now();
        Self { watch, wait, printed: Value::Null, first: now, latest: now }
    }

    /// Prints what is new. Whether to look again, once it is time to.
    pub(super) async fn again(&mut self, answer: &impl Serialize, form: String, verdict: Verdict) -> bool {
        // Ages are no news, nor is when it was looked at.
        let mut content = serde_json::to_value(answer).unwrap_or_default();
        content.as_object_mut().map(|fields| fields.remove("observed"));
        let left = self.wait.map(|most| most.saturating_sub(self.first.elapsed()));
        let is_over = verdict == Verdict::Healthy || left.is_some_and(|left| left.is_zero());
        let is_last = if self.wait.is_some() { is_over } else { !self.watch };
        let is_shown = is_last || self.wait.is_none();
        // A closed pipe (`-w | head`) is an orderly end.
        let is_open = !is_shown || content == self.printed || print(&form);
        if is_last || !is_open {
            return false;
        }
        self.printed = content;
        let pause = WATCH_PAUSE.max(self.latest.elapsed() * SHARE);
        sleep(left.map_or(pause, |left| pause.min(left))).await;
        self.latest = Instant::now();
        true
    }
}

/// Whether there is still someone to print for.
pub(super) fn print(form: &str) -> bool {
    let mut stdout = io::stdout().lock();
    stdout.write_all(form.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}
