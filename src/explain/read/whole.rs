//! What a question needs: about an object, what its answer looks at ([`needed`]); about a node that is drained, its pods, and what
//! these name; about a cluster, a change or a repair, everything.
//!
//! In: a [`Question`] and what has been read so far. Out: all [`Read`]s that are wanted with what is known now. Where all pods and
//! claims may not be listed, those of one namespace are.

use std::collections::BTreeSet;

use apiserver::{
    ids::{ClaimKey, NodeName, PodKey},
    kinds::{
        Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, PodPhase, StorageClass,
        VolumeAttachment, VolumeAttributesClass,
    },
    tables::Stored,
};

use super::requests::Read;
use crate::explain::{
    answer::needed,
    drain,
    repair::Repair,
    resize::grows,
    sidecars::Sidecar,
    snapshot::{CLAIMS_THERE, FENCE, FENCE_BINDINGS, Snapshot},
    view::{View, claims_of},
    volume,
    whatif::WhatIfChange,
};
use crate::fence::policies::{BINDINGS, POLICIES};

/// What an answer is about.
#[derive(Clone, Debug, PartialEq)]
pub enum Question {
    /// One object.
    Object(ObjectRef),
    /// The whole cluster; of who may not see all of it, this namespace.
    Cluster(String),
    /// A node and what holds it.
    Drain(NodeName),
    /// What would follow from a change.
    Change(WhatIfChange),
    /// Whether, and how, something can be repaired.
    Repair(Repair),
}

/// All reads that an answer needs, as far as that is known by now.
pub fn needed_by(question: &Question, seen: &Snapshot) -> BTreeSet<Read> {
    if let Question::Object(subject) = question {
        return needed(subject, seen);
    }
    View::noted(seen, |view| match question {
        Question::Object(_) => {}
        Question::Cluster(namespace) => {
            view.want(Read::claim_events);
            cluster(view);
            or_in(view, namespace);
            last_written(view);
            pending(view);
            growing(view);
            view.list::<VolumeAttributesClass>();
            view.want(|| Read::of_fence(FENCE, POLICIES));
            view.want(|| Read::of_fence(FENCE_BINDINGS, BINDINGS));
            view.want(Read::deployed);
        }
        Question::Drain(node) => {
            program_pods(view);
            drain::look(view, node, None);
        }
        Question::Change(change) => {
            cluster(view);
            match change {
                WhatIfChange::DeleteClaim(claim) => {
                    volume::of_claim(view, claim);
                    or_in(view, claim.namespace());
                }
                WhatIfChange::DeletePod(pod) => {
                    view.want(Read::deployed);
                    or_in(view, pod.namespace());
                }
                WhatIfChange::DeleteAttributesClass(_) => view.list::<VolumeAttributesClass>(),
                WhatIfChange::Taint(_) | WhatIfChange::DeleteNode(_) => view.want(Read::deployed),
                WhatIfChange::Bind(..) => {}
            }
        }
        Question::Repair(_) => cluster(view),
    })
}

/// Objects of each kind that are read whole for who wrote them: those that were written last tell who is at work.
const LAST_WRITTEN: usize = 10;

/// Pods on nodes that have not started, of which events and drivers are read.
const MOST_PENDING: usize = 50;

/// Claims of pending pods that are looked for by name where no list shows them.
const MOST_MISSING: usize = 100;

/// Claims whose volumes are to grow that are read whole for how far that is.
const MOST_GROWING: usize = 50;

/// Of the objects of a kind that was listed those that were written last.
fn last_of<T: Stored>(seen: &Snapshot) -> Vec<ObjectRef> {
    let mut last = BTreeSet::new();
    if seen.is_listed::<T>() {
        T::table(&seen.objects).for_each(|object| {
            last.insert((object.metadata().resource_version, object.key()));
            if last.len() > LAST_WRITTEN {
                // There may be millions, of which no more is kept.
                last.pop_first();
            }
        });
    }
    last.into_iter().map(|(_, key)| T::object_ref(key)).collect()
}

/// What was written last of each kind that the controllers write. Lists are read without `managedFields`: of 100 000
/// objects these would be most of what there is to keep.
fn last_written(view: &View<'_>) {
    let last = [
        last_of::<PersistentVolume>(view.snapshot),
        last_of::<PersistentVolumeClaim>(view.snapshot),
        last_of::<VolumeAttachment>(view.snapshot),
    ];
    for object in last.into_iter().flatten() {
        view.want(|| Read::object(object));
    }
}

