//! `doctor`, `node`, `whatif` and `repair`, from their arguments to their exit code.
//!
//! In: arguments. Out: an answer on stdout and the exit code of its verdict. `repair --yes` alone writes, and that only what
//! it has printed, each request for the one revision of the one object that it was proven with.

use std::{fs, io::Read as _, process::ExitCode, time::Duration};

use http::header::CONTENT_TYPE;
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::{Asker, PAUSE, SHARE, Stop, UNREACHABLE, USAGE, finish, print, words};
use crate::{
    cli::asking::{AskArgs, DoctorArgs, NodeArgs, OutputForm, RepairArgs, WhatifArgs},
    explain::{
        assumptions::Assumptions,
        doctor::doctor,
        drain::drain,
        explain,
        read::Question,
        repair::{self, Advice},
        report::Verdict,
        whatif::whatif,
    },
    program::complain,
};

/// Between two looks at a node, for the rates at which volumes leave.
const APART: Duration = Duration::from_secs(5);

/// `mooring doctor`, to its end.
#[must_use]
pub fn run_doctor(args: &DoctorArgs) -> ExitCode {
    finish(async {
        let asker = Asker::new(&args.ask.connection).await?;
        let question =
            Question::Cluster(args.ask.connection.namespace.clone().filter(|_| !args.all_namespaces));
        repeat(args.watch, &args.ask, async |_: Option<&()>| {
            let reading = asker.look(&question).await?;
            let found = doctor(&reading.snapshot, &Assumptions::default());
            Ok((form(&found, found.to_string(), &args.ask)?, found.verdict, ()))
        })
        .await
    })
}

/// `mooring node`, to its end.
#[must_use]
pub fn run_node(args: &NodeArgs) -> ExitCode {
    finish(async {
        let name = words::node(&args.name).map_err(|line| Stop(USAGE, line))?;
        let asker = Asker::new(&args.ask.connection).await?;
        let question = Question::Node(name.clone());
        let first = asker.look(&question).await?.snapshot;
        // What leaves a node is seen by looking twice.
        let has_volumes = !drain(&first, &Assumptions::default(), &name, None).volumes.is_empty();
        let mut earlier = None;
        if args.drain && has_volumes && !args.watch {
            asker.say(&format!("looking twice, {} s apart, for the rates", APART.as_secs()));
            sleep(APART).await;
            earlier = Some(first);
        }
        repeat(args.watch, &args.ask, async |before| {
            let reading = asker.look(&question).await?;
            let found = drain(&reading.snapshot, &Assumptions::default(), &name, before.or(earlier.as_ref()));
            let text = if args.drain { found.to_drain_text() } else { found.to_string() };
            Ok((form(&found, text, &args.ask)?, found.verdict, reading.snapshot))
        })
        .await
    })
}

/// `mooring whatif`, to its end.
#[must_use]
pub fn run_whatif(args: &WhatifArgs) -> ExitCode {
    finish(async {
        let split: Vec<&str> = args.change.iter().map(String::as_str).collect();
        let manifest = args.file.as_deref().map(manifest).transpose()?;
        let usage = |line| Stop(USAGE, line);
        // Before a server is looked for: the words may be wrong without one.
        words::change(&split, "default", manifest.clone()).map_err(usage)?;
        let asker = Asker::new(&args.ask.connection).await?;
        let change = words::change(&split, &asker.namespace, manifest).map_err(usage)?;
        let reading = asker.look(&Question::Change(change.clone())).await?;
        let found = whatif(&reading.snapshot, &Assumptions::default(), &change);
        print(&form(&found, found.to_string(), &args.ask)?);
        Ok(found.verdict)
    })
}

/// `mooring repair`, to its end.
#[must_use]
pub fn run_repair(args: &RepairArgs) -> ExitCode {
    finish(async {
        let split: Vec<&str> = args.repair.iter().map(String::as_str).collect();
        let usage = |line| Stop(USAGE, line);
        words::repair(&split, "default", args.for_anyone).map_err(usage)?;
        let asker = Asker::new(&args.ask.connection).await?;
        let what = words::repair(&split, &asker.namespace, args.for_anyone).map_err(usage)?;
        let reading = asker.look(&Question::Repair(what.clone())).await?;
        let found = repair::repair(&reading.snapshot, &Assumptions::default(), &what);
        print(&form(&found, found.to_string(), &args.ask)?);
        if found.requests.is_empty() {
            return Ok(found.verdict);
        }
        if !args.yes {
            asker.say("nothing was sent: --yes sends it");
            return Ok(found.verdict);
        }
        send(&asker, &found).await?;
        let subject = words::subject(&what);
        let after = asker.look(&Question::About(subject.clone())).await?;
        let now = explain(&after.snapshot, &subject, &Assumptions::default());
        complain(&format!("sent; now it is {}: {}", now.reason, now.summary));
        Ok(found.verdict)
    })
}

