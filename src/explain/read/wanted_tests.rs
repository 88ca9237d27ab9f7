//! What is read for each question, as tables.

use apiserver::{
    ids::ClaimKey,
    kinds::{CsiDriver, ObjectRef},
};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    attach_detach::state::desired::volume_name::VolumeId,
    explain::{
        answer::needed,
        snapshot::{LEASES, Snapshot, Unseen},
        subject,
    },
};

fn claim(volume: &str) -> Value {
    json!({
        "kind": "PersistentVolumeClaim", "metadata": { "name": "data", "namespace": "shop" },
        "spec": { "volumeName": volume, "storageClassName": "fast" },
        "status": { "phase": if volume.is_empty() { "Pending" } else { "Bound" } },
    })
}

fn volume(mode: &str) -> Value {
    json!({
        "kind": "PersistentVolume", "metadata": { "name": "pv1" },
        "spec": {
            "accessModes": [mode], "csi": { "driver": "d", "volumeHandle": "h" },
            "claimRef": { "namespace": "shop", "name": "data", "uid": "u0" },
        },
    })
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

fn running() -> Value {
    let mut pod = pod("p", "a");
    pod["status"] = json!({ "phase": "Running" });
    pod
}

fn attachment(node: &str, attached: bool) -> Value {
    let name = VolumeId::csi(&"d".into(), "h").attachment_name(&node.into());
    json!({
        "kind": "VolumeAttachment", "metadata": { "name": name },
        "spec": { "attacher": "d", "nodeName": node, "source": { "persistentVolumeName": "pv1" } },
        "status": { "attached": attached },
    })
}

fn driver(attaches: bool) -> Value {
    json!({ "kind": "CSIDriver", "metadata": { "name": "d" }, "spec": { "attachRequired": attaches } })
}

fn class() -> Value {
    json!({ "kind": "StorageClass", "metadata": { "name": "fast" }, "provisioner": "p" })
}

fn node(name: &str) -> Value {
    let managed = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true" });
    json!({
        "kind": "Node", "metadata": { "name": name, "annotations": managed },
        "status": { "volumesAttached": [{ "name": "kubernetes.io/csi/d^h", "devicePath": "" }] },
    })
}

pub(super) fn seen(objects: impl IntoIterator<Item = Value>) -> Snapshot {
    let mut snapshot = Snapshot::new(Timestamp::UNIX_EPOCH);
    for (number, mut object) in objects.into_iter().enumerate() {
        object["metadata"]["uid"] = json!(format!("u{number}"));
        object["metadata"]["resourceVersion"] = json!("7");
        snapshot.take(object).unwrap();
    }
    snapshot
}

/// The reads, as what could not be seen is named, with attachments by their nodes.
fn reads(subject: &str, seen: &Snapshot) -> Vec<String> {
    let subject = subject::parse(&[subject], "shop").unwrap();
    let by_node = |node: &str| {
        let name = VolumeId::csi(&"d".into(), "h").attachment_name(&node.into());
        (format!("volumeattachment/{name}"), format!("va on {node}"))
    };
    let names = [by_node("a"), by_node("b")];
    let mut reads: Vec<String> = needed(&subject, seen)
        .iter()
        .map(|read| {
            let text = read.to_string();
            names.iter().fold(text, |text, (name, short)| text.replace(name, short))
        })
        .filter(|read| !read.starts_with("events"))
        .collect();
    reads.sort();
    reads
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn each_answer_leads_to_the_reads_that_it_calls_for_and_to_no_others() {
    let absent = |mut snapshot: Snapshot, node: &str| {
        let name = VolumeId::csi(&"d".into(), "h").attachment_name(&node.into());
        snapshot.note_absent(ObjectRef::Attachment(name));
        snapshot
    };
    let rwo = "ReadWriteOnce";
    let bound = || [claim("pv1"), volume(rwo)];
    let cases: Vec<(&str, &str, Snapshot, &[&str])> = vec![
        ("nothing is known", "pvc/data", seen([]), &["pvc/shop/data"]),
        (
            "a claim that looks for a volume",
            "pvc/data",
            seen([claim("")]),
            &["leases", "persistentvolumes", "pods in shop", "pvc/shop/data", "storageclasses"],
        ),
        ("a bound claim", "pvc/data", seen([claim("pv1")]), &["pods in shop", "pv/pv1", "pvc/shop/data"]),
        (
            "without a pod nothing is to be attached",
            "pvc/data",
            seen(bound().into_iter().chain([driver(true)])),
            &["csidriver/d", "pods in shop", "pv/pv1", "pvc/shop/data"],
        ),
        (
            "a pod on a node: the attachment there, by its name",
            "pvc/data",
            seen(bound().into_iter().chain([driver(true), pod("p", "a")])),
            &["csidriver/d", "csinode/a", "node/a", "pods in shop", "pv/pv1", "pvc/shop/data", "va on a"],
        ),
        (
            "a driver that does not attach",
            "pvc/data",
            seen(bound().into_iter().chain([driver(false), pod("p", "a")])),
            &["csidriver/d", "pods in shop", "pv/pv1", "pvc/shop/data"],
        ),
        (
            "s1 attached, and not running yet: it may be on a second node, where no pod is left",
            "pod/p",
            seen(bound().into_iter().chain([node("a"), driver(true), pod("p", "a"), attachment("a", true)])),
            &[
                "csidriver/d",
                "csinode/a",
                "node/a",
                "pod/shop/p",
                "pods in shop",
                "pv/pv1",
                "pvc/shop/data",
                "va on a",
                "volumeattachments",
            ],
        ),
        (
            "attached as it is to be: no list but of those that may have it elsewhere",
            "pod/p",
            seen(bound().into_iter().chain([node("a"), driver(true), running(), attachment("a", true)])),
            &[
                "csidriver/d",
                "csinode/a",
                "node/a",
                "pod/shop/p",
                "pods in shop",
                "pv/pv1",
                "pvc/shop/data",
                "va on a",
            ],
        ),
        (
            "not attached, and for one node only: who holds it",
            "pod/p",
            absent(seen(bound().into_iter().chain([driver(true), pod("p", "a")])), "a"),
            &[
                "csidriver/d",
                "csinode/a",
                "leases",
                "node/a",
                "pod/shop/p",
                "pods in shop",
                "pv/pv1",
                "pvc/shop/data",
                "va on a",
                "volumeattachments",
            ],
        ),
        (
            "s43 it waits for long, and no attachment tells who has it: nodes do",
            "pod/p",
            {
                let mut waiting = pod("p", "a");
                waiting["metadata"]["creationTimestamp"] = json!("1969-12-31T23:50:00Z");
                absent(seen(bound().into_iter().chain([node("a"), driver(true), waiting])), "a")
            },
            &[
                "csidriver/d",
                "csinode/a",
                "leases",
                "node/a",
                "nodes",
                "pod/shop/p",
                "pods in shop",
                "pv/pv1",
                "pvc/shop/data",
                "va on a",
                "volumeattachments",
            ],
        ),
        (
            "the node that holds it",
            "pod/p",
            absent(
                seen(bound().into_iter().chain([driver(true), pod("p", "a"), attachment("b", true)])),
                "a",
            ),
            &[
                "csidriver/d",
                "csinode/a",
                "csinode/b",
                "leases",
                "node/a",
                "node/b",
                "pod/shop/p",
                "pods in shop",
                "pv/pv1",
                "pvc/shop/data",
                "va on a",
                "volumeattachments",
            ],
        ),
        (
            "for many nodes: it only waits for its attacher",
            "pod/p",
            seen([
                claim("pv1"),
                volume("ReadWriteMany"),
                driver(true),
                pod("p", "a"),
                attachment("a", false),
            ]),
            &[
                "csidriver/d",
                "csinode/a",
                "leases",
                "node/a",
                "pod/shop/p",
                "pv/pv1",
                "pvc/shop/data",
                "va on a",
            ],
        ),
        (
            "a volume",
            "pv/pv1",
            seen([volume(rwo), attachment("b", true)]),
            &[
                "csidriver/d",
                "csinode/b",
                "node/b",
                "pods in shop",
                "pv/pv1",
                "pvc/shop/data",
                "volumeattachments",
            ],
        ),
        (
            "a volume whose claim names none: whose it is, all claims tell",
            "pv/pv1",
            seen([volume(rwo), claim("")]),
            &[
                "csidriver/d",
                "leases",
                "persistentvolumeclaims",
                "persistentvolumes",
                "pods in shop",
                "pv/pv1",
                "pvc/shop/data",
                "storageclasses",
                "volumeattachments",
            ],
        ),
        (
            "a volume whose claim is gone",
            "pv/pv1",
            {
                let mut snapshot = seen([volume(rwo)]);
                snapshot.note_absent(ObjectRef::Claim(ClaimKey::new("shop", "data")));
                snapshot
            },
            &[
                "csidriver/d",
                "persistentvolumeclaims",
                "pods in shop",
                "pv/pv1",
                "pvc/shop/data",
                "volumeattachments",
            ],
        ),
        (
            "a volume that a pod waits for",
            "pv/pv1",
            seen([volume(rwo), driver(true), pod("p", "a"), attachment("b", true)]),
            &[
                "csidriver/d",
                "csinode/a",
                "csinode/b",
                "node/a",
                "node/b",
                "pods in shop",
                "pv/pv1",
                "pvc/shop/data",
                "va on a",
                "volumeattachments",
            ],
        ),
        (
            "a node: its attachments, and what its pods name",
            "node/a",
            seen(bound().into_iter().chain([node("a"), driver(true), pod("p", "a"), attachment("a", true)])),
            &[
                "csidriver/d",
                "csinode/a",
                "node/a",
                "pods on a",
                "pv/pv1",
                "pvc/shop/data",
                "va on a",
                "volumeattachments",
            ],
        ),
        (
            "a class, and which of its claims are to grow",
            "sc/fast",
            seen([class()]),
            &["leases", "persistentvolumeclaims", "persistentvolumes", "storageclass/fast", "storageclasses"],
        ),
        (
            "a class of whose provisioner nothing is seen",
            "sc/fast",
            {
                let mut snapshot = seen([class()]);
                snapshot.note_read(LEASES);
                snapshot.note_listed::<CsiDriver>();
                snapshot
            },
            &["leases", "persistentvolumeclaims", "persistentvolumes", "storageclass/fast", "storageclasses"],
        ),
    ];
    for (name, subject, seen, expected) in cases {
        let mut expected = expected.to_vec();
        // Whether a program is there, its lease and its driver tell together.
        if expected.contains(&"leases") {
            expected.push("csidrivers");
            expected.sort_unstable();
        }
        assert_eq!(reads(subject, &seen), expected, "{name}");
    }
}

#[test]
fn an_attachment_leads_to_its_node_and_while_it_goes_to_those_who_wait() {
    let name = VolumeId::csi(&"d".into(), "h").attachment_name(&"a".into());
    let subject = format!("va/{name}");
    let mut going = attachment("a", true);
    going["metadata"]["deletionTimestamp"] = json!("1970-01-02T00:00:00Z");
    // It may be on a second node (S1).
    let common = [
        "csidriver/d",
        "csinode/a",
        "node/a",
        "pods on a",
        "pv/pv1",
        "pvc/shop/data",
        "va on a",
        "volumeattachments",
    ];
    assert_eq!(reads(&subject, &seen([attachment("a", true), volume("ReadWriteOnce")])), common);
    let mut expected = common.to_vec();
    expected.extend(["csidrivers", "leases", "pods in shop"]);
    expected.sort_unstable();
    assert_eq!(reads(&subject, &seen([going, volume("ReadWriteOnce")])), expected);
}

#[test]
fn what_may_not_be_seen_is_not_waited_for() {
    let mut snapshot = seen([claim("pv1"), volume("ReadWriteOnce"), pod("p", "a")]);
    let deny = |snapshot: &mut Snapshot, what: &str| {
        let why = "forbidden".to_owned();
        snapshot.unseen.push(Unseen { what: what.to_owned(), why, forbidden: true });
    };
    assert!(!reads("pod/p", &snapshot).contains(&"va on a".to_owned()));
    deny(&mut snapshot, "csidriver/d");
    assert!(reads("pod/p", &snapshot).contains(&"va on a".to_owned()));
    let name = VolumeId::csi(&"d".into(), "h").attachment_name(&"a".into());
    deny(&mut snapshot, &format!("volumeattachment/{name}"));
    assert!(reads("pod/p", &snapshot).contains(&"leases".to_owned()));
    deny(&mut snapshot, "leases");
    assert!(reads("pod/p", &snapshot).contains(&"leases in kube-system".to_owned()));
}
