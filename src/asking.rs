//! The commands that ask, from their arguments to their exit code.
//!
//! In: [`ExplainArgs`]. Out: an answer on stdout, what is worth a line beside it on stderr, and the exit code of the
//! verdict. Only [`repair`] writes to the cluster, and only what it was told to.

mod called;
pub mod completion;
mod daemon;
pub mod questions;
pub mod repair;
mod serve;

use std::{
    env,
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

use rustix::termios::tcgetwinsize;
use serde::Serialize;
use tokio::time::{Instant, sleep};

pub use self::serve::Page;
use self::{
    called::Called,
    daemon::{Daemon, stand_without},
};
use crate::{
    cli::asking::{ExplainArgs, OutputForm},
    explain::{
        assumptions::Assumptions,
        explain,
        read::{Reader, Unreachable},
        report::{Explanation, Verdict},
        subject::Subject,
        text::{Style, dot, text},
    },
    kube_api::connect::{ApiServer, ConnectError},
    program::{block_on, complain},
};

/// The command line cannot be followed.
pub const USAGE: u8 = 4;
/// The API server cannot be reached, or does not know who asks.
pub const UNREACHABLE: u8 = 5;

/// Columns where no one says how many there are.
const WIDTH: usize = 80;
/// Least time between two looks while one waits.
const PAUSE: Duration = Duration::from_secs(2);
/// Looking is at most one part in so many of the time: a look at all volumes of a large cluster takes seconds.
const SHARE: u32 = 5;

/// Why there is no answer: a line, and the exit code.
#[derive(Debug, PartialEq, Eq)]
struct Stop(u8, String);

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

/// `mooring explain`, to its end.
#[must_use]
pub fn run(args: &ExplainArgs) -> ExitCode {
    match args.serve {
        Some(port) => finish(serve::serve(args, port)),
        None => finish(answer(args)),
    }
}

/// From an answer to the exit code of its verdict.
fn finish(answer: impl Future<Output = Result<Verdict, Stop>>) -> ExitCode {
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

async fn answer(args: &ExplainArgs) -> Result<Verdict, Stop> {
    let connection = &args.connection;
    let words: Vec<&str> = args.subject.iter().map(String::as_str).collect();
    let usage = |line| Stop(USAGE, line);
    // Before a server is looked for: the words may be wrong without one.
    Subject::parse(&words, "").map_err(usage)?;
    let api = ApiServer::choose(&connection.choice()).await?;
    let namespace = connection.namespace.as_deref().unwrap_or_else(|| api.default_namespace());
    let subject = Subject::parse(&words, namespace).map_err(usage)?;
    let reader = Reader::new(&api, connection.patience())?;
    let daemon = match &args.daemon {
        Some(url) => Some(Daemon::find(&api, url, args.daemon_ca.as_deref()).await),
        None => None,
    };

    let until = args.wait.flatten().map(|time| Instant::now() + time);
    let mut printed = String::new();
    let mut told = 0;
    loop {
        let started = Instant::now();
        let reading = reader.read(&subject, &progress).await?;
        let took = started.elapsed();
        let mut explanation = explain(&reading.snapshot, &subject, &Assumptions::default());
        match &daemon {
            Some(Ok(daemon)) => daemon.add(&mut explanation, &reading.snapshot).await,
            Some(Err(why)) => stand_without(&mut explanation, why),
            None => {}
        }
        let notes = reading.server.notes();
        let is_last = match (args.watch, args.wait) {
            (true, _) => false,
            (false, None) => true,
            (false, Some(_)) => {
                explanation.verdict == Verdict::Healthy || until.is_some_and(|until| Instant::now() >= until)
            }
        };
        if notes.len() > told {
            for note in &notes {
                complain(note);
            }
            told = notes.len();
        }
        if is_last || args.watch {
            let form = form(&explanation, args)?;
            if form != printed && !print(&form) {
                // A closed pipe (`-w | head`) is an orderly end.
                return Ok(explanation.verdict);
            }
            printed = form;
        }
        if is_last {
            return Ok(explanation.verdict);
        }
        let pause = PAUSE.max(took * SHARE);
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        sleep(left.map_or(pause, |left| pause.min(left))).await;
    }
}

/// Of lists that take long a line is worth it where one looks on.
fn progress(line: &str) {
    if io::stderr().is_terminal() {
        complain(line);
    }
}

fn form(explanation: &Explanation, args: &ExplainArgs) -> Result<String, Stop> {
    match args.output {
        OutputForm::Text | OutputForm::Wide => {
            Ok(text(&Called::here().explanation(explanation.clone()), style(args)))
        }
        OutputForm::Json => json(explanation),
        OutputForm::Yaml => yaml(explanation),
        OutputForm::Dot => Ok(dot(explanation)),
    }
}

fn unprintable(error: &dyn std::error::Error) -> Stop {
    Stop(UNREACHABLE, format!("the answer cannot be printed: {error}"))
}

fn json(answer: &impl Serialize) -> Result<String, Stop> {
    Ok(serde_json::to_string_pretty(answer).map_err(|error| unprintable(&error))? + "\n")
}

fn yaml(answer: &impl Serialize) -> Result<String, Stop> {
    serde_saphyr::to_string(answer).map_err(|error| unprintable(&error))
}

/// How text is printed here.
fn style(args: &ExplainArgs) -> Style {
    let is_terminal = io::stdout().is_terminal();
    let asks_for_none = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
    let columns = tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col)).filter(|it| *it > 0);
    Style {
        color: is_terminal && !args.no_color && !asks_for_none && !is_dumb,
        ascii: args.ascii,
        utc: args.utc,
        wide: args.output == OutputForm::Wide,
        width: columns.unwrap_or(WIDTH).max(WIDTH),
    }
}

/// Whether there is still someone to print for.
fn print(form: &str) -> bool {
    let mut stdout = io::stdout().lock();
    stdout.write_all(form.as_bytes()).and_then(|()| stdout.flush()).is_ok()
}
