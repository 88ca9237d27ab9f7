//! Whose write was it: the audit log's users as parties, and the write that led to a violation of the driver's log.

use serde_json::Value;
use test_support::{actors::attachment_name, audit::Authors, history::Change, promises::attachments};

use super::disks::{Violation, Wrong};
use crate::record::Seen;

/// Who writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// mooring, or kube-controller-manager's two loops in its place.
    Subject,
    /// People: they may do what is not safe.
    Administrators,
    /// Kubelets, sidecars, the scheduler, the other controllers.
    Others,
    /// What etcd's data did when they were put back.
    Restore,
    /// Neither the audit log has a line of it, as when the API server was killed before it could write one, nor `managedFields`.
    Unknown,
}

impl Party {
    pub const ALL: [Self; 5] =
        [Self::Subject, Self::Administrators, Self::Others, Self::Restore, Self::Unknown];

    pub fn name(self) -> &'static str {
        match self {
            Self::Subject => "subject",
            Self::Administrators => "administrators",
            Self::Others => "others",
            Self::Restore => "a restore",
            Self::Unknown => "unknown",
        }
    }
}

/// The party whose change it is. `is_subject` knows the subject's users. Where the audit log has none, the one who wrote last by
/// `managedFields` is it: a deletion leaves none there.
pub fn party(authors: &Authors, change: &Change, is_subject: impl Fn(&str) -> bool) -> Party {
    let users = authors.users(change);
    // Who writes what is there already is answered with the same revision; the subject is blamed first.
    if users.iter().any(|user| is_subject(user)) {
        Party::Subject
    } else if users.contains("admin") {
        Party::Administrators
    } else if users.is_empty() {
        let [before, after] =
            [&change.before, &change.after].map(|object| object.as_ref().and_then(last_entry));
        // A write that only takes something away may leave no entry.
        match after.filter(|_| after != before).map(|entry| entry["manager"].as_str()) {
            Some(Some(MANAGER)) => Party::Subject,
            Some(Some(_)) => Party::Others,
            _ => Party::Unknown,
        }
    } else {
        Party::Others
    }
}

/// The field manager of mooring's writes.
const MANAGER: &str = "mooring";

/// What was written to an object last, by the time in its `managedFields`.
fn last_entry(object: &Value) -> Option<&Value> {
    object["metadata"]["managedFields"].as_array()?.iter().max_by_key(|entry| entry["time"].as_str())
}

/// What a violation of the driver's log is due to.
#[derive(Clone, Copy, Debug)]
pub enum Cause<'a> {
    Write(&'a Change),
    /// The kubelet has not reported what is mounted.
    Kubelet,
}

/// What was written a moment before may be seen a moment later.
const LATE: i64 = 1_000;

/// A Node that was made anew reports nothing at first; so long the report of the former one counts.
const NEW_NODE: i64 = 60_000;

/// What a violation of the driver's log is due to, if the record shows it.
pub fn cause<'a>(violation: &Violation, driver: &str, seen: &'a [Seen]) -> Option<Cause<'a>> {
    let name = |node: &str| attachment_name(&violation.disk, driver, node);
    let before = || seen.iter().filter(|seen| seen.at <= violation.at + LATE);
    let of = |name: String| {
        before().filter(move |seen| seen.change.resource == "volumeattachments" && seen.change.name == name)
    };
    let last_deletion = |node: &str| {
        of(name(node))
            .rfind(|seen| !is_going(seen.change.before.as_ref()) && is_going(seen.change.after.as_ref()))
    };
    let last_creation = |node: &str| of(name(node)).rfind(|seen| seen.change.before.is_none());
    let unique = format!("kubernetes.io/csi/{driver}^{}", violation.disk);
    // Whoever took it away, unless the kubelet was done with it as far as its Node tells.
    let taken_from = |node: &str| {
        let deletion = last_deletion(node)?;
        Some(if report(seen, deletion, node, &unique) == Some(false) {
            Cause::Kubelet
        } else {
            Cause::Write(&deletion.change)
        })
    };
    match &violation.wrong {
        Wrong::TwoMachines { to, .. } => last_creation(to).map(|creation| Cause::Write(&creation.change)),
        Wrong::TakenAway { from } => taken_from(from),
        // S43: whoever gave it to another machine while a report showed the mount; else what made it be taken away too early.
        Wrong::MountedTwice { from, to } => match last_creation(to) {
            Some(creation) if report(seen, creation, from, &unique) == Some(true) => {
                Some(Cause::Write(&creation.change))
            }
            _ => taken_from(from),
        },
        Wrong::Destroyed { .. } => {
            let is_released = |object: Option<&Value>| {
                object.is_some_and(|volume| {
                    volume["status"]["phase"] == "Released"
                        && volume["spec"]["csi"]["volumeHandle"] == violation.disk
                })
            };
            let mut all = before().map(|seen| &seen.change);
            let release = all.rfind(|change| {
                change.resource == "persistentvolumes"
                    && is_released(change.after.as_ref())
                    && !is_released(change.before.as_ref())
            });
            release.map(Cause::Write)
        }
    }
}

