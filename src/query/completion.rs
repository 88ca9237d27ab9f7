//! Completion: for shells, from the definition of the flags; and for kubectl, with names of objects that there are. And the
//! manual, from the same definition.
//!
//! In: a shell, or the words typed so far. Out: a script, or candidates in the form that kubectl wants of
//! `kubectl_complete-mooring` (Cobra's: one a line, then a line with a number). The user who types is never kept waiting, and never
//! told of errors: then there are no candidates.

mod words;

use std::{
    ffi::OsString,
    fs,
    io::{self, Write},
    path::Path,
    process::ExitCode,
    sync::mpsc,
    thread,
    time::Duration,
};

use apiserver::connect::ApiServer;
use clap::CommandFactory;
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use http::header::ACCEPT;
use kube::client::Body;
use serde_json::Value;

use self::words::{CompletedWords, Wanted, asked};
use crate::{
    cli::{Cli, query::ConnectionArgs},
    explain::{read::exchange, subject::is_name},
    terminal::{block_on, failure},
};

/// The file name under which kubectl asks for completions of the plugin `kubectl-mooring`.
pub const COMPLETER: &str = "kubectl_complete-mooring";

/// A person who has pressed a key does not wait longer.
const COMPLETION_PATIENCE: Duration = Duration::from_secs(1);
/// More names than this are no help.
const MOST_COMPLETIONS: usize = 500;

/// What the shell is to do with the candidates, as Cobra counts it.
#[derive(Clone, Copy)]
enum Directive {
    /// ShellCompDirectiveDefault: without candidates, files.
    Files = 0,
    /// ShellCompDirectiveNoFileComp.
    NoFiles = 4,
    /// The same and ShellCompDirectiveNoSpace: the word goes on.
    NoFilesNoSpace = 6,
}

/// Where the objects of each kind are listed; of one namespace, or of none.
const LISTS: [(&str, &str); 7] = [
    ("node", "/api/v1/nodes"),
    ("pod", "/api/v1/namespaces/{}/pods"),
    ("pv", "/api/v1/persistentvolumes"),
    ("pvc", "/api/v1/namespaces/{}/persistentvolumeclaims"),
    ("sc", "/apis/storage.k8s.io/v1/storageclasses"),
    ("va", "/apis/storage.k8s.io/v1/volumeattachments"),
    ("vac", "/apis/storage.k8s.io/v1/volumeattributesclasses"),
];

/// Prints the completion script of a shell.
#[must_use]
pub fn script(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "mooring", &mut script);
    // A closed pipe is no failure.
    let _ = io::stdout().write_all(&script);
    ExitCode::SUCCESS
}

/// Prints the manual as a page for each command, or writes the pages into a folder.
#[must_use]
pub fn manual(folder: Option<&Path>) -> ExitCode {
    let written = match folder {
        Some(folder) => {
            fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        }
        None => pages().map(|pages| {
            // A closed pipe is no failure.
            let _ = io::stdout().write_all(&pages);
        }),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&format!("the manual cannot be written: {error}")),
    }
}

/// All pages, the program's own first.
fn pages() -> io::Result<Vec<u8>> {
    let mut program = Cli::command();
    program.build();
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set());
    let mut pages = Vec::new();
    for command in std::iter::once(&program).chain(commands) {
        Man::new(command.clone()).render(&mut pages)?;
    }
    Ok(pages)
}

/// Answers kubectl: what may stand in place of the last word.
#[must_use]
pub fn complete(words: &[OsString]) -> ExitCode {
    let words: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or_default()).collect();
    let mut program = Cli::command();
    program.build();
    let CompletedWords { wanted, begun, connection } = asked(&words, &program);
    let (found, directive) = match wanted {
        Wanted::Words(found) => {
            let goes_on = !found.is_empty() && found.iter().all(|word| word.ends_with('/'));
            (found, if goes_on { Directive::NoFilesNoSpace } else { Directive::NoFiles })
        }
        Wanted::Names { kind, head } => {
            let names = listed(connection, kind).into_iter().map(|name| format!("{head}{name}"));
            (names.collect(), Directive::NoFiles)
        }
        Wanted::Namespaces => (listed(connection, "namespace"), Directive::NoFiles),
        Wanted::Files => (Vec::new(), Directive::Files),
    };
    let mut lines = String::new();
    for candidate in found.iter().filter(|candidate| candidate.starts_with(&begun)) {
        lines.push_str(candidate);
        lines.push('\n');
    }
    let _ = writeln!(io::stdout(), "{lines}:{}", directive as u8);
    ExitCode::SUCCESS
}

/// Names of objects, by the user's rights; none if they cannot be had soon.
fn listed(connection: ConnectionArgs, kind: &'static str) -> Vec<String> {
    let (found, told) = mpsc::channel();
    // A program that the kubeconfig names for credentials is waited for by its thread, which ends with the process.
    thread::spawn(move || {
        let names = block_on(1, names(&connection, kind)).ok().flatten();
        let _ = found.send(names);
    });
    told.recv_timeout(COMPLETION_PATIENCE).ok().flatten().unwrap_or_default()
}

async fn names(connection: &ConnectionArgs, kind: &str) -> Option<Vec<String>> {
    let api = ApiServer::choose(&connection.choice).await.ok()?;
    let namespace = connection.namespace.as_deref().unwrap_or_else(|| api.default_namespace());
    let path = match kind {
        "namespace" => "/api/v1/namespaces".to_owned(),
        kind => LISTS.iter().find(|(known, _)| *known == kind)?.1.replace("{}", namespace),
    };
    if !is_name(namespace) {
        return None;
    }
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
    let request = http::Request::get(format!("{path}?limit={MOST_COMPLETIONS}")).header(ACCEPT, accept);
    let (_, body) = exchange(&api.client().ok()?, request.body(Body::empty()).ok()?).await.ok()?;
    let list: Value = serde_json::from_slice(&body).ok()?;
    let names =
        list.get("items")?.as_array()?.iter().filter_map(|item| item.pointer("/metadata/name")?.as_str());
    Some(names.filter(|name| is_name(name)).map(str::to_owned).collect())
}
