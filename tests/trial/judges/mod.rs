//! Judges that the subject cannot influence: the driver's log, and etcd's history held against the promises.
//!
//! In: what was recorded. Out: violations by party, one line for each. Each judge convicts a scripted wrongdoer in its tests.

pub mod disks;
pub mod parties;

use std::collections::BTreeMap;

use serde_json::Value;
use test_support::{
    actors::attachment_name,
    audit::{Authors, DAEMON, Entry},
    history::Change,
    invariants,
    promises::attachments,
    writes,
};

use self::parties::{Cause, Party, cause, party};
use crate::record::{Line, Seen};

/// Violations by party.
pub type Violations = BTreeMap<Party, Vec<String>>;

/// Judges a whole trial. Of no writer is what differs at the revisions at which etcd's data were put back (`restored`), and what
/// becomes of the disks that this is about. `is_subject` knows the subject's users by name. What requests and single writes look
/// like is judged of mooring alone: kube-controller-manager promises nothing about them.
pub fn judge(
    seen: &[Seen],
    restored: &[u64],
    requests: Vec<Entry>,
    log: &[Line],
    driver: &str,
    is_subject: impl Fn(&str) -> bool,
    promises_requests: bool,
) -> Violations {
    // The judges of stories know the daemon by its user. An API server that has just started refuses everybody until it has read
    // the roles, and whether the role suffices is for stories.
    let requests: Vec<Entry> = requests
        .into_iter()
        .filter(|entry| entry.code != 403)
        .map(|entry| if is_subject(&entry.user) { Entry { user: DAEMON.to_owned(), ..entry } } else { entry })
        .collect();
    let authors = Authors::of(&requests);
    let party_of = |change: &Change| party(&authors, change, |user| user == DAEMON);
    let changes: Vec<Change> = seen.iter().map(|seen| seen.change.clone()).collect();
    let mut violations = Violations::new();
    for violation in disks::judge(log) {
        let (party, due_to) = match cause(&violation, driver, seen) {
            _ if is_of_restore(&violation.disk, violation.at, driver, seen, restored) => {
                (Party::Restore, "a restore".to_owned())
            }
            Some(Cause::Write(change)) => (party_of(change), format!("revision {}", change.revision)),
            Some(Cause::Kubelet) => (Party::Others, "its kubelet, which did not report it".to_owned()),
            None => (Party::Unknown, "nothing on record".to_owned()),
        };
        let line =
            format!("{} {}: {:?}, due to {due_to}", violation.wrong.name(), violation.disk, violation.wrong);
        violations.entry(party).or_default().push(line);
    }
    let deletions: Vec<(u64, Party)> = changes
        .iter()
        .filter(|change| begins_deletion(change))
        .map(|change| (change.revision, party_of(change)))
        .collect();
    for judged in Party::ALL {
        let of_party = invariants::check_history(&changes, |change| {
            party_of(change) == judged
                && decides(change)
                && !is_blind(change, judged, &deletions)
                && !restored.contains(&change.revision)
        });
        violations.entry(judged).or_default().extend(of_party);
    }
    if promises_requests {
        let of_subject = violations.entry(Party::Subject).or_default();
        of_subject.extend(invariants::check_requests(&requests));
        of_subject.extend(writes::check(&changes, &writes::by_daemon(&requests)));
    }
    violations.retain(|_, of_party| !of_party.is_empty());
    violations
}

/// The disks that machines still have when nobody needs any, but those that a restore was about.
pub fn left_over(seen: &[Seen], restored: &[u64], log: &[Line], driver: &str) -> Vec<String> {
    let left = disks::left_over(log).into_iter();
    let left = left.filter(|(disk, _)| !is_of_restore(disk, i64::MAX, driver, seen, restored));
    left.map(|(disk, node)| format!("{disk} on {node}")).collect()
}

/// Whether a restore has taken away, or brought back, what was decided about a disk before that time.
fn is_of_restore(disk: &str, at: i64, driver: &str, seen: &[Seen], restored: &[u64]) -> bool {
    let is_of_disk = |object: &Value| {
        let node = object["spec"]["nodeName"].as_str().unwrap_or_default();
        object["spec"]["csi"]["volumeHandle"] == *disk
            || object["metadata"]["name"] == attachment_name(disk, driver, node)
    };
    let brought = seen.iter().filter(|seen| seen.at <= at && restored.contains(&seen.change.revision));
    brought.flat_map(|seen| seen.change.before.iter().chain(&seen.change.after)).any(is_of_disk)
}

/// So many revisions later a request may arrive that was sent before.
const UNDER_WAY: u64 = 20;

