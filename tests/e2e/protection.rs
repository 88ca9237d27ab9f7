//! The protection controllers, ours in place of the stock ones: what is used stays, and what is not goes.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::DeleteParams;
use test_support::daemon::Launch;

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("protection_of_what_is_used", protected)
            .also_real("kube-apiserver removes what has lost its last finalizer."),
    ]
}

async fn protected(stage: Stage) {
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let controllers =
        "--controllers=*,persistentvolumeclaim-protection-controller,persistentvolume-protection-controller";
    let daemon = stage.start_daemon(&Launch::alone().with(controllers), &stage.proxy).await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.bound_pair("v2", "c2").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    let (volumes, claims) =
        (cluster.all::<PersistentVolume>(), cluster.namespaced::<PersistentVolumeClaim>());
    let lists =
        || stage.requests().iter().filter(|entry| entry.verb == "list" && entry.resource == "pods").count();
    let before = lists();
    for (volume, claim) in [("v1", "c1"), ("v2", "c2")] {
        volumes.delete(volume, &DeleteParams::default()).await.unwrap();
        claims.delete(claim, &DeleteParams::default()).await.unwrap();
    }
    // No pod uses these: the claim goes, is found to be gone, and the volume after it.
    cluster.volume_gone("v2").await;
    assert!(claims.get_opt("c2").await.unwrap().is_none());
    let used = claims.get_opt("c1").await.unwrap().expect("a pod uses the claim");
    assert!(
        used.metadata.finalizers.is_some_and(|all| all.contains(&"kubernetes.io/pvc-protection".to_owned()))
    );
    assert!(volumes.get_opt("v1").await.unwrap().is_some(), "the volume is bound to it");
    assert_eq!(lists(), before + 1, "the pods are listed live before a claim goes, and not for one in use");

    cluster.remove_pod("p1").await;
    cluster.volume_gone("v1").await;
    drop(daemon);
}