/// What keeps pods on nodes from starting beside attachments: drivers that a node lacks, mounts that fail, volumes that are
/// out of the node's reach, which whole objects show.
fn pending(view: &View<'_>) {
    let pending = view.snapshot.all(|pod: &Pod| {
        let waits = pod.status.phase == PodPhase::Pending && !pod.metadata.is_terminating();
        waits && !pod.spec.node_name.is_empty()
    });
    for pod in pending.iter().take(MOST_PENDING) {
        view.want(|| Read::events_about(&ObjectRef::Pod(pod.key())));
        view.want(|| Read::csi_node(&pod.spec.node_name));
        view.want(|| Read::object(ObjectRef::Node(pod.spec.node_name.clone())));
    }
    let claims = pending.iter().take(MOST_PENDING).flat_map(|pod| claims_of(pod));
    let claims = claims.filter_map(|claim| view.snapshot.objects.claims.get(&claim));
    let volumes = claims.map(|claim| claim.spec.volume_name.clone()).filter(|name| !name.is_empty());
    for volume in volumes.take(MOST_PENDING) {
        view.want(|| Read::object(ObjectRef::Volume(volume)));
    }
}

/// Whether anyone has begun to enlarge a volume, and since when that is asked for, the whole claim tells.
fn growing(view: &View<'_>) {
    if view.snapshot.is_listed::<PersistentVolumeClaim>() {
        let growing = view.snapshot.keys(|claim| grows(&view.snapshot.objects, claim));
        for claim in growing.into_iter().take(MOST_GROWING) {
            view.want(|| Read::object(ObjectRef::Claim(claim)));
        }
    }
}

fn cluster(view: &View<'_>) {
    view.list::<Node>();
    view.list::<Pod>();
    view.list::<PersistentVolume>();
    view.list::<PersistentVolumeClaim>();
    view.list::<VolumeAttachment>();
    view.list::<StorageClass>();
    program_pods(view);
}

/// What may be seen of one namespace, if not of all.
fn or_in(view: &View<'_>, namespace: &str) {
    if Read::all::<Pod>().is_unseen(view.snapshot) {
        view.want(|| Read::pods_in(namespace));
    }
    if Read::all::<PersistentVolumeClaim>().is_unseen(view.snapshot) {
        view.want(|| Read::claims_in(namespace));
    }
    if Read::claim_events().is_unseen(view.snapshot) {
        view.want(|| Read::events_in(namespace));
    }
    if view.snapshot.was_read(CLAIMS_THERE) {
        // A list of some does not show what is missing.
        let pods = view.snapshot.all(|pod: &Pod| pod.status.phase == PodPhase::Pending);
        let claims: BTreeSet<ClaimKey> = pods.iter().flat_map(|pod| claims_of(pod)).collect();
        let missing = claims.into_iter().filter(|claim| view.snapshot.objects.claims.get(claim).is_none());
        for claim in missing.take(MOST_MISSING) {
            view.want(|| Read::object(ObjectRef::Claim(claim)));
        }
    }
}

