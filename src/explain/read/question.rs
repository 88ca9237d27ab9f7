//! What the commands other than `explain` read: a function of the question and of what has been read so far.
//!
//! In: a [`Question`] and a [`Snapshot`]. Out: all reads that are wanted with what is known now, as for a subject
//! ([`super::plan`]). Whole lists are read where an answer is about all of them, or where a proof needs them.

use std::collections::BTreeSet;

use super::plan::{List, Read, needed};
use crate::{
    explain::{
        repair::Repair,
        sidecars::{Sidecar, Sidecars},
        snapshot::Snapshot,
        subject::Subject,
        whatif::Change,
    },
    kube_api::{
        ids::PodKey,
        kinds::{ObjectRef, StorageClass},
    },
};

/// What is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// One object: `explain`.
    About(Subject),
    /// All of the cluster, or what of it is of one namespace: `doctor`.
    Cluster(Option<String>),
    /// What still holds a node: `node`.
    Node(crate::kube_api::ids::NodeName),
    /// `whatif`.
    Change(Change),
    /// `repair`.
    Repair(Repair),
}

/// All reads that an answer needs, as far as that is known by now.
#[must_use]
pub fn reads(question: &Question, seen: &Snapshot) -> BTreeSet<Read> {
    match question {
        Question::About(subject) => needed(subject, seen),
        Question::Cluster(namespace) => {
            let mut reads = lists(&List::ALL);
            if let Some(namespace) = namespace {
                reads.remove(&Read::All(List::Pods));
                reads.remove(&Read::All(List::Claims));
                reads.extend([Read::PodsIn(namespace.clone()), Read::ClaimsIn(namespace.clone())]);
            }
            reads.insert(Read::EventsOfClaims);
            reads.extend(programs(seen));
            reads
        }
        Question::Node(node) => {
            let mut reads = needed(&Subject::Node(node.clone()), seen);
            reads.extend(lists(&[List::Attachments, List::Drivers]));
            reads.extend(programs(seen));
            reads
        }
        Question::Change(change) => of_change(change, seen),
        Question::Repair(repair) => of_repair(repair, seen),
    }
}

fn lists(lists: &[List]) -> BTreeSet<Read> {
    lists.iter().map(|list| Read::All(*list)).collect()
}

/// Leases, and the pods that hold those of side-cars: their flags tell how fast they work.
fn programs(seen: &Snapshot) -> BTreeSet<Read> {
    let mut reads = BTreeSet::from([Read::Leases(None)]);
    let sidecars = Sidecars::new(seen);
    let mut drivers = BTreeSet::new();
    seen.objects.drivers.for_each(|driver| {
        drivers.insert(driver.metadata.name.to_string());
    });
    seen.objects.classes.for_each(|class: &StorageClass| {
        drivers.insert(class.provisioner.to_string());
    });
    for driver in drivers {
        for sidecar in [Sidecar::Attacher, Sidecar::Provisioner] {
            let Some((namespace, pod)) = sidecars.holder(&driver, sidecar) else { continue };
            reads.insert(Read::Object(ObjectRef::Pod(PodKey::new(namespace, pod))));
        }
    }
    reads
}

fn of_change(change: &Change, seen: &Snapshot) -> BTreeSet<Read> {
    match change {
        Change::Bind(..) => lists(&[List::Volumes, List::Claims, List::Classes, List::Drivers]),
        Change::Taint(node) | Change::DeleteNode(node) | Change::Cordon(node) => {
            let mut reads = needed(&Subject::Node(node.clone()), seen);
            reads.extend(lists(&[List::Attachments]));
            reads
        }
        Change::DeleteClaim(claim) => {
            let mut reads = needed(&Subject::Claim(claim.clone()), seen);
            reads.insert(Read::PodsIn(claim.namespace().to_owned()));
            reads
        }
        Change::DeletePod(pod) => {
            let mut reads = needed(&Subject::Pod(pod.clone()), seen);
            reads.insert(Read::PodsIn(pod.namespace().to_owned()));
            reads
        }
    }
}

