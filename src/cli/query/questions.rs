//! Flags of the commands about more than one object: `doctor`, `node`, `whatif`, `repair`.
//!
//! In: the words of the command line. Out: the arguments of each, and what their words ask for.

use std::path::PathBuf;

use apiserver::ids::NodeName;
use clap::Args;

use super::{EXIT_CODES, ViewArgs};
use crate::explain::{
    repair::{FreeFor, Repair},
    subject::Subject,
    whatif::WhatIfChange,
};

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
const WHATIF_CHANGES: &str = "want bind -f FILE, taint NODE, delete-node NODE, cordon NODE, delete pvc NAME, delete pod NAME or delete vac NAME";

/// Flags of `mooring whatif`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct WhatIfArgs {
    /// The change.
    #[arg(
        value_name = "bind -f FILE | taint NODE | delete-node NODE | cordon NODE | delete pvc|pod|vac NAME"
    )]
    #[arg(required = true, num_args = 1..=3)]
    pub change: Vec<String>,

    /// Manifest of a PersistentVolumeClaim, for bind; - is stdin.
    #[arg(long, short, value_name = "FILE")]
    pub filename: Option<PathBuf>,

    /// How and where.
    #[command(flatten)]
    pub view: ViewArgs,
}

/// What words ask for; of a claim to be created, that alone.
#[derive(Debug, PartialEq)]
pub enum WhatIf {
    /// A claim is created, as its manifest says.
    Bind(PathBuf),
    /// Anything else.
    Change(WhatIfChange),
}

impl WhatIfArgs {
    /// What would be done.
    ///
    /// # Errors
    /// What is wrong with the words.
    pub fn asked(&self, namespace: &str) -> Result<WhatIf, String> {
        let words: Vec<&str> = self.change.iter().map(String::as_str).collect();
        if let ["bind"] = words.as_slice() {
            return self.filename.clone().map(WhatIf::Bind).ok_or_else(|| "bind: want -f FILE".to_owned());
        }
        if self.filename.is_some() {
            return Err("-f goes with bind alone".to_owned());
        }
        let change = match words.as_slice() {
            ["taint", node] => WhatIfChange::Taint(node_name(node)?),
            ["delete-node", node] => WhatIfChange::DeleteNode(node_name(node)?),
            ["cordon", node] => WhatIfChange::Cordon(node_name(node)?),
            ["delete", object @ ..] if !object.is_empty() => match Subject::parse(object, namespace)? {
                Subject::Claim(key) => WhatIfChange::DeleteClaim(key),
                Subject::Pod(key) => WhatIfChange::DeletePod(key),
                Subject::Node(name) => WhatIfChange::DeleteNode(name),
                Subject::AttributesClass(name) => WhatIfChange::DeleteAttributesClass(name),
                other => return Err(format!("delete {other}: {WHATIF_CHANGES}")),
            },
            other => return Err(format!("{:?}: {WHATIF_CHANGES}", other.join(" "))),
        };
        Ok(WhatIf::Change(change))
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

    /// With free: for any claim that fits, in place of a claim of the name that the volume had.
    #[arg(long)]
    pub for_anyone: bool,

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
        if self.for_anyone && verb != "free" {
            return Err("--for-anyone goes with free alone".to_owned());
        }
        // As explanations print them: the kind is known by the place.
        let kinds: &[&str] = match verb.as_str() {
            "relink" => &["pvc", "pv"],
            "free" => &["pv"],
            "unstick" => &["va"],
            _ => &[],
        };
        let subject = |(kind, name): (&&str, &String)| match name.split_once('/') {
            Some((kind, name)) => Subject::new(kind, namespace, name),
            None => Subject::new(kind, namespace, name),
        };
        let subjects: Vec<Subject> = kinds.iter().zip(names).map(subject).collect::<Result<_, _>>()?;
        match (verb.as_str(), subjects.as_slice()) {
            _ if kinds.len() != names.len() => Err(wrong()),
            ("relink", [Subject::Claim(claim), Subject::Volume(volume)]) => {
                Ok(Repair::Relink(claim.clone(), volume.clone()))
            }
            ("free", [Subject::Volume(volume)]) => {
                let whom = if self.for_anyone { FreeFor::Anyone } else { FreeFor::SameName };
                Ok(Repair::Free(volume.clone(), whom))
            }
            ("unstick", [Subject::Attachment(name)]) => Ok(Repair::Unstick(name.clone())),
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
    match Subject::parse(&[word], "")? {
        Subject::Node(name) => Ok(name),
        other => Err(format!("{other} is no node")),
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

    fn whatif(line: &str) -> Result<WhatIf, String> {
        match command(line).unwrap() {
            Command::WhatIf(args) => args.asked("shop"),
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
            ("whatif bind -f c.yaml", WhatIf::Bind("c.yaml".into())),
            ("whatif taint a", WhatIf::Change(WhatIfChange::Taint(node()))),
            ("whatif delete-node node/a", WhatIf::Change(WhatIfChange::DeleteNode(node()))),
            ("whatif delete node a", WhatIf::Change(WhatIfChange::DeleteNode(node()))),
            ("whatif cordon a", WhatIf::Change(WhatIfChange::Cordon(node()))),
            ("whatif delete pvc data", WhatIf::Change(WhatIfChange::DeleteClaim(claim()))),
            ("whatif delete pvc/data", WhatIf::Change(WhatIfChange::DeleteClaim(claim()))),
            ("whatif delete vac gold", WhatIf::Change(WhatIfChange::DeleteAttributesClass("gold".into()))),
            ("whatif delete pod p", WhatIf::Change(WhatIfChange::DeletePod(PodKey::new("shop", "p")))),
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
            ("repair free pv/v --yes", Repair::Free("v".into(), FreeFor::SameName)),
            ("repair free pv/v --for-anyone", Repair::Free("v".into(), FreeFor::Anyone)),
            ("repair unstick va/csi-1", Repair::Unstick("csi-1".into())),
        ];
        for (line, expected) in cases {
            assert_eq!(repair(line), Ok(expected), "{line}");
        }
        let wrong = [
            "repair relink pv/v pvc/data",
            "repair free pvc/data",
            "repair unstick va/a --for-anyone",
            "repair unstick pv/v",
            "repair free va/a",
        ];
        for line in wrong {
            assert!(repair(line).is_err(), "{line}");
        }
        assert!(matches!(command("repair free pv/v --yes --dry-run"), Err(Stop::Usage(_))));
        assert!(matches!(command("doctor -A -n shop"), Err(Stop::Usage(_))));
        for line in ["doctor", "node a", "whatif cordon a", "repair free v"] {
            assert!(command(&format!("{line} --no-color --utc")).is_ok(), "{line}");
        }
    }
}