/// The pods that hold the leases of attachers and provisioners: with which flags these run.
fn program_pods(view: &View<'_>) {
    let sidecars = view.sidecars();
    for driver in view.snapshot.objects.drivers.keys() {
        for sidecar in [Sidecar::Attacher, Sidecar::Provisioner] {
            if let Some((namespace, pod)) = sidecars.holder(driver.as_str(), sidecar) {
                view.want(|| Read::object(ObjectRef::Pod(PodKey::new(namespace, pod))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::explain::{read::wanted_tests::seen, snapshot::Unseen};

    fn reads(question: &Question, seen: &Snapshot) -> Vec<String> {
        let mut reads: Vec<String> = needed_by(question, seen).iter().map(ToString::to_string).collect();
        reads.sort();
        reads
    }

    fn pod(name: &str, node: &str) -> Value {
        json!({
            "kind": "Pod", "metadata": { "name": name, "namespace": "shop" },
            "spec": {
                "nodeName": node,
                "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }],
            },
        })
    }

    const CLUSTER: [&str; 9] = [
        "csidrivers",
        "events about claims",
        "leases",
        "nodes",
        "persistentvolumeclaims",
        "persistentvolumes",
        "pods",
        "storageclasses",
        "volumeattachments",
    ];

    #[test]
    fn a_cluster_is_read_in_lists_and_where_that_is_forbidden_one_namespace_is() {
        let question = Question::Cluster("shop".to_owned());
        let mut seen = seen([
            json!({ "kind": "CSIDriver", "metadata": { "name": "a.b" }, "spec": {} }),
            json!({
                "kind": "Lease", "metadata": { "name": "a-b", "namespace": "csi" },
                "spec": { "holderIdentity": "ctl-0_a.b" },
            }),
            json!({
                "kind": "Lease", "metadata": { "name": "other", "namespace": "x" },
                "spec": { "holderIdentity": "y" },
            }),
        ]);
        let mut expected = CLUSTER.to_vec();
        expected.extend(["volumeattributesclasses", "policies of the fence", "bindings of the fence"]);
        expected.push("deployments of mooring");
        // With which flags a side-car runs, its pod says; leases of others are none of ours.
        expected.push("pod/csi/ctl-0");
        expected.sort_unstable();
        assert_eq!(reads(&question, &seen), expected);
        for what in ["pods", "persistentvolumeclaims", "events about claims"] {
            let why = "no".to_owned();
            seen.unseen.push(Unseen { what: what.to_owned(), why, forbidden: true });
        }
        expected.extend(["pods in shop", "persistentvolumeclaims in shop", "events in shop"]);
        expected.sort_unstable();
        assert_eq!(reads(&question, &seen), expected);
    }

    #[test]
    fn of_a_cluster_what_was_written_last_is_read_whole() {
        let volume = |name: String, revision: u64, phase: &str| {
            json!({
                "kind": "PersistentVolume", "status": { "phase": phase },
                "metadata": { "name": name, "uid": name, "resourceVersion": revision.to_string() },
            })
        };
        let mut seen = Snapshot::new(Timestamp::UNIX_EPOCH);
        for number in 0..200_u64 {
            seen.take(volume(format!("kept-{number}"), 1_000 + number, "Released")).unwrap();
            seen.take(volume(format!("used-{number}"), 2_000 + number, "Bound")).unwrap();
        }
        let question = Question::Cluster("shop".to_owned());
        let volumes = |seen: &Snapshot| -> BTreeSet<String> {
            reads(&question, seen).into_iter().filter(|read| read.starts_with("pv/")).collect()
        };
        assert_eq!(volumes(&seen), BTreeSet::new(), "of what is known in part nothing is the last");
        seen.note_listed::<PersistentVolume>();
        let expected: BTreeSet<String> = (190..200).map(|number| format!("pv/used-{number}")).collect();
        assert_eq!(volumes(&seen), expected);
    }

    #[test]
    fn a_drain_reads_the_nodes_pods_and_what_they_and_its_attachments_name() {
        let question = Question::Drain("a".into());
        let common = ["csidrivers", "leases", "node/a", "pods on a", "volumeattachments"];
        assert_eq!(reads(&question, &seen([])), common);
        let mut ending = pod("p", "a");
        ending["metadata"]["deletionTimestamp"] = json!("1970-01-02T00:00:00Z");
        ending["status"] = json!({ "containerStatuses": [{ "state": { "running": {} } }] });
        let attachment = |volume: &str, node: &str| {
            json!({
                "kind": "VolumeAttachment", "metadata": { "name": format!("{volume}-{node}") },
                "spec": { "attacher": "d", "nodeName": node, "source": { "persistentVolumeName": volume } },
            })
        };
        let claim = json!({
            "kind": "PersistentVolumeClaim", "metadata": { "name": "data", "namespace": "shop" },
            "spec": { "volumeName": "pv1" },
        });
        let seen = seen([ending, claim, attachment("pv2", "a"), attachment("pv3", "b")]);
        let mut expected = common.to_vec();
        expected.extend(["pvc/shop/data", "pv/pv1", "pv/pv2"]);
        expected.sort_unstable();
        assert_eq!(reads(&question, &seen), expected);
    }

    #[test]
    fn a_change_and_a_repair_read_everything_and_where_that_is_forbidden_their_namespace() {
        let claim = ClaimKey::new("shop", "data");
        let mut cluster = CLUSTER.to_vec();
        cluster.retain(|read| !read.starts_with("events"));
        let mut nothing = seen([]);
        for question in [
            Question::Change(WhatIfChange::Bind("shop".to_owned(), Box::new(json!({})))),
            Question::Repair(Repair::Relink(claim.clone(), "pv1".into())),
            Question::Repair(Repair::Unstick("csi-1".into())),
        ] {
            assert_eq!(reads(&question, &nothing), cluster, "{question:?}");
        }
        cluster.insert(1, "deployments of mooring");
        for change in [WhatIfChange::Taint("a".into()), WhatIfChange::DeletePod(PodKey::new("shop", "p"))] {
            assert_eq!(reads(&Question::Change(change), &nothing), cluster);
        }
        let forbidden = Unseen { what: "pods".to_owned(), why: "no".to_owned(), forbidden: true };
        nothing.unseen.push(forbidden);
        let found = reads(&Question::Change(WhatIfChange::DeleteClaim(claim)), &nothing);
        for read in ["pods in shop", "pvc/shop/data"] {
            assert!(found.contains(&read.to_owned()), "{read}: {found:?}");
        }
    }
}