fn of_repair(repair: &Repair, seen: &Snapshot) -> BTreeSet<Read> {
    match repair {
        Repair::Relink(claim, volume) => {
            let mut reads = needed(&Subject::Claim(claim.clone()), seen);
            reads.insert(Read::Object(ObjectRef::Volume(volume.clone())));
            reads.extend(lists(&[List::Volumes, List::Claims, List::Attachments, List::Classes]));
            reads
        }
        Repair::Free(volume, _) => {
            let mut reads = needed(&Subject::Volume(volume.clone()), seen);
            reads.extend(lists(&[List::Volumes, List::Claims, List::Attachments, List::Classes]));
            reads
        }
        Repair::Unstick(attachment) => {
            let mut reads = needed(&Subject::Attachment(attachment.clone()), seen);
            reads.extend(lists(&[List::Nodes, List::Pods, List::Volumes, List::Attachments, List::Drivers]));
            reads.extend(programs(seen));
            reads
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::explain::repair::FreeFor;

    fn asked(question: &Question) -> Vec<String> {
        reads(question, &Snapshot::new(Timestamp::UNIX_EPOCH)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn each_question_reads_what_its_answer_is_about_and_pods_of_all_namespaces_only_for_all() {
        let claim = crate::kube_api::ids::ClaimKey::new("shop", "data");
        let all = ["csidrivers", "events about claims", "leases", "nodes", "persistentvolumeclaims"];
        let rest = ["persistentvolumes", "pods", "storageclasses", "volumeattachments"];
        let cases = [
            (Question::Cluster(None), [&all[..], &rest[..]].concat()),
            (
                Question::Cluster(Some("shop".to_owned())),
                vec![
                    "csidrivers",
                    "events about claims",
                    "leases",
                    "nodes",
                    "persistentvolumeclaims in shop",
                    "persistentvolumes",
                    "pods in shop",
                    "storageclasses",
                    "volumeattachments",
                ],
            ),
            (
                Question::Node("a".into()),
                vec![
                    "csidrivers",
                    "csinode/a",
                    "events about node/a",
                    "leases",
                    "node/a",
                    "pods on a",
                    "volumeattachments",
                ],
            ),
            (
                Question::Change(Change::Taint("a".into())),
                vec!["csinode/a", "events about node/a", "node/a", "pods on a", "volumeattachments"],
            ),
            (
                Question::Change(Change::DeletePod(PodKey::new("shop", "p"))),
                vec!["events about pod/shop/p", "pod/shop/p", "pods in shop"],
            ),
            (
                Question::Change(Change::DeleteClaim(claim)),
                vec!["events about pvc/shop/data", "pods in shop", "pvc/shop/data"],
            ),
            (
                Question::Repair(Repair::Free("v".into(), FreeFor::Anyone)),
                vec![
                    "events about pv/v",
                    "persistentvolumeclaims",
                    "persistentvolumes",
                    "pv/v",
                    "storageclasses",
                    "volumeattachments",
                ],
            ),
        ];
        for (question, expected) in cases {
            let mut found = asked(&question);
            found.sort();
            assert_eq!(found, expected, "{question:?}");
        }
    }

    #[test]
    fn the_pod_that_holds_the_lease_of_a_side_car_is_read_for_its_flags() {
        let mut seen = Snapshot::new(Timestamp::UNIX_EPOCH);
        let driver = json!({ "kind": "CSIDriver", "metadata": { "name": "d.example.com" }, "spec": {} });
        let lease = json!({
            "kind": "Lease", "metadata": { "name": "external-attacher-leader-d-example-com", "namespace": "csi" },
            "spec": { "holderIdentity": "controller-0" },
        });
        assert_eq!((seen.take(driver), seen.take(lease)), (Ok(()), Ok(())));
        let pod = Read::Object(ObjectRef::Pod(PodKey::new("csi", "controller-0")));
        assert!(reads(&Question::Cluster(None), &seen).contains(&pod));
    }
}
