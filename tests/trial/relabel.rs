//! Tools that give a volume another claim: a volume populator, and a restore from a backup.
//!
//! In: the claims and the volume as they are. Out: the next step, which is one request; each is taken again until all is done.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use test_support::cluster::{Cluster, DRIVER, NAMESPACE};

/// The claim that a populator fills, and its Deployment.
pub const POPULATED: &str = "populated";

/// The claim of the populator, whose volume the other gets.
const PRIME: &str = "prime-populated";

/// The node that the scheduler has chosen for a claim's volume.
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// The claim that a restore brings back with its volume, and their Deployment.
pub const RESTORED: &str = "restored";

/// Steps that take longer are taken again.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a tool does next.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Done,
    Wait,
    MakeClaim,
    /// On this node.
    MakePrime(String),
    DeletePrime,
    /// Names the claim in the volume.
    Relabel,
    MakeVolume,
    DeleteClaim,
    DeleteVolume,
}

/// Has the claim populated. False if that is not done yet.
pub async fn populate(cluster: &Cluster) -> bool {
    matches!(tokio::time::timeout(PATIENCE, populate_on(cluster)).await, Ok(Ok(true)))
}

async fn populate_on(cluster: &Cluster) -> kube::Result<bool> {
    let (claims, volumes) =
        (cluster.namespaced::<PersistentVolumeClaim>(), cluster.all::<PersistentVolume>());
    let (user, prime) = (claims.get_opt(POPULATED).await?, claims.get_opt(PRIME).await?);
    let volume = match prime.as_ref().and_then(volume_of) {
        Some(name) => volumes.get_opt(name).await?,
        None => None,
    };
    let step = populator(user.as_ref(), prime.as_ref(), volume.as_ref());
    match &step {
        Step::MakeClaim => {
            let source = json!({ "apiGroup": "trial.mooring.dev", "kind": "Source", "name": "any" });
            make(&claims, claim(POPULATED, &json!({}), &json!({ "dataSourceRef": source }))).await?;
        }
        Step::MakePrime(node) => {
            make(&claims, claim(PRIME, &json!({ SELECTED_NODE: node }), &json!({}))).await?;
        }
        Step::DeletePrime => _ = claims.delete(PRIME, &DeleteParams::default()).await?,
        // As lib-volume-populator does it, without a precondition.
        Step::Relabel => {
            let user = user.map(|user| user.metadata).unwrap_or_default();
            let claim_ref = json!({
                "namespace": NAMESPACE, "name": POPULATED, "uid": user.uid, "resourceVersion": user.resource_version,
            });
            let patch = json!({ "spec": { "claimRef": claim_ref } });
            let name = volume.map(|volume| volume.name_any()).unwrap_or_default();
            volumes.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        _ => {}
    }
    Ok(step == Step::Done)
}

fn populator(
    user: Option<&PersistentVolumeClaim>,
    prime: Option<&PersistentVolumeClaim>,
    volume: Option<&PersistentVolume>,
) -> Step {
    let Some(user) = user else { return Step::MakeClaim };
    let selected = |claim: &PersistentVolumeClaim| claim.annotations().get(SELECTED_NODE).cloned();
    if is_going(&user.metadata) {
        return Step::Wait;
    }
    let Some(prime) = prime else {
        return match (volume_of(user), selected(user)) {
            (Some(_), _) => Step::Done,
            (None, Some(node)) => Step::MakePrime(node),
            (None, None) => Step::Wait,
        };
    };
    if is_going(&prime.metadata) {
        return Step::Wait;
    }
    if volume_of(user).is_some() {
        return Step::DeletePrime;
    }
    let phase = prime.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("Pending");
    match (phase, volume.and_then(claim_of)) {
        (_, Some(claim)) if user.metadata.uid.as_deref() == Some(claim) => Step::Wait,
        ("Bound", Some(claim)) if prime.metadata.uid.as_deref() == Some(claim) => Step::Relabel,
        // Its volume is gone, or is of a user's claim that is gone.
        ("Lost", _) => Step::DeletePrime,
        // Its node is not there any more, and no pod waits for this claim, so nobody chooses another.
        ("Pending", _) if selected(prime).is_none() => Step::DeletePrime,
        _ => Step::Wait,
    }
}

/// Has the volume and its claim restored. False if that is not done yet.
pub async fn restore(cluster: &Cluster) -> bool {
    matches!(tokio::time::timeout(PATIENCE, restore_on(cluster)).await, Ok(Ok(true)))
}

async fn restore_on(cluster: &Cluster) -> kube::Result<bool> {
    let (claims, volumes) =
        (cluster.namespaced::<PersistentVolumeClaim>(), cluster.all::<PersistentVolume>());
    let (claim_now, volume) = (claims.get_opt(RESTORED).await?, volumes.get_opt(RESTORED).await?);
    let step = restorer(claim_now.as_ref(), volume.as_ref());
    match step {
        Step::MakeVolume => make(&volumes, restored_volume()).await?,
        Step::DeleteVolume => _ = volumes.delete(RESTORED, &DeleteParams::default()).await?,
        Step::MakeClaim => {
            let names = json!({ "storageClassName": RESTORED, "volumeName": RESTORED });
            make(&claims, claim(RESTORED, &json!({}), &names)).await?;
        }
        Step::DeleteClaim => _ = claims.delete(RESTORED, &DeleteParams::default()).await?,
        _ => {}
    }
    Ok(step == Step::Done)
}

fn restorer(claim: Option<&PersistentVolumeClaim>, volume: Option<&PersistentVolume>) -> Step {
    let is_going_volume = volume.is_some_and(|volume| is_going(&volume.metadata));
    match (claim, volume) {
        (Some(claim), _) if is_going(&claim.metadata) => Step::Wait,
        (Some(_), Some(_)) if !is_going_volume => Step::Done,
        // It would be Lost.
        (Some(_), _) => Step::DeleteClaim,
        (None, None) => Step::MakeVolume,
        (None, Some(_)) if is_going_volume => Step::Wait,
        // It is as it was before the restore.
        (None, Some(volume)) if claim_of(volume).is_some() => Step::DeleteVolume,
        (None, Some(_)) => Step::MakeClaim,
    }
}

/// As Velero makes it: the disk is the former one, and `claimRef` has no UID.
fn restored_volume() -> Value {
    json!({
        "metadata": { "name": RESTORED, "labels": { "velero.io/restore-name": "trial" } },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": RESTORED,
            "persistentVolumeReclaimPolicy": "Retain", "csi": { "driver": DRIVER, "volumeHandle": RESTORED },
            "claimRef": { "kind": "PersistentVolumeClaim", "namespace": NAMESPACE, "name": RESTORED },
        },
    })
}

