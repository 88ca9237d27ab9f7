//! Flags of the commands about more than one object: `doctor`, `node`, `whatif`, `repair`.
//!
//! In: the words of the command line. Out: the arguments of each, and what their words ask for.

use std::path::PathBuf;

use apiserver::{ids::NodeName, kinds::ObjectRef};
use clap::Args;
use serde_json::Value;

use super::{EXIT_CODES, ViewArgs};
use crate::explain::{repair::Repair, subject, whatif::WhatIfChange};

/// Flags of `mooring doctor`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct DoctorArgs {
    /// All namespaces, which is the default.
    #[arg(long, short = 'A', conflicts_with = "namespace")]
    pub all_namespaces: bool,

    /// Print the answer again whenever it has changed.
    #[arg(long, short)]
    pub watch: bool,

    /// How and where.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// Flags of `mooring node`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct NodeArgs {
    /// The node.
    #[arg(value_name = "NAME")]
    pub node: String,

    /// Only what a drain still waits for.
    #[arg(long)]
    pub drain: bool,

    /// Print the answer again whenever it has changed, with the rate at which volumes leave.
    #[arg(long, short)]
    pub watch: bool,

    /// How and where.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// What can be asked of `mooring whatif`.
const WHATIF_CHANGES: &str =
    "want bind -f FILE, taint NODE, delete-node NODE, delete pvc NAME, delete pod NAME or delete vac NAME";

/// Flags of `mooring whatif`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct WhatIfArgs {
    /// The change.
    #[arg(value_name = "bind -f FILE | taint NODE | delete-node NODE | delete pvc|pod|vac NAME")]
    #[arg(required = true, num_args = 1..=3)]
    pub change: Vec<String>,

    /// Manifest of a PersistentVolumeClaim, for bind; - is stdin.
    #[arg(long, short, value_name = "FILE")]
    pub filename: Option<PathBuf>,

    /// How and where.
    #[command(flatten)]
    pub view: ViewArgs,
}

impl WhatIfArgs {
    /// What would be done, with the content of the manifest if there is one.
    ///
    /// # Errors
    /// What is wrong with the words.
    pub fn asked(&self, namespace: &str, manifest: Option<Value>) -> Result<WhatIfChange, String> {
        let words: Vec<&str> = self.change.iter().map(String::as_str).collect();
        Ok(match (words.as_slice(), manifest) {
            (["bind"], Some(manifest)) => WhatIfChange::Bind(namespace.to_owned(), Box::new(manifest)),
            (["bind"], None) => return Err("bind: want -f FILE".to_owned()),
            (_, Some(_)) => return Err("-f goes with bind alone".to_owned()),
            (["taint", node], _) => WhatIfChange::Taint(node_name(node)?),
            (["delete-node", node], _) => WhatIfChange::DeleteNode(node_name(node)?),
            (["delete", object @ ..], _) if !object.is_empty() => match subject::parse(object, namespace)? {
                ObjectRef::Claim(key) => WhatIfChange::DeleteClaim(key),
                ObjectRef::Pod(key) => WhatIfChange::DeletePod(key),
                ObjectRef::Node(name) => WhatIfChange::DeleteNode(name),
                ObjectRef::AttributesClass(name) => WhatIfChange::DeleteAttributesClass(name),
                other => return Err(format!("delete {}: {WHATIF_CHANGES}", subject::typed(&other))),
            },
            (other, _) => return Err(format!("{:?}: {WHATIF_CHANGES}", other.join(" "))),
        })
    }
}

/// What can be repaired.
const REPAIRS: &str = "want relink pvc/NAME pv/NAME, free pv/NAME or unstick va/NAME";

/// Flags of `mooring repair`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct RepairArgs {
    /// What to repair.
    #[arg(value_name = "relink pvc/NAME pv/NAME | free pv/NAME | unstick va/NAME")]
    #[arg(required = true, num_args = 1..=3)]
    pub repair: Vec<String>,

    /// Only print the requests, as without --yes.
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,

    /// Send the printed requests.
    #[arg(long)]
    pub yes: bool,

    /// How and where.
    #[command(flatten)]
    pub view: ViewArgs,
}

