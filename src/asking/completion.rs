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

use clap::CommandFactory;
use clap_complete::{Shell, generate};
use clap_mangen::Man;
use http::header::ACCEPT;
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use serde_json::Value;

use self::words::{Asked, Wanted, asked};
use crate::{
    cli::Cli,
    explain::subject::is_name,
    kube_api::connect::{ApiServer, Choice},
    terminal::{block_on, failure},
};

/// The file name under which kubectl asks for completions of the plugin `kubectl-mooring`.
pub const COMPLETER: &str = "kubectl_complete-mooring";

/// A person who has pressed a key does not wait longer.
const PATIENCE: Duration = Duration::from_secs(1);
/// More names than this are no help.
const MOST: usize = 500;
/// Most of an answer, in bytes.
const LARGEST: usize = 8 << 20;

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
const LISTS: [(&str, &str); 6] = [
    ("node", "/api/v1/nodes"),
    ("pod", "/api/v1/namespaces/{}/pods"),
    ("pv", "/api/v1/persistentvolumes"),
    ("pvc", "/api/v1/namespaces/{}/persistentvolumeclaims"),
    ("sc", "/apis/storage.k8s.io/v1/storageclasses"),
    ("va", "/apis/storage.k8s.io/v1/volumeattachments"),
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
    let asked = asked(&words, &program);
    let (found, directive) = match &asked.wanted {
        Wanted::Words(found) => {
            let goes_on = !found.is_empty() && found.iter().all(|word| word.ends_with('/'));
            let directive = if goes_on { Directive::NoFilesNoSpace } else { Directive::NoFiles };
            (found.clone(), directive)
        }
        Wanted::Names { kind, head } => {
            let names = listed(&asked, kind).into_iter().map(|name| format!("{head}{name}"));
            (names.collect(), Directive::NoFiles)
        }
        Wanted::Namespaces => (listed(&asked, "namespace"), Directive::NoFiles),
        Wanted::Files => (Vec::new(), Directive::Files),
    };
    let mut lines = String::new();
    for candidate in found.iter().filter(|candidate| candidate.starts_with(&asked.begun)) {
        lines.push_str(candidate);
        lines.push('\n');
    }
    let _ = writeln!(io::stdout(), "{lines}:{}", directive as u8);
    ExitCode::SUCCESS
}

/// Names of objects, by the user's rights; none if they cannot be had soon.
fn listed(asked: &Asked, kind: &'static str) -> Vec<String> {
    let (asked, (found, told)) = (asked.clone(), mpsc::channel());
    // A program that the kubeconfig names for credentials is waited for by its thread, which ends with the process.
    thread::spawn(move || {
        let names = block_on(1, names(&asked, kind)).ok().flatten();
        let _ = found.send(names);
    });
    told.recv_timeout(PATIENCE).ok().flatten().unwrap_or_default()
}

async fn names(asked: &Asked, kind: &str) -> Option<Vec<String>> {
    let api = ApiServer::choose(&choice(asked)).await.ok()?;
    let namespace = asked.flag("namespace").unwrap_or_else(|| api.default_namespace());
    let path = match kind {
        "namespace" => "/api/v1/namespaces".to_owned(),
        kind => LISTS.iter().find(|(known, _)| *known == kind)?.1.replace("{}", namespace),
    };
    if !is_name(namespace) {
        return None;
    }
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
    let request = http::Request::get(format!("{path}?limit={MOST}")).header(ACCEPT, accept);
    let answer = api.client().ok()?.send(request.body(Body::empty()).ok()?).await.ok()?;
    let body = Limited::new(answer.into_body(), LARGEST).collect().await.ok()?.to_bytes();
    let list: Value = serde_json::from_slice(&body).ok()?;
    let names =
        list.get("items")?.as_array()?.iter().filter_map(|item| item.pointer("/metadata/name")?.as_str());
    Some(names.filter(|name| is_name(name)).map(str::to_owned).collect())
}

/// Which API server, and as whom, as the command itself would be told.
fn choice(asked: &Asked) -> Choice {
    let owned = |id| asked.flag(id).map(str::to_owned);
    Choice {
        kubeconfig: asked.flag("kubeconfig").map(Into::into),
        context: owned("context"),
        cluster: owned("cluster"),
        user: owned("user"),
        server: owned("server"),
        certificate_authority: asked.flag("certificate_authority").map(Into::into),
        tls_server_name: owned("tls_server_name"),
        token: owned("token"),
        client_certificate: asked.flag("client_certificate").map(Into::into),
        client_key: asked.flag("client_key").map(Into::into),
        impersonated: owned("impersonated"),
        impersonated_uid: owned("impersonated_uid"),
        impersonated_groups: asked.flags.get("impersonated_groups").cloned().unwrap_or_default(),
        skips_verification: asked.flags.contains_key("insecure_skip_tls_verify"),
    }
}
