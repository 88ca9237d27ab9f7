//! The commands that query a cluster, from their arguments to their exit code.
//!
//! In: the arguments of `explain`, `doctor`, `node`, `whatif`, `repair`, `preflight`, `switch`. Out: an answer on stdout, what is worth a line beside it on
//! stderr, and the exit code of the verdict. Only [`repair`] and [`switch`] write to the cluster, and only what they were told to.

pub(crate) mod completion;
mod connection;
mod daemon;
pub(crate) mod observe;
mod output;
pub(crate) mod preflight;
pub(crate) mod repair;
mod serve;
pub(crate) mod switch;

use std::{
    fmt::Display,
    io::{self, Read},
    path::Path,
    time::Duration,
};

use self::{
    connection::Connection,
    daemon::{DaemonClient, stand_without},
    output::{Looks, print, printed, unreachable},
};
pub use self::{
    output::{QueryStop, USAGE, finish},
    serve::page_source,
};
use apiserver::ids::NodeName;

use crate::{
    cli::query::{
        ExplainArgs,
        questions::{DoctorArgs, NodeArgs, WhatIfArgs, node_name},
    },
    explain::{
        doctor as find, drain::drain, explain as answer, read::Question, report::Verdict, subject,
        whatif as consequences,
    },
};

/// Most of a manifest, in bytes: more than an API server takes.
const LARGEST_MANIFEST: u64 = 4 << 20;

/// `mooring explain`, to its end.
///
/// # Errors
/// There is no answer.
pub async fn explain(args: &ExplainArgs) -> Result<Verdict, QueryStop> {
    if let Some(port) = args.serve {
        return serve::serve(args, port).await;
    }
    let words: Vec<&str> = args.subject.iter().map(String::as_str).collect();
    let usage = |line| QueryStop(USAGE, line);
    // Before a server is looked for: the words may be wrong without one.
    subject::parse(&words, "").map_err(usage)?;
    let connection = Connection::new(&args.view.connection).await?;
    let subject = subject::parse(&words, &connection.namespace).map_err(usage)?;
    let question = Question::Object(subject.clone());
    let daemon = args.daemon.as_deref().zip(args.daemon_ca.as_deref());
    let daemon = daemon.map(|(url, file)| DaemonClient::new(&connection.api, url, file));
    let wait = args.wait.map(|most| most.unwrap_or(Duration::MAX));
    let mut looks = Looks::new(args.watch, wait);
    loop {
        let snapshot = connection.reader.read(&question).await.map_err(unreachable)?;
        let mut explanation = answer(&snapshot, &subject);
        match &daemon {
            Some(Ok(daemon)) => daemon.add(&mut explanation).await,
            Some(Err(why)) => stand_without(&mut explanation, &why.to_string()),
            None => {}
        }
        if !looks.again(&explanation, printed(&explanation, &args.view)?, explanation.verdict).await {
            return Ok(explanation.verdict);
        }
    }
}

/// `mooring doctor`, to its end.
///
/// # Errors
/// There is no answer.
pub async fn doctor(args: &DoctorArgs) -> Result<Verdict, QueryStop> {
    let connection = Connection::new(&args.view.connection).await?;
    let of = args.view.connection.namespace.as_deref();
    let question = Question::Cluster(connection.namespace.clone());
    let mut looks = Looks::new(args.watch, None);
    loop {
        let snapshot = connection.reader.read(&question).await.map_err(unreachable)?;
        let findings = find::doctor(&snapshot, of);
        if !looks.again(&findings, printed(&findings, &args.view)?, findings.verdict).await {
            return Ok(findings.verdict);
        }
    }
}

/// `mooring node`, to its end.
///
/// # Errors
/// There is no answer.
pub async fn node(args: &NodeArgs) -> Result<Verdict, QueryStop> {
    let name: NodeName = node_name(&args.node).map_err(|line| QueryStop(USAGE, line))?;
    let connection = Connection::new(&args.view.connection).await?;
    let question = Question::Drain(name.clone());
    let (mut looks, mut earlier) = (Looks::new(args.watch, None), None);
    loop {
        let snapshot = connection.reader.read(&question).await.map_err(unreachable)?;
        let mut view = drain(&snapshot, &name, earlier.as_ref());
        view.is_drained = args.drain;
        if args.drain && !view.volumes.is_empty() {
            // What is as it should be on a node that stays is waited for on one that is to go.
            view.verdict = view.verdict.max(Verdict::Waiting);
        }
        if !looks.again(&view, printed(&view, &args.view)?, view.verdict).await {
            return Ok(view.verdict);
        }
        earlier = Some(snapshot);
    }
}

/// `mooring whatif`, to its end.
///
/// # Errors
/// There is no answer.
pub async fn whatif(args: &WhatIfArgs) -> Result<Verdict, QueryStop> {
    let usage = |line| QueryStop(USAGE, line);
    // Before a server is looked for: the words may be wrong without one.
    let manifest = args.filename.as_deref().map(manifest).transpose().map_err(usage)?;
    args.asked("", manifest.clone()).map_err(usage)?;
    let connection = Connection::new(&args.view.connection).await?;
    let change = args.asked(&connection.namespace, manifest).map_err(usage)?;
    let snapshot = connection.reader.read(&Question::Change(change.clone())).await.map_err(unreachable)?;
    let found = consequences::whatif(&snapshot, &change);
    print(&printed(&found, &args.view)?);
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
