//! The commands that ask, from their arguments to their exit code.
//!
//! In: [`ExplainArgs`]. Out: an answer on stdout, what is worth a line beside it on stderr, and the exit code of the
//! verdict. Only [`repair`] writes to the cluster, and only what it was told to.

mod called;
pub mod completion;
mod connection;
mod daemon;
mod output;
pub mod questions;
pub mod repair;
mod serve;

use std::{
    env,
    io::{self, IsTerminal},
    process::ExitCode,
};

use rustix::termios::tcgetwinsize;
use tokio::time::{Instant, sleep};

use self::{
    called::Called,
    connection::Connection,
    daemon::{Daemon, stand_without},
    output::{PAUSE, SHARE, Stop, finish, json, print, yaml},
};
pub use self::{output::USAGE, serve::Page};
use crate::{
    cli::asking::{ExplainArgs, OutputForm},
    explain::{
        assumptions::Assumptions,
        explain,
        report::{Explanation, Verdict},
        subject::Subject,
        text::{Style, dot, text},
    },
};

/// Columns where no one says how many there are.
const WIDTH: usize = 80;
/// `mooring explain`, to its end.
#[must_use]
pub fn run(args: &ExplainArgs) -> ExitCode {
    match args.serve {
        Some(port) => finish(serve::serve(args, port)),
        None => finish(answer(args)),
    }
}

async fn answer(args: &ExplainArgs) -> Result<Verdict, Stop> {
    let words: Vec<&str> = args.subject.iter().map(String::as_str).collect();
    let usage = |line| Stop(USAGE, line);
    // Before a server is looked for: the words may be wrong without one.
    Subject::parse(&words, "").map_err(usage)?;
    let mut connection = Connection::new(&args.connection).await?;
    let subject = Subject::parse(&words, &connection.namespace).map_err(usage)?;
    let daemon = match &args.daemon {
        Some(url) => Some(Daemon::find(&connection.api, url, args.daemon_ca.as_deref()).await),
        None => None,
    };

    let until = args.wait.flatten().map(|time| Instant::now() + time);
    let mut printed = String::new();
    loop {
        let started = Instant::now();
        let reading = connection.read(&subject).await?;
        let took = started.elapsed();
        let mut explanation = explain(&reading.snapshot, &subject, &Assumptions::default());
        match &daemon {
            Some(Ok(daemon)) => daemon.add(&mut explanation, &reading.snapshot).await,
            Some(Err(why)) => stand_without(&mut explanation, why),
            None => {}
        }
        let is_last = match (args.watch, args.wait) {
            (true, _) => false,
            (false, None) => true,
            (false, Some(_)) => {
                explanation.verdict == Verdict::Healthy || until.is_some_and(|until| Instant::now() >= until)
            }
        };
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