/// Sends what was proposed, in its order. The first that is refused ends it: what follows was proven with it.
async fn send(asker: &Asker, advice: &Advice) -> Result<(), Stop> {
    let client = asker.api.client()?;
    for (index, write) in advice.requests.iter().enumerate() {
        let unsent = |why: String| {
            let done =
                if index == 0 { "nothing was changed".to_owned() } else { format!("{index} sent before it") };
            Stop(
                Verdict::Blocked.exit_code(),
                format!("{} {}: {why} ({done}): ask again", write.method, write.path),
            )
        };
        let request = write.request().ok_or_else(|| unsent("is not sent by this command".to_owned()))?;
        let body = request.body.map(|body| body.to_string()).unwrap_or_default();
        let patch = http::Request::patch(&request.path).header(CONTENT_TYPE, "application/merge-patch+json");
        let patch = patch.body(Body::from(body.into_bytes())).map_err(|error| unsent(error.to_string()))?;
        let answer = client.send(patch).await.map_err(|error| unsent(format!("no answer: {error}")))?;
        let (parts, body) = answer.into_parts();
        if !parts.status.is_success() {
            let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            let said: Value = serde_json::from_slice(&body).unwrap_or_default();
            let message = said.get("message").and_then(Value::as_str).unwrap_or_default();
            return Err(unsent(format!("{} {message}", parts.status)));
        }
    }
    Ok(())
}

/// Answers once, or again and again, printing what is new; each look has what the one before it has seen.
async fn repeat<T>(
    watches: bool,
    ask: &AskArgs,
    mut look: impl AsyncFnMut(Option<&T>) -> Result<(String, Verdict, T), Stop>,
) -> Result<Verdict, Stop> {
    let mut before: Option<T> = None;
    let mut printed = String::new();
    loop {
        let started = Instant::now();
        let (form, verdict, seen) = look(before.as_ref()).await?;
        before = Some(seen);
        // A closed pipe (`--watch | head`) is an orderly end.
        let is_text = matches!(ask.output, OutputForm::Text | OutputForm::Wide);
        let gap = if is_text && !printed.is_empty() { "\n" } else { "" };
        if form != printed && !print(&format!("{gap}{form}")) || !watches {
            return Ok(verdict);
        }
        printed = form;
        sleep(PAUSE.max(started.elapsed() * SHARE)).await;
    }
}

fn form(value: &impl Serialize, text: String, ask: &AskArgs) -> Result<String, Stop> {
    let unprintable = |error: String| Stop(UNREACHABLE, format!("the answer cannot be printed: {error}"));
    match ask.output {
        OutputForm::Text | OutputForm::Wide if ask.ascii => Ok(ascii(&text)),
        OutputForm::Text | OutputForm::Wide => Ok(text),
        OutputForm::Json => {
            let json = serde_json::to_string_pretty(value).map_err(|error| unprintable(error.to_string()))?;
            Ok(json + "\n")
        }
        OutputForm::Yaml => serde_saphyr::to_string(value).map_err(|error| unprintable(error.to_string())),
        OutputForm::Dot => {
            Err(Stop(USAGE, "-o dot is for explain: a chain is drawn, and no list".to_owned()))
        }
    }
}

fn ascii(text: &str) -> String {
    let plain = |letter: char| match letter {
        '…' => "...".to_owned(),
        '·' | '•' => "-".to_owned(),
        '→' => "->".to_owned(),
        letter if letter.is_ascii() => letter.to_string(),
        _ => "?".to_owned(),
    };
    text.chars().map(plain).collect()
}

/// A manifest from a file, or from stdin.
fn manifest(file: &str) -> Result<Value, Stop> {
    let unreadable = |why: String| Stop(USAGE, format!("{file}: {why}"));
    let mut text = String::new();
    if file == "-" {
        std::io::stdin().read_to_string(&mut text).map_err(|error| unreadable(error.to_string()))?;
    } else {
        text = fs::read_to_string(file).map_err(|error| unreadable(error.to_string()))?;
    }
    serde_saphyr::from_str(&text).map_err(|error| unreadable(error.to_string()))
}