/// Whether a write to a VolumeAttachment begins its deletion.
fn begins_deletion(change: &Change) -> bool {
    let is_there = |object: Option<&Value>| object.is_some_and(|object| !attachments::is_terminating(object));
    change.resource == "volumeattachments"
        && is_there(change.before.as_ref())
        && !is_there(change.after.as_ref())
}

/// Whether a write decides anything. Of a VolumeAttachment that is its creation and its deletion; the attacher's reports are not.
fn decides(change: &Change) -> bool {
    change.resource != "volumeattachments" || change.before.is_none() || begins_deletion(change)
}

/// Whether a write to a Node was under way when another party began to delete an attachment: it could not know.
fn is_blind(change: &Change, judged: Party, deletions: &[(u64, Party)]) -> bool {
    let is_recent = |(revision, of): &(u64, Party)| {
        *of != judged && *revision < change.revision && change.revision - revision <= UNDER_WAY
    };
    change.resource == "nodes" && deletions.iter().any(is_recent)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Resource and name of an object, what becomes of it, and the user who does it, in the order of revisions.
    type Made = (&'static str, String, Value, &'static str);

    fn judged(made: &[Made], restored: &[u64]) -> Violations {
        let mut now: BTreeMap<(&str, &str), Value> = BTreeMap::new();
        let (mut seen, mut requests) = (Vec::new(), Vec::new());
        for (revision, (resource, name, after, user)) in (1..).zip(made) {
            let before = now.insert((resource, name), after.clone());
            let response = json!({ "metadata": { "resourceVersion": revision.to_string() } });
            let (resource, name) = ((*resource).to_owned(), name.clone());
            requests.push(Entry {
                user: (*user).to_owned(),
                verb: "patch".to_owned(),
                group: String::new(),
                resource: resource.clone(),
                name: name.clone(),
                code: 200,
                request: Value::Null,
                response,
                at: None,
                sent: None,
            });
            let after = Some(after.clone());
            seen.push(Seen { at: 0, change: Change { revision, resource, name, before, after } });
        }
        judge(&seen, restored, requests, &[], "driver", |user| user == "subject", false)
    }

    #[test]
    fn s1_s2_a_wrongdoer_of_the_history_is_convicted_and_nobody_else() {
        let volume = json!({
            "metadata": { "name": "pv" },
            "spec": { "accessModes": ["ReadWriteOnce"], "csi": { "driver": "driver", "volumeHandle": "d" } },
        });
        let node = |lists: bool, user| -> Made {
            let list = if lists { json!([{ "name": "kubernetes.io/csi/driver^d" }]) } else { json!([]) };
            let object = json!({ "metadata": { "name": "a" }, "status": { "volumesAttached": list } });
            ("nodes", "a".to_owned(), object, user)
        };
        let attachment = |node: &str, is_going: bool, user| -> Made {
            let source = json!({ "persistentVolumeName": "pv" });
            let spec = json!({ "attacher": "driver", "nodeName": node, "source": source });
            let mut object =
                json!({ "metadata": { "uid": node }, "spec": spec, "status": { "attached": true } });
            if is_going {
                object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            ("volumeattachments", attachment_name("d", "driver", node), object, user)
        };
        let begin = [
            ("persistentvolumes", "pv".to_owned(), volume, "others"),
            node(false, "others"),
            attachment("a", false, "subject"),
            node(true, "subject"),
        ];
        let cases = [
            (vec![attachment("b", false, "subject")], vec![(Party::Subject, "S1")]),
            (vec![attachment("b", false, "admin")], vec![(Party::Administrators, "S1")]),
            (vec![attachment("a", true, "subject")], vec![(Party::Subject, "S2")]),
            // It is listed again while another's deletion is on its way, of which the writer could not know.
            (vec![node(false, "others"), attachment("a", true, "others"), node(true, "subject")], vec![]),
            (
                vec![node(false, "subject"), attachment("a", true, "subject"), node(true, "subject")],
                vec![(Party::Subject, "S2")],
            ),
        ];
        for (more, expected) in cases {
            let violations = judged(&[&begin[..], &more].concat(), &[]);
            let lines = violations.iter().flat_map(|(party, lines)| lines.iter().map(|line| (*party, line)));
            let told: Vec<_> =
                lines.map(|(party, line)| (party, line.split(' ').next().unwrap_or_default())).collect();
            assert_eq!(told, expected, "{more:?}");
        }
        // Two machines have it, as a restore brought one back; what is written on top of that is judged.
        let both = [&begin[..], &[attachment("b", false, "subject")]].concat();
        assert_eq!(judged(&both, &[5]), Violations::new());
        let more = [&both[..], &[attachment("c", false, "subject")]].concat();
        assert_eq!(judged(&more, &[5]).into_keys().collect::<Vec<_>>(), [Party::Subject]);
    }
}
