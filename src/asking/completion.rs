//! Completion: for shells, from the definition of the flags; and for kubectl, with names of objects that there are.
//!
//! In: a shell, or the words typed so far. Out: a script, or candidates in the form that kubectl wants of
//! `kubectl_complete-mooring` (Cobra's: one a line, then a line with a number). Whoever types is never kept waiting, and never
//! told of errors: then there are no candidates.

use std::{
    ffi::OsString,
    io::{self, Write},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use clap::CommandFactory;
use clap_complete::{Shell, generate};
use http::header::ACCEPT;
use http_body_util::{BodyExt, Limited};
use kube::client::Body;
use serde_json::Value;
use tokio::time::timeout;

use crate::{
    cli::{Cli, asking::ASKING},
    kube_api::connect::{ApiServer, Choice},
    program::block_on,
};

/// The file name under which kubectl asks for completions of the plugin `kubectl-mooring`.
pub const COMPLETER: &str = "kubectl_complete-mooring";

/// A person who has pressed a key does not wait longer.
const PATIENCE: Duration = Duration::from_secs(1);
/// More names than this are no help.
const MOST: usize = 500;
/// Most of an answer, in bytes.
const LARGEST: usize = 8 << 20;
/// Cobra's ShellCompDirectiveNoFileComp.
const NO_FILES: &str = ":4";

/// Kinds that `explain` takes, and where their objects are listed; of one namespace, or of none.
const KINDS: [(&str, &str, bool); 6] = [
    ("node", "/api/v1/nodes", false),
    ("pod", "/api/v1/namespaces/{}/pods", true),
    ("pv", "/api/v1/persistentvolumes", false),
    ("pvc", "/api/v1/namespaces/{}/persistentvolumeclaims", true),
    ("sc", "/apis/storage.k8s.io/v1/storageclasses", false),
    ("va", "/apis/storage.k8s.io/v1/volumeattachments", false),
];

/// What there is to complete.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    /// One of these.
    Words(Vec<String>),
    /// A name of this kind; before each stands this.
    Names(&'static str, String),
    /// A namespace.
    Namespaces,
}

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
    let Some(folder) = folder else {
        // A closed pipe is no failure.
        let _ = clap_mangen::Man::new(Cli::command()).render(&mut io::stdout());
        return ExitCode::SUCCESS;
    };
    match clap_mangen::generate_to(Cli::command(), folder) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => crate::program::failure(&format!("the manual cannot be written: {error}")),
    }
}

/// Answers kubectl: what may stand in place of the last word.
#[must_use]
pub fn complete(words: &[OsString]) -> ExitCode {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let begun = words.last().copied().unwrap_or_default();
    let found = match wanted(&words) {
        Wanted::Words(found) => found,
        Wanted::Names(kind, head) => {
            let names = listed(&words, kind);
            names.into_iter().map(|name| format!("{head}{name}")).collect()
        }
        Wanted::Namespaces => listed(&words, "namespace"),
    };
    let mut lines: Vec<&str> = found.iter().map(String::as_str).filter(|it| it.starts_with(begun)).collect();
    lines.extend([NO_FILES, ""]);
    let _ = io::stdout().write_all(lines.join("\n").as_bytes());
    ExitCode::SUCCESS
}

/// What the last of the words is to be.
fn wanted(words: &[&str]) -> Wanted {
    let all = |words: &[&str]| Wanted::Words(words.iter().map(|&word| word.to_owned()).collect());
    let Some((begun, before)) = words.split_last() else { return all(&ASKING) };
    match before.last() {
        Some(&"-n" | &"--namespace") => return Wanted::Namespaces,
        Some(&"-o" | &"--output") => return all(&["text", "wide", "json", "yaml", "dot"]),
        _ => {}
    }
    let plain: Vec<&str> = plain(before);
    let kind_of = |word: &str| KINDS.iter().map(|(kind, ..)| *kind).find(|kind| *kind == word);
    match (plain.as_slice(), begun.split_once('/')) {
        ([], _) => all(&ASKING),
        (["explain"], Some((kind, _))) => match kind_of(kind) {
            Some(known) => Wanted::Names(known, format!("{kind}/")),
            None => all(&[]),
        },
        (["explain"], None) => Wanted::Words(KINDS.iter().map(|(kind, ..)| format!("{kind}/")).collect()),
        (["explain", kind] | ["whatif", "delete", kind], None) => match kind_of(kind) {
            Some(kind) => Wanted::Names(kind, String::new()),
            None => all(&[]),
        },
        (["node"] | ["whatif", "taint" | "delete-node" | "cordon"], _) => {
            Wanted::Names("node", String::new())
        }
        (["whatif"], _) => all(&["bind", "cordon", "delete", "delete-node", "taint"]),
        (["whatif", "delete"], _) => all(&["pod", "pvc"]),
        (["repair"], _) => all(&["free", "relink", "unstick"]),
        (["repair", "free"] | ["repair", "relink", _], _) => Wanted::Names("pv", String::new()),
        (["repair", "relink"], _) => Wanted::Names("pvc", String::new()),
        (["repair", "unstick"], _) => Wanted::Names("va", String::new()),
        _ => all(&[]),
    }
}