impl RepairArgs {
    /// What is to be repaired.
    ///
    /// # Errors
    /// What is wrong with the words.
    pub fn asked(&self, namespace: &str) -> Result<Repair, String> {
        let wrong = || format!("{:?}: {REPAIRS}", self.repair.join(" "));
        let (verb, names) = self.repair.split_first().ok_or_else(wrong)?;
        // As explanations print them: the kind is known by the place.
        let kinds: &[&str] = match verb.as_str() {
            "relink" => &["pvc", "pv"],
            "free" => &["pv"],
            "unstick" => &["va"],
            _ => &[],
        };
        let subject = |(kind, name): (&&str, &String)| match name.split_once('/') {
            Some((kind, name)) => subject::named(kind, namespace, name),
            None => subject::named(kind, namespace, name),
        };
        let subjects: Vec<ObjectRef> = kinds.iter().zip(names).map(subject).collect::<Result<_, _>>()?;
        match (verb.as_str(), subjects.as_slice()) {
            _ if kinds.len() != names.len() => Err(wrong()),
            ("relink", [ObjectRef::Claim(claim), ObjectRef::Volume(volume)]) => {
                Ok(Repair::Relink(claim.clone(), volume.clone()))
            }
            ("free", [ObjectRef::Volume(volume)]) => Ok(Repair::Free(volume.clone())),
            ("unstick", [ObjectRef::Attachment(name)]) => Ok(Repair::Unstick(name.clone())),
            _ => Err(wrong()),
        }
    }
}

/// The name of a node, also as `node/NAME`.
///
/// # Errors
/// It is that of something else.
pub fn node_name(word: &str) -> Result<NodeName, String> {
    if !word.contains('/') && !word.is_empty() {
        return Ok(word.into());
    }
    match subject::parse(&[word], "")? {
        ObjectRef::Node(name) => Ok(name),
        other => Err(format!("{} is no node", subject::typed(&other))),
    }
}

#[cfg(test)]
mod tests {
    use apiserver::ids::{ClaimKey, PodKey};

    use super::super::super::{Command, Stop, parse};
    use super::*;
    fn command(line: &str) -> Result<Command, Stop> {
        Ok(parse(["mooring"].into_iter().chain(line.split(' ')))?.command)
    }

    fn whatif(line: &str) -> Result<WhatIfChange, String> {
        match command(line).unwrap() {
            Command::WhatIf(args) => args.asked("shop", args.filename.as_ref().map(|_| Value::Null)),
            other => panic!("{other:?}"),
        }
    }

    fn repair(line: &str) -> Result<Repair, String> {
        match command(line).unwrap() {
            Command::Repair(args) => args.asked("shop"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_would_be_done_is_said_in_words() {
        let node = || NodeName::from("a");
        let claim = || ClaimKey::new("shop", "data");
        let cases = [
            ("whatif bind -f c.yaml", WhatIfChange::Bind("shop".to_owned(), Box::default())),
            ("whatif taint a", WhatIfChange::Taint(node())),
            ("whatif delete-node node/a", WhatIfChange::DeleteNode(node())),
            ("whatif delete node a", WhatIfChange::DeleteNode(node())),
            ("whatif delete pvc data", WhatIfChange::DeleteClaim(claim())),
            ("whatif delete pvc/data", WhatIfChange::DeleteClaim(claim())),
            ("whatif delete vac gold", WhatIfChange::DeleteAttributesClass("gold".into())),
            ("whatif delete pod p", WhatIfChange::DeletePod(PodKey::new("shop", "p"))),
        ];
        for (line, expected) in cases {
            assert_eq!(whatif(line), Ok(expected), "{line}");
        }
        let wrong = [
            "whatif bind",
            "whatif taint",
            "whatif taint a -f x",
            "whatif taint pvc/a",
            "whatif delete pv a",
            "whatif melt a",
        ];
        for line in wrong {
            assert!(whatif(line).is_err(), "{line}");
        }
    }

    #[test]
    fn what_is_to_be_repaired_is_said_in_words() {
        let claim = ClaimKey::new("shop", "data");
        let cases = [
            ("repair relink pvc/data pv/v --dry-run", Repair::Relink(claim, "v".into())),
            ("repair relink data v", Repair::Relink(ClaimKey::new("shop", "data"), "v".into())),
            ("repair free pv/v --yes", Repair::Free("v".into())),
            ("repair unstick va/csi-1", Repair::Unstick("csi-1".into())),
        ];
        for (line, expected) in cases {
            assert_eq!(repair(line), Ok(expected), "{line}");
        }
        for line in [
            "repair relink pv/v pvc/data",
            "repair free pvc/data",
            "repair unstick",
            "repair unstick pv/v",
            "repair free va/csi-1",
        ] {
            assert!(repair(line).is_err(), "{line}");
        }
        assert!(matches!(command("repair free pv/v --yes --dry-run"), Err(Stop::Usage(_))));
        assert!(matches!(command("doctor -A -n shop"), Err(Stop::Usage(_))));
        // What they would ignore, these two refuse.
        for line in ["preflight -n shop", "preflight --request-timeout=5s", "switch --to mooring -n shop"] {
            assert!(matches!(command(line), Err(Stop::Usage(_))), "{line}");
        }
        assert!(
            command("preflight --context=c -o json").is_ok()
                && command("switch --to mooring -s https://x").is_ok()
        );
        for line in ["doctor", "node a", "whatif taint a", "repair free v"] {
            assert!(command(&format!("{line} --no-color --utc")).is_ok(), "{line}");
        }
    }
}
