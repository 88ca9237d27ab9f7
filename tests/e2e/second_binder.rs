//! What goes wrong around the binder: another one at work (S14, the test plays it), a provisioner that
//! cannot use the node that was chosen, a claim that nothing fits.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use test_support::{
    actors::Reaction,
    cluster::{NAMESPACE, VolumeShape, patch, patch_status_as, until},
};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("second_binder_stops_every_release", stops_every_release)
            .also_real("kube-apiserver keeps the field managers."),
        story("second_binder_is_not_a_populator", is_not_a_populator),
        story("second_binder_is_not_a_person_nor_a_backup_tool", is_not_a_person),
        story("second_binder_is_not_a_restore_an_expansion_nor_an_editor", is_not_a_restore),
        story("provision_starts_over_on_another_node", starts_over),
        story("explained_why_a_claim_waits", explained),
    ]
}

async fn stops_every_release(stage: Stage) {
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.bound_pair("v1", "c1").await;
    cluster.bound_pair("v2", "c2").await;
    daemon.shows("mooring_alarm{alarm=\"second_binder\"} 0").await;

    // The other one gives the volume up; the daemon mends it.
    let volumes = cluster.all::<PersistentVolume>();
    let available = json!({ "status": { "phase": "Available" } });
    patch_status_as(KCM, &volumes, "v1", available.clone()).await;
    cluster.volume_phase("v1", "Bound").await;
    daemon.page_says("/debug/binder", "\"manager\":\"kube-controller-manager\"").await;
    daemon.shows("mooring_alarm{alarm=\"second_binder\"} 0").await;
    cluster.bound_pair("v4", "c4").await;
    patch_status_as(KCM, &volumes, "v4", available).await;
    cluster.volume_phase("v4", "Bound").await;
    let alarm = "alarms ok: second_binder: another binder is at work (kube-controller-manager wrote status.phase of pv/v4)";
    daemon.page_says("/readyz?verbose", alarm).await;
    daemon.shows("mooring_alarm{alarm=\"second_binder\"} 1").await;

    // Binding goes on, releasing does not.
    cluster.delete_claim("c2").await;
    cluster.bound_pair("v3", "c3").await;
    let volume = volumes.get("v2").await.unwrap();
    assert_eq!(volume.status.unwrap().phase.unwrap(), "Bound");
    let explained: Value = serde_json::from_str(&daemon.page("/debug/binder").await).unwrap();
    let waiting = explained["waiting"].as_array().unwrap();
    let volume = waiting.iter().find(|row| row["volume"] == "v2").unwrap();
    assert_eq!(volume["reason"], "ForeignWriter", "{explained}");
}

/// The manager under whose name kube-controller-manager writes.
const KCM: &str = "kube-controller-manager";

/// A populator fills a volume through a claim of its own and hands it over to the claim that is to have it. It waits
/// for the former to be Lost.
async fn is_not_a_populator(stage: Stage) {
    // The former claim may still be Bound when the daemon binds the volume to the other: that is the populator's doing.
    stage.allows("S18 ");
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.bound_pair("v1", "prime").await;
    cluster.bound_pair("v2", "c2").await;
    let target =
        cluster.shaped_claim("target", &VolumeShape { capacity: "1Gi", ..VolumeShape::default() }).await;
    let uid = target.metadata.uid.unwrap();
    let reference = json!({ "name": "target", "uid": uid, "resourceVersion": null });
    let params = PatchParams { field_manager: Some("populator".to_owned()), ..PatchParams::default() };
    let body = Patch::Merge(json!({ "spec": { "claimRef": reference } }));
    cluster.all::<PersistentVolume>().patch("v1", &params, &body).await.unwrap();
    cluster.claim_phase("prime", "Lost").await;
    cluster.bound("target", "v1").await;
    cluster.delete_claim("c2").await;
    cluster.volume_phase("v2", "Released").await;
    daemon.shows("mooring_alarm{alarm=\"second_binder\"} 0").await;
    daemon.shows("mooring_foreign_writes_total{kind=\"phase_changed\"} 0").await;
}

/// A user edits phases by hand on several volumes, and a backup tool makes a bound pair anew without UID.
async fn is_not_a_person(stage: Stage) {
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    let volumes = cluster.all::<PersistentVolume>();
    for number in 1..=3 {
        let (volume, claim) = (format!("v{number}"), format!("c{number}"));
        cluster.bound_pair(&volume, &claim).await;
        let available = json!({ "status": { "phase": "Available" } });
        patch_status_as("kubectl-edit", &volumes, &volume, available).await;
        cluster.volume_phase(&volume, "Bound").await;
    }
    daemon.shows("mooring_foreign_writes_total{kind=\"phase_changed\"} 3").await;
    for number in 1..=3 {
        cluster.delete_claim(&format!("c{number}")).await;
        cluster.volume_phase(&format!("v{number}"), "Released").await;
    }
    // The tool restores claim and volume, each naming the other, and the volume's phase is reset.
    volumes.delete("v1", &DeleteParams::default()).await.unwrap();
    patch(&volumes, "v1", json!({ "metadata": { "finalizers": null } })).await;
    until(volumes.clone(), "v1", "it is gone", |volume: Option<&PersistentVolume>| volume.is_none()).await;
    cluster.bound_pair("v1", "c1").await;
    cluster.delete_claim("c1").await;
    cluster.volume_phase("v1", "Released").await;
    daemon.shows("mooring_alarm{alarm=\"second_binder\"} 0").await;
}

