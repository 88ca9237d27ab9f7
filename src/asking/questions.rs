//! `mooring doctor`, `node` and `whatif`, from their arguments to an answer on stdout.
//!
//! In: their arguments. Out: the answer in the form that was asked for, and its verdict. Nothing is written to the cluster.

use std::{
    fmt::Display,
    io::{self, Read},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{
    called::Called,
    connection::Connection,
    output::{PAUSE, SHARE, Stop, USAGE, finish, json, print, yaml},
};
use crate::{
    cli::asking::questions::{Asked, DoctorArgs, NodeArgs, PlainForm, ViewArgs, WhatIfArgs, node_name},
    explain::{
        assumptions::Assumptions,
        doctor::{self, Findings},
        drain::drain,
        read::Question,
        report::Verdict,
        text::{clean, plain},
        whatif::{self, Change, Consequences},
    },
    kube_api::ids::NodeName,
};

/// Most of a manifest, in bytes: more than an API server takes.
const LARGEST_MANIFEST: u64 = 4 << 20;

/// `mooring doctor`, to its end.
#[must_use]
pub fn doctor(args: &DoctorArgs) -> ExitCode {
    finish(examine(args))
}

/// `mooring node`, to its end.
#[must_use]
pub fn node(args: &NodeArgs) -> ExitCode {
    finish(look_at(args))
}

/// `mooring whatif`, to its end.
#[must_use]
pub fn whatif(args: &WhatIfArgs) -> ExitCode {
    finish(try_out(args))
}

async fn examine(args: &DoctorArgs) -> Result<Verdict, Stop> {
    let mut connection = Connection::new(&args.view.connection).await?;
    let of = args.view.connection.namespace.clone();
    let question = Question::Cluster(connection.namespace.clone());
    let mut printed = String::new();
    loop {
        let started = Instant::now();
        let reading = connection.look(&question).await?;
        let findings: Findings = doctor::doctor(&reading.snapshot, &Assumptions::default(), of.as_deref());
        let named = Called::here().findings(findings.clone());
        let text = if named.findings.is_empty() && named.unchecked.is_empty() {
            format!("Nothing is blocked, waits or is at risk.\n{named}")
        } else {
            named.to_string()
        };
        let form = form(&findings, &text, &args.view)?;
        if !again(&mut printed, form, args.watch, started).await {
            return Ok(findings.verdict);
        }
    }
}

async fn look_at(args: &NodeArgs) -> Result<Verdict, Stop> {
    let name: NodeName = node_name(&args.node).map_err(|line| Stop(USAGE, line))?;
    let mut connection = Connection::new(&args.view.connection).await?;
    let question = Question::Drain(name.clone());
    let (mut printed, mut earlier) = (String::new(), None);
    loop {
        let started = Instant::now();
        let reading = connection.look(&question).await?;
        let mut view = drain(&reading.snapshot, &Assumptions::default(), &name, earlier.as_ref());
        if args.drain && !view.volumes.is_empty() {
            // What is as it should be on a node that stays is waited for on one that is to go.
            view.verdict = view.verdict.max(Verdict::Waiting);
        }
        let text = if args.drain { view.to_drain_text() } else { view.to_string() };
        let form = form(&view, &text, &args.view)?;
        if !again(&mut printed, form, args.watch, started).await {
            return Ok(view.verdict);
        }
        earlier = Some(reading.snapshot);
    }
}

async fn try_out(args: &WhatIfArgs) -> Result<Verdict, Stop> {
    let usage = |line| Stop(USAGE, line);
    // Before a server is looked for: the words may be wrong without one.
    let manifest = match args.asked("").map_err(usage)? {
        Asked::Bind(file) => Some(manifest(&file).map_err(usage)?),
        Asked::Change(_) => None,
    };
    let mut connection = Connection::new(&args.view.connection).await?;
    let change = match (manifest, args.asked(&connection.namespace).map_err(usage)?) {
        (Some(manifest), _) => Change::Bind(connection.namespace.clone(), Box::new(manifest)),
        (None, Asked::Change(change)) => change,
        (None, Asked::Bind(_)) => return Err(usage("bind: want -f FILE".to_owned())),
    };
    let reading = connection.look(&Question::Change(change.clone())).await?;
    let found: Consequences = whatif::whatif(&reading.snapshot, &Assumptions::default(), &change);
    let mut named = found.clone();
    named.summary = Called::here().sentence(&named.summary);
    print(&form(&found, &named, &args.view)?);
    Ok(found.verdict)
}

fn manifest(file: &Path) -> Result<serde_json::Value, String> {
    let wrong = |error: &dyn Display| format!("-f {}: {error}", file.display()).replace('\n', " ");
    let mut text = String::new();
    let read = if file == Path::new("-") {
        io::stdin().lock().take(LARGEST_MANIFEST).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(LARGEST_MANIFEST).read_to_string(&mut text))
    };
    read.map_err(|error| wrong(&error))?;
    serde_saphyr::from_str(&text).map_err(|error| wrong(&error))
}

/// Prints what is new. Whether to look again, once it is time to.
async fn again(printed: &mut String, form: String, watches: bool, started: Instant) -> bool {
    // A closed pipe (`-w | head`) is an orderly end.
    if form != *printed && !print(&form) {
        return false;
    }
    *printed = form;
    if watches {
        let pause: Duration = PAUSE.max(started.elapsed() * SHARE);
        sleep(pause).await;
    }
    watches
}

/// An answer in the form that was asked for.
pub(super) fn form(answer: &impl Serialize, text: &impl Display, view: &ViewArgs) -> Result<String, Stop> {
    match view.output {
        PlainForm::Text => Ok(shown(&text.to_string(), view.ascii)),
        PlainForm::Json => json(answer),
        PlainForm::Yaml => yaml(answer),
    }
}

/// Lines without what steers a terminal.
fn shown(text: &str, ascii: bool) -> String {
    let lines: String = text.lines().map(|line| clean(line) + "\n").collect();
    if ascii { plain(&lines) } else { lines }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_strangers_wrote_does_not_steer_the_terminal() {
        assert_eq!(shown("a\u{1b}[2Jb\n  c · d\n", false), "a\u{fffd}[2Jb\n  c · d\n");
        assert_eq!(shown("c · d … é\n", true), "c - d ... ?\n");
    }
}
