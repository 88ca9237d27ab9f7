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
    let name = VolumeId::csi(&"d".into(), "h").attachment_name(&"a".into());
    let of_attachment = format!("va/{name}");
    let rwo = "ReadWriteOnce";
    // Beside a claim and its volume.
    let with = |others: Vec<Value>| seen([claim("pv1"), volume(rwo)].into_iter().chain(others));
    let not_attached = |others: Vec<Value>| {
        let mut snapshot = with(others);
        snapshot.note_absent(ObjectRef::Attachment(name.clone()));
        snapshot
    };
    let made = |mut object: Value, field: &str, at: &str| {
        object["metadata"][field] = json!(at);
        object
    };
    let cases: Vec<(&str, &str, Snapshot, &str)> = vec![
        ("nothing is known", "pvc/data", seen([]), "pvc/shop/data"),
        (
            "a claim that looks for a volume",
            "pvc/data",
            seen([claim("")]),
            "leases, persistentvolumes, pods in shop, pvc/shop/data, storageclasses",
        ),
        ("a bound claim", "pvc/data", seen([claim("pv1")]), "pods in shop, pv/pv1, pvc/shop/data"),
        (
            "without a pod nothing is to be attached",
            "pvc/data",
            with(vec![driver(true)]),
            "csidriver/d, pods in shop, pv/pv1, pvc/shop/data",
        ),
        (
            "a pod on a node: the attachment there, by its name",
            "pvc/data",
            with(vec![driver(true), pod("p", "a")]),
            "csidriver/d, csinode/a, node/a, pods in shop, pv/pv1, pvc/shop/data, va on a",
        ),
        (
            "a driver that does not attach",
            "pvc/data",
            with(vec![driver(false), pod("p", "a")]),
            "csidriver/d, pods in shop, pv/pv1, pvc/shop/data",
        ),
        (
            "s1 attached, and not running yet: it may be on a second node, where no pod is left",
            "pod/p",
            with(vec![node("a"), driver(true), pod("p", "a"), attachment("a", true)]),
            "csidriver/d, csinode/a, node/a, pod/shop/p, pods in shop, pv/pv1, pvc/shop/data, va on a, \
             volumeattachments",
        ),
        (
            "attached as it is to be: no list but of those that may have it elsewhere",
            "pod/p",
            with(vec![node("a"), driver(true), running(), attachment("a", true)]),
            "csidriver/d, csinode/a, node/a, pod/shop/p, pods in shop, pv/pv1, pvc/shop/data, va on a",
        ),
        (
            "not attached, and for one node only: who holds it",
            "pod/p",
            not_attached(vec![driver(true), pod("p", "a")]),
            "csidriver/d, csinode/a, leases, node/a, pod/shop/p, pods in shop, pv/pv1, pvc/shop/data, \
             va on a, volumeattachments",
        ),
        (
            "s43 it waits for long, and no attachment tells who has it: nodes do",
            "pod/p",
            not_attached(vec![
                node("a"),
                driver(true),
                made(pod("p", "a"), "creationTimestamp", "1969-12-31T23:50:00Z"),
            ]),
            "csidriver/d, csinode/a, leases, node/a, nodes, pod/shop/p, pods in shop, pv/pv1, \
             pvc/shop/data, va on a, volumeattachments",
        ),
        (
            "the node that holds it",
            "pod/p",
            not_attached(vec![driver(true), pod("p", "a"), attachment("b", true)]),
            "csidriver/d, csinode/a, csinode/b, leases, node/a, node/b, pod/shop/p, pods in shop, pv/pv1, \
             pvc/shop/data, va on a, volumeattachments",
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
            "csidriver/d, csinode/a, leases, node/a, pod/shop/p, pv/pv1, pvc/shop/data, va on a",
        ),
        (
            "a volume",
            "pv/pv1",
            seen([volume(rwo), attachment("b", true)]),
            "csidriver/d, csinode/b, node/b, pods in shop, pv/pv1, pvc/shop/data, volumeattachments",
        ),
        (
            "a volume whose claim names none: whose it is, all claims tell",
            "pv/pv1",
            seen([volume(rwo), claim("")]),
            "csidriver/d, leases, persistentvolumeclaims, persistentvolumes, pods in shop, pv/pv1, \
             pvc/shop/data, storageclasses, volumeattachments",
        ),
        (
            "a volume whose claim is gone",
            "pv/pv1",
            {
                let mut snapshot = seen([volume(rwo)]);
                snapshot.note_absent(ObjectRef::Claim(ClaimKey::new("shop", "data")));
                snapshot
            },
            "csidriver/d, persistentvolumeclaims, pods in shop, pv/pv1, pvc/shop/data, volumeattachments",
        ),
        (
            "a volume that a pod waits for",
            "pv/pv1",
            seen([volume(rwo), driver(true), pod("p", "a"), attachment("b", true)]),
            "csidriver/d, csinode/a, csinode/b, node/a, node/b, pods in shop, pv/pv1, pvc/shop/data, \
             va on a, volumeattachments",
        ),
        (
            "a node: its attachments, and what its pods name",
            "node/a",
            with(vec![node("a"), driver(true), pod("p", "a"), attachment("a", true)]),
            "csidriver/d, csinode/a, node/a, pods on a, pv/pv1, pvc/shop/data, va on a, volumeattachments",
        ),
        (
            "a class, and which of its claims are to grow",
            "sc/fast",
            seen([class()]),
            "leases, persistentvolumeclaims, persistentvolumes, storageclass/fast, storageclasses",
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
            "leases, persistentvolumeclaims, persistentvolumes, storageclass/fast, storageclasses",
        ),
        (
            "s1 an attachment leads to its node; the volume may be on a second one",
            &of_attachment,
            seen([attachment("a", true), volume(rwo)]),
            "csidriver/d, csinode/a, node/a, pods on a, pv/pv1, pvc/shop/data, va on a, volumeattachments",
        ),
        (
            "while it goes, to those who wait",
            &of_attachment,
            seen([made(attachment("a", true), "deletionTimestamp", "1970-01-02T00:00:00Z"), volume(rwo)]),
            "csidriver/d, csinode/a, leases, node/a, pods in shop, pods on a, pv/pv1, pvc/shop/data, \
             va on a, volumeattachments",
        ),
    ];
    for (name, subject, seen, expected) in cases {
        // Whether a program is there, its lease and its driver tell together.
        let expected = expected.replace("leases", "csidrivers, leases");
        let mut expected: Vec<&str> = expected.split(", ").collect();
        expected.sort_unstable();
        assert_eq!(reads(subject, &seen), expected, "{name}");
    }
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
    for there in ["leases in kube-system", "leases in mooring-system"] {
        assert!(reads("pod/p", &snapshot).contains(&there.to_owned()), "{there}");
    }
}