/// Writes to claims and volumes that are none of a binder's business, though one of them bears its name. None of them
/// is looked up, and everything is released in the end.
async fn is_not_a_restore(stage: Stage) {
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    let volumes = cluster.all::<PersistentVolume>();
    let claims = cluster.namespaced::<PersistentVolumeClaim>();
    for number in 1..=3 {
        cluster.bound_pair(&format!("v{number}"), &format!("c{number}")).await;
    }

    // The claim grows: the expander and the resizer write sizes and conditions.
    let resizing = [json!({ "type": "Resizing", "status": "True" })];
    let capacity = json!({ "storage": "2Gi" });
    patch_status_as(KCM, &claims, "c1", json!({ "status": { "conditions": resizing } })).await;
    patch_as("csi-resizer", &volumes, "v1", json!({ "spec": { "capacity": capacity } })).await;
    patch_status_as(
        "csi-resizer",
        &claims,
        "c1",
        json!({ "status": { "capacity": capacity, "conditions": null } }),
    )
    .await;

    // An administrator takes the UID out of a claimRef: it is taken back. (S45) Then the claimRef gets the name of
    // another claim, until an event tells what that did.
    let uid = claims.get("c2").await.unwrap().metadata.uid.unwrap();
    patch_as("kubectl-edit", &volumes, "v2", json!({ "spec": { "claimRef": { "uid": null } } })).await;
    until(volumes.clone(), "v2", "it has the UID again", |volume: Option<&PersistentVolume>| {
        let reference = volume.and_then(|volume| volume.spec.as_ref()?.claim_ref.as_ref());
        reference.is_some_and(|reference| reference.uid.as_ref() == Some(&uid))
    })
    .await;
    let reference =
        |name: &str, uid: Option<&str>| json!({ "spec": { "claimRef": { "name": name, "uid": uid } } });
    patch_as("kubectl-edit", &volumes, "v2", reference("other", None)).await;
    cluster.event("c2", "LostMisbound").await;
    patch_as("kubectl-edit", &volumes, "v2", reference("c2", Some(&uid))).await;
    cluster.bound("c2", "v2").await;

    // A backup tool makes a pair anew: the claim names the volume, the claimRef has no UID, the phases are empty.
    cluster.delete_claim("c3").await;
    cluster.volume_phase("v3", "Released").await;
    volumes.delete("v3", &DeleteParams::default()).await.unwrap();
    patch_as("velero-server", &volumes, "v3", json!({ "metadata": { "finalizers": null } })).await;
    until(volumes.clone(), "v3", "it is gone", |volume: Option<&PersistentVolume>| volume.is_none()).await;
    let reference =
        json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": "c3" });
    cluster.shaped_volume("v3", &VolumeShape::default(), reference).await;
    cluster.claim_for("c3", "v3").await;
    cluster.bound("c3", "v3").await;

    for number in 1..=3 {
        cluster.delete_claim(&format!("c{number}")).await;
        cluster.volume_phase(&format!("v{number}"), "Released").await;
    }
    daemon.shows("mooring_alarm{alarm=\"second_binder\"} 0").await;
    daemon.shows("mooring_foreign_writes_total{kind=\"phase_changed\"} 0").await;
    assert!(!daemon.page("/debug/binder").await.contains("\"manager\""));
}

/// A merge patch under the name of a manager.
async fn patch_as<K>(manager: &str, api: &Api<K>, name: &str, body: Value)
where
    K: Clone + DeserializeOwned + Debug,
{
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    api.patch(name, &params, &Patch::Merge(body)).await.unwrap();
}

async fn starts_over(stage: Stage) {
    let provisioner = stage.provisioner();
    provisioner.change(|behaviour| {
        behaviour.create = Reaction::Fail("no room on this node".to_owned());
        behaviour.reschedule = true;
    });
    let _daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.class("late", "WaitForFirstConsumer").await;
    let shape = VolumeShape { class: "late", ..VolumeShape::default() };
    let claim = cluster.shaped_claim("c1", &shape).await;
    let claims = cluster.namespaced::<PersistentVolumeClaim>();
    let select =
        |node: &str| json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": node } } });
    patch(&claims, "c1", select("n1")).await;
    cluster.event("c1", "ExternalProvisioning").await;
    let what = "the provisioner gives the chosen node back";
    until(claims.clone(), "c1", what, |claim: Option<&PersistentVolumeClaim>| {
        claim.is_some_and(|claim| {
            let annotations = claim.metadata.annotations.as_ref();
            annotations
                .is_none_or(|annotations| !annotations.contains_key("volume.kubernetes.io/selected-node"))
        })
    })
    .await;
    cluster.event("c1", "WaitForFirstConsumer").await;

    provisioner.change(|behaviour| behaviour.create = Reaction::default());
    patch(&claims, "c1", select("n2")).await;
    cluster.bound("c1", &format!("pvc-{}", claim.metadata.uid.unwrap())).await;
}

async fn explained(stage: Stage) {
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.volume("v1").await;
    cluster.volume_phase("v1", "Available").await;
    cluster.shaped_claim("c1", &VolumeShape { capacity: "2Gi", ..VolumeShape::default() }).await;
    cluster.event("c1", "FailedBinding").await;
    let explained: Value = serde_json::from_str(&daemon.page("/debug/binder").await).unwrap();
    let claim = &explained["waiting"][0];
    assert_eq!(claim["reason"], "NoClassAndNoMatch", "{explained}");
    daemon.shows("mooring_waiting{kind=\"claim\",reason=\"NoClassAndNoMatch\"} 1").await;
}
