//! What people type after `whatif` and `repair`, as values.
//!
//! In: words, and the namespace that is meant where none is said. Out: a [`Change`] or a [`Repair`], or one line that says
//! what was wanted. Names may bear their kind (`pvc/data`), as explanations print them.

use serde_json::Value;

use crate::{
    explain::{
        repair::{FreeFor, Repair},
        subject::Subject,
        whatif::Change,
    },
    kube_api::ids::{ClaimKey, NodeName},
};

/// What `whatif` takes.
pub const CHANGES: &str = "bind -f FILE | taint NODE | delete-node NODE | cordon NODE | delete pvc|pod NAME";
/// What `repair` takes.
pub const REPAIRS: &str = "relink CLAIM VOLUME | free VOLUME [--for-anyone] | unstick ATTACHMENT";

/// A change to try.
///
/// # Errors
/// What was wanted.
pub fn change(words: &[&str], namespace: &str, manifest: Option<Value>) -> Result<Change, String> {
    let wrong = || format!("{:?}: want {CHANGES}", words.join(" "));
    Ok(match (words, manifest) {
        (["bind"], Some(manifest)) => Change::Bind(namespace.to_owned(), Box::new(manifest)),
        (["taint", node], None) => Change::Taint(self::node(node)?),
        (["delete-node", node], None) => Change::DeleteNode(self::node(node)?),
        (["cordon", node], None) => Change::Cordon(self::node(node)?),
        (["delete", object @ ..], None) if (1..=2).contains(&object.len()) => {
            match Subject::parse(object, namespace)? {
                Subject::Claim(key) => Change::DeleteClaim(key),
                Subject::Pod(key) => Change::DeletePod(key),
                _ => return Err(wrong()),
            }
        }
        _ => return Err(wrong()),
    })
}

/// A repair.
///
/// # Errors
/// What was wanted.
pub fn repair(words: &[&str], namespace: &str, for_anyone: bool) -> Result<Repair, String> {
    let wrong = || format!("{:?}: want {REPAIRS}", words.join(" "));
    let named = |kind, word: &str| {
        if word.contains('/') {
            Subject::parse(&[word], namespace)
        } else {
            Subject::parse(&[kind, word], namespace)
        }
    };
    let repair = match words {
        ["relink", claim, volume] => match (named("pvc", claim)?, named("pv", volume)?) {
            (Subject::Claim(claim), Subject::Volume(volume)) => Repair::Relink(claim, volume),
            _ => return Err(wrong()),
        },
        ["free", volume] => match named("pv", volume)? {
            Subject::Volume(volume) => {
                return Ok(Repair::Free(
                    volume,
                    if for_anyone { FreeFor::Anyone } else { FreeFor::SameName },
                ));
            }
            _ => return Err(wrong()),
        },
        ["unstick", attachment] => match named("va", attachment)? {
            Subject::Attachment(attachment) => Repair::Unstick(attachment),
            _ => return Err(wrong()),
        },
        _ => return Err(wrong()),
    };
    if for_anyone { Err(format!("--for-anyone is for free alone: want {REPAIRS}")) } else { Ok(repair) }
}

/// A node's name, with its kind or without.
///
/// # Errors
/// It is the name of something else.
pub fn node(word: &str) -> Result<NodeName, String> {
    let subject =
        if word.contains('/') { Subject::parse(&[word], "") } else { Subject::parse(&["node", word], "") };
    match subject? {
        Subject::Node(name) => Ok(name),
        other => Err(format!("{word:?}: want a node, and this is a {}", other.kind())),
    }
}

/// What a repair is about, to see afterwards what came of it.
#[must_use]
pub fn subject(repair: &Repair) -> Subject {
    match repair {
        Repair::Relink(claim, _) => Subject::Claim(ClaimKey::new(claim.namespace(), claim.name())),
        Repair::Free(volume, _) => Subject::Volume(volume.clone()),
        Repair::Unstick(attachment) => Subject::Attachment(attachment.clone()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kube_api::ids::PodKey;

    #[test]
    fn words_are_changes() {
        let claim = || ClaimKey::new("shop", "data");
        let cases: [(&str, Option<Value>, Change); 7] = [
            ("bind", Some(json!({})), Change::Bind("shop".to_owned(), Box::new(json!({})))),
            ("taint a", None, Change::Taint("a".into())),
            ("taint node/a", None, Change::Taint("a".into())),
            ("cordon a", None, Change::Cordon("a".into())),
            ("delete pvc data", None, Change::DeleteClaim(claim())),
            ("delete pvc/data", None, Change::DeleteClaim(claim())),
            ("delete pod p", None, Change::DeletePod(PodKey::new("shop", "p"))),
        ];
        for (words, manifest, expected) in cases {
            let split: Vec<&str> = words.split(' ').collect();
            assert_eq!(change(&split, "shop", manifest), Ok(expected), "{words}");
        }
        for words in ["", "bind", "taint", "taint pvc/a", "delete node a", "delete", "cordon a b", "drain a"]
        {
            let split: Vec<&str> = words.split(' ').collect();
            assert!(change(&split, "shop", None).is_err(), "{words}");
        }
    }

    #[test]
    fn words_are_repairs() {
        let claim = ClaimKey::new("shop", "data");
        let cases = [
            ("relink data pv-1", false, Repair::Relink(claim.clone(), "pv-1".into())),
            ("relink pvc/data pv/pv-1", false, Repair::Relink(claim, "pv-1".into())),
            ("free pv-1", false, Repair::Free("pv-1".into(), FreeFor::SameName)),
            ("free pv/pv-1", true, Repair::Free("pv-1".into(), FreeFor::Anyone)),
            ("unstick va/csi-1", false, Repair::Unstick("csi-1".into())),
        ];
        for (words, for_anyone, expected) in cases {
            let split: Vec<&str> = words.split(' ').collect();
            assert_eq!(repair(&split, "shop", for_anyone), Ok(expected), "{words}");
        }
        for (words, for_anyone) in
            [("relink data", false), ("free pvc/data", false), ("relink a b", true), ("", false)]
        {
            let split: Vec<&str> = words.split(' ').collect();
            assert!(repair(&split, "shop", for_anyone).is_err(), "{words}");
        }
    }
}