/// The words that are no flags, and no flag's values.
fn plain<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let valued = [
        "-n",
        "-o",
        "-s",
        "-f",
        "--namespace",
        "--output",
        "--server",
        "--context",
        "--kubeconfig",
        "--cluster",
    ];
    let mut plain = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if valued.contains(word) {
            words.next();
        } else if !word.starts_with('-') {
            plain.push(*word);
        }
    }
    plain
}

/// The value of a flag among the words.
fn flag<'a>(words: &[&'a str], names: [&str; 2]) -> Option<&'a str> {
    let mut found = None;
    for (index, word) in words.iter().enumerate() {
        if names.contains(word) {
            found = words.get(index + 1).copied();
        }
        if let Some((name, value)) = word.split_once('=')
            && names.contains(&name)
        {
            found = Some(value);
        }
    }
    found
}

/// Names of objects, by the user's rights; none if they cannot be had soon.
fn listed(words: &[&str], kind: &str) -> Vec<String> {
    let names = async { timeout(PATIENCE, names(words, kind)).await.ok().flatten() };
    block_on(1, names).ok().flatten().unwrap_or_default()
}

async fn names(words: &[&str], kind: &str) -> Option<Vec<String>> {
    let owned = |names| flag(words, names).map(str::to_owned);
    let choice = Choice {
        kubeconfig: owned(["--kubeconfig", ""]).map(Into::into),
        context: owned(["--context", ""]),
        cluster: owned(["--cluster", ""]),
        user: owned(["--user", ""]),
        server: owned(["-s", "--server"]),
        ..Choice::default()
    };
    let api = ApiServer::choose(&choice).await.ok()?;
    let namespace = flag(words, ["-n", "--namespace"]).unwrap_or_else(|| api.default_namespace());
    let path = match kind {
        "namespace" => "/api/v1/namespaces".to_owned(),
        kind => KINDS.iter().find(|(known, ..)| *known == kind)?.1.replace("{}", namespace),
    };
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let request = http::Request::get(format!("{path}?limit={MOST}")).header(ACCEPT, accept);
    let answer = api.client().ok()?.send(request.body(Body::empty()).ok()?).await.ok()?;
    let body = Limited::new(answer.into_body(), LARGEST).collect().await.ok()?.to_bytes();
    let list: Value = serde_json::from_slice(&body).ok()?;
    let items = list.get("items")?.as_array()?;
    Some(items.iter().filter_map(|item| Some(item.pointer("/metadata/name")?.as_str()?.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_come_next_follows_from_the_words_before() {
        let words = |words: &[&str]| Wanted::Words(words.iter().map(|&word| word.to_owned()).collect());
        let names = |kind, head: &str| Wanted::Names(kind, head.to_owned());
        let cases = [
            ("", words(&ASKING)),
            ("ex", words(&ASKING)),
            ("explain ", words(&["node/", "pod/", "pv/", "pvc/", "sc/", "va/"])),
            ("explain pvc/da", names("pvc", "pvc/")),
            ("explain pod ", names("pod", "")),
            ("explain thing/a", words(&[])),
            ("explain -n ", Wanted::Namespaces),
            ("explain -n shop pvc/", names("pvc", "pvc/")),
            ("explain --ascii pv ", names("pv", "")),
            ("explain pvc/a -o ", words(&["text", "wide", "json", "yaml", "dot"])),
            ("node ", names("node", "")),
            ("whatif ", words(&["bind", "cordon", "delete", "delete-node", "taint"])),
            ("whatif taint ", names("node", "")),
            ("whatif delete pod ", names("pod", "")),
            ("repair relink ", names("pvc", "")),
            ("repair relink data ", names("pv", "")),
            ("repair unstick ", names("va", "")),
            ("doctor ", words(&[])),
        ];
        for (line, expected) in cases {
            let split: Vec<&str> = line.split(' ').collect();
            assert_eq!(wanted(&split), expected, "{line:?}");
        }
    }

    #[test]
    fn flags_say_which_cluster_and_namespace_names_are_of() {
        let words = ["explain", "-n", "shop", "--context=x", "pvc/"];
        assert_eq!(flag(&words, ["-n", "--namespace"]), Some("shop"));
        assert_eq!(flag(&words, ["--context", ""]), Some("x"));
        assert_eq!(flag(&words, ["-s", "--server"]), None);
    }
}
