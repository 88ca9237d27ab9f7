//! What goes wrong around the binder: another one at work (S14, the test plays it), a provisioner that
//! cannot use the node that was chosen, a claim that nothing fits.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

use crate::{
    stage::{Stage, Story, story},
    support::{
        actors::Reaction,
        cluster::{VolumeShape, patch, patch_status, until},
    },
};

pub fn stories() -> Vec<Story> {
    vec![
        story("second_binder_stops_every_release", stops_every_release),
        story("provision_starts_over_on_another_node", starts_over),
        story("explained_why_a_claim_waits", explained),
    ]
}

async fn stops_every_release(stage: Stage) {
    stage.expect_violations();
    let daemon = stage.daemon().await;
    let cluster = &stage.cluster;
    cluster.bound_pair("v1", "c1").await;
    cluster.bound_pair("v2", "c2").await;
    daemon.shows("mooring_alarm{alarm=\"second_binder\"} 0").await;

    // The other one gives the volume up; the daemon mends it.
    let volumes = cluster.all::<PersistentVolume>();
    patch_status(&volumes, "v1", json!({ "status": { "phase": "Available" } })).await;
    cluster.volume_phase("v1", "Bound").await;
    daemon.page_says("/readyz?verbose", "alarms ok: second_binder: pv/v1 was changed at revision").await;
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
    let event = cluster.event("c1", "NearestVolume").await;
    let expected = r#"the nearest volume is "v1", but it has "1Gi" of the "2Gi" asked for"#;
    assert_eq!(event.message.unwrap(), expected);
    let explained: Value = serde_json::from_str(&daemon.page("/debug/binder").await).unwrap();
    let claim = &explained["waiting"][0];
    assert_eq!(claim["reason"], "NoClassAndNoMatch", "{explained}");
    assert_eq!(claim["facts"]["nearest"][0]["wrong"][0]["code"], "TooSmall", "{explained}");
    daemon.shows("mooring_waiting{kind=\"claim\",reason=\"NoClassAndNoMatch\"} 1").await;
}