/// A claim with more than what all have.
fn claim(name: &str, annotations: &Value, more: &Value) -> Value {
    let mut spec = json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
        "resources": { "requests": { "storage": "1Gi" } },
    });
    json_patch::merge(&mut spec, more);
    json!({ "metadata": { "name": name, "annotations": annotations }, "spec": spec })
}

async fn make<K>(api: &Api<K>, object: Value) -> kube::Result<()>
where
    K: Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    let object = serde_json::from_value(object).expect("an object");
    api.create(&PostParams::default(), &object).await.map(|_| ())
}

fn is_going(metadata: &kube::api::ObjectMeta) -> bool {
    metadata.deletion_timestamp.is_some()
}

fn volume_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref()
}

/// The UID of the claim that has the volume.
fn claim_of(volume: &PersistentVolume) -> Option<&str> {
    volume.spec.as_ref()?.claim_ref.as_ref()?.uid.as_deref()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is<K: DeserializeOwned>(object: &Value) -> Option<K> {
        (!object.is_null()).then(|| serde_json::from_value(object.clone()).unwrap())
    }

    const GOING: &str = "2026-01-01T00:00:00Z";

    #[test]
    fn a_populator_takes_one_step_after_the_other() {
        let user = json!({ "metadata": { "uid": "u" } });
        let placed = json!({ "metadata": { "uid": "u", "annotations": { SELECTED_NODE: "a" } } });
        let going = json!({ "metadata": { "uid": "u", "deletionTimestamp": GOING } });
        let bound = json!({ "metadata": { "uid": "u" }, "spec": { "volumeName": "v" } });
        let prime = |phase: &str| {
            json!({
                "metadata": { "uid": "p", "annotations": { SELECTED_NODE: "a" } }, "status": { "phase": phase },
            })
        };
        let lonely = json!({ "metadata": { "uid": "p" } });
        let leaving = json!({ "metadata": { "uid": "p", "deletionTimestamp": GOING } });
        let volume = |claim: &str| json!({ "spec": { "claimRef": { "uid": claim } } });
        let none = Value::Null;
        let cases = [
            (&none, &none, none.clone(), Step::MakeClaim),
            (&none, &prime("Lost"), volume("former"), Step::MakeClaim),
            (&going, &none, none.clone(), Step::Wait),
            (&user, &none, none.clone(), Step::Wait),
            (&placed, &none, none.clone(), Step::MakePrime("a".to_owned())),
            (&placed, &prime("Pending"), none.clone(), Step::Wait),
            (&placed, &lonely, none.clone(), Step::DeletePrime),
            (&placed, &leaving, none.clone(), Step::Wait),
            (&placed, &prime("Bound"), none.clone(), Step::Wait),
            (&placed, &prime("Bound"), volume("p"), Step::Relabel),
            (&placed, &prime("Bound"), volume("u"), Step::Wait),
            (&placed, &prime("Lost"), volume("u"), Step::Wait),
            (&placed, &prime("Lost"), volume("former"), Step::DeletePrime),
            (&placed, &prime("Lost"), none.clone(), Step::DeletePrime),
            (&bound, &prime("Lost"), volume("u"), Step::DeletePrime),
            (&bound, &leaving, volume("u"), Step::Wait),
            (&bound, &none, none.clone(), Step::Done),
        ];
        for (user, prime, volume, expected) in cases {
            let step = populator(is(user).as_ref(), is(prime).as_ref(), is(&volume).as_ref());
            assert_eq!(step, expected, "{user} {prime} {volume}");
        }
    }

    #[test]
    fn a_restore_begins_when_what_was_before_is_gone() {
        let claim = json!({ "metadata": { "uid": "u" } });
        let going = json!({ "metadata": { "deletionTimestamp": GOING } });
        let former = json!({ "spec": { "claimRef": { "uid": "u" } } });
        let restored = json!({ "spec": { "claimRef": { "name": "restored" } } });
        let none = Value::Null;
        let cases = [
            (&none, &none, Step::MakeVolume),
            (&none, &former, Step::DeleteVolume),
            (&none, &going, Step::Wait),
            (&none, &restored, Step::MakeClaim),
            (&going, &former, Step::Wait),
            (&claim, &going, Step::DeleteClaim),
            (&claim, &none, Step::DeleteClaim),
            (&claim, &restored, Step::Done),
            (&claim, &former, Step::Done),
        ];
        for (claim, volume, expected) in cases {
            assert_eq!(restorer(is(claim).as_ref(), is(volume).as_ref()), expected, "{claim} {volume}");
        }
    }
}