fn is_going(object: Option<&Value>) -> bool {
    object.is_none_or(attachments::is_terminating)
}

/// Whether a Node reported a volume in use when something was written. None, if it was not there.
fn report(seen: &[Seen], written: &Seen, node: &str, unique: &str) -> Option<bool> {
    let is_before = |seen: &&Seen| seen.change.revision < written.change.revision;
    let (mut now, mut former, mut since) = (None, None, 0);
    for Seen { at, change } in seen.iter().take_while(is_before) {
        if change.resource != "nodes" || change.name != node {
            continue;
        }
        if change.before.is_none() {
            since = *at;
        }
        if change.after.is_none() {
            former = change.before.as_ref();
        }
        now = change.after.as_ref();
    }
    let former = former.filter(|_| written.at - since < NEW_NODE);
    now.map(|now| {
        attachments::uses(now, unique) || former.is_some_and(|former| attachments::uses(former, unique))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use test_support::actors::attachment_name;

    use super::*;

    fn change(revision: u64, node: &str, before: Option<Value>, after: Option<Value>) -> Seen {
        let name = attachment_name("d", "driver", node);
        let change = Change { revision, resource: "volumeattachments".to_owned(), name, before, after };
        Seen { at: i64::try_from(revision).unwrap(), change }
    }

    fn reports(revision: u64, node: &str, in_use: &[&str]) -> Seen {
        let after = Some(json!({ "status": { "volumesInUse": in_use } }));
        let (resource, name) = ("nodes".to_owned(), node.to_owned());
        let at = i64::try_from(revision).unwrap();
        Seen { at, change: Change { revision, resource, name, before: None, after } }
    }

    #[test]
    fn a_violation_is_due_to_the_write_or_the_report_that_led_to_it() {
        let there = || Some(json!({ "metadata": {} }));
        let going = || Some(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }));
        let (unique, none): (&str, &[&str]) = ("kubernetes.io/csi/driver^d", &[]);
        let in_use = [unique];
        // What the Node of `a` reports before it is taken away, and before it is given to `b`.
        let history = |first: &[&str], second: &[&str]| {
            vec![
                change(1, "a", None, there()),
                reports(2, "a", first),
                change(3, "a", there(), going()),
                reports(4, "a", second),
                change(5, "a", going(), None),
                change(6, "b", None, there()),
            ]
        };
        let (from, to) = ("a".to_owned(), "b".to_owned());
        let twice = || Wrong::MountedTwice { from: from.clone(), to: to.clone() };
        let cases = [
            (Wrong::TwoMachines { from: from.clone(), to: to.clone() }, none, none, Some(6)),
            (Wrong::TakenAway { from: from.clone() }, &in_use, none, Some(3)),
            (Wrong::TakenAway { from: from.clone() }, none, none, None),
            (twice(), &in_use, &in_use, Some(6)),
            (twice(), &in_use, none, Some(3)),
            (twice(), none, none, None),
        ];
        for (wrong, first, second, expected) in cases {
            let violation = Violation { at: 7, disk: "d".to_owned(), wrong };
            let history = history(first, second);
            let found = match cause(&violation, "driver", &history) {
                Some(Cause::Write(change)) => Some(change.revision),
                Some(Cause::Kubelet) => None,
                None => panic!("nothing is found for {violation:?}"),
            };
            assert_eq!(found, expected, "{violation:?} {first:?} {second:?}");
        }
    }

    #[test]
    fn a_node_that_was_made_anew_is_asked_for_what_it_reported_before() {
        let uses = json!({ "status": { "volumesInUse": ["d"] } });
        let node = |at: i64, before: Option<&Value>, after: Option<Value>| {
            let (resource, name) = ("nodes".to_owned(), "a".to_owned());
            let before = before.cloned();
            Seen {
                at,
                change: Change { revision: u64::try_from(at).unwrap(), resource, name, before, after },
            }
        };
        let history =
            [node(1, None, Some(uses.clone())), node(2, Some(&uses), None), node(3, None, Some(json!({})))];
        let told = |at: i64| report(&history, &change(u64::try_from(at).unwrap(), "a", None, None), "a", "d");
        assert_eq!(
            [told(1), told(2), told(3), told(4), told(3 + NEW_NODE)],
            [None, Some(true), None, Some(true), Some(false)]
        );
    }
}
