//! Work of several steps: its order, its waits, and what it leaves alone.

use std::{sync::Arc, time::Duration};

use apiserver::{
    call::CallError,
    ids::{PodKey, ResourceVersion, VolumeName},
    kinds::{
        Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, PodPhase, ReclaimPolicy,
        VolumePhase,
    },
    tables::Objects,
};
use serde_json::json;
use tokio::time::Instant;

use super::{
    HostPlugins,
    options::{PluginOptions, Recycler, Recyclers},
};
use crate::binder::{
    BinderOptions,
    calls::{Answer, Call, Directory, Op, Purpose, Target, WriteKind},
    controller::{Plan, Planner},
    decide::upkeep::IN_TREE_FINALIZER,
    reasons::VolumeReason,
    tests::{claim, decode},
};

fn released(revision: u64) -> PersistentVolume {
    decode(&json!({
        "metadata": {"name": "pv", "uid": "uid-pv", "resourceVersion": revision.to_string()},
        "spec": {
            "hostPath": {"path": "/data"}, "persistentVolumeReclaimPolicy": "Recycle",
            "claimRef": {"namespace": "ns", "name": "c", "uid": "gone"},
        },
        "status": {"phase": "Released"},
    }))
}

fn planner(objects: &Arc<Objects>, plugins: HostPlugins) -> Planner {
    let mut planner = Planner::new(Arc::clone(objects), BinderOptions::default());
    planner.state.plugins = Box::new(plugins);
    planner
}

fn host_path() -> HostPlugins {
    HostPlugins::new(PluginOptions { enable_hostpath_provisioner: true, ..PluginOptions::default() })
}

/// A planner that recycles, and a released volume.
fn with_recycler() -> (Arc<Objects>, Planner) {
    let recycler =
        Recycler { template: Recycler::default_template(), minimum_timeout: 60, increment_timeout: 30 };
    let recyclers = Some(Recyclers { host_path: recycler.clone(), nfs: recycler });
    let plugins = HostPlugins::new(PluginOptions { recyclers, ..PluginOptions::default() });
    let objects = Arc::new(Objects::default());
    objects.reset(vec![released(1)]);
    let planner = planner(&objects, plugins);
    (objects, planner)
}

/// A volume that is to be recycled, as its claim is proven gone.
fn to_recycle(now: Instant) -> (Arc<Objects>, Planner) {
    let (objects, mut planner) = with_recycler();
    planner.load(now);
    planner.lead(now);
    let proof = only(planner.plan(now));
    planner.answered(proof, Err(CallError::NotFound("c".into())), now, 0.0);
    (objects, planner)
}

/// A volume for which a recycler pod was made that does not run yet; and that pod.
fn recycling(now: Instant) -> (Arc<Objects>, Planner, Pod) {
    let (objects, mut planner) = to_recycle(now);
    let creation = only(planner.plan(now));
    assert_eq!(creation.call.write_kind(), Some(WriteKind::CreatePod));
    let Call::Write(write) = &creation.call else { panic!("{creation:?}") };
    let mut pod = write.request.body.clone().unwrap();
    pod["metadata"]["uid"] = json!("uid-pod");
    pod["metadata"]["resourceVersion"] = json!("7");
    let pod: Pod = decode(&pod);
    planner.answered(creation, Ok(Answer::Pod(pod.clone())), now, 0.0);
    (objects, planner, pod)
}

fn only(plan: Plan) -> Op {
    let [op] = <[Op; 1]>::try_from(plan.calls).unwrap();
    op
}

/// Between the proof and the start the volume changes: it is read again, and a start that fails takes
/// another proof.
#[test]
fn s23_a_recycler_pod_is_started_on_a_fresh_proof() {
    let now = Instant::now();
    let (objects, mut planner, _) = recycling(now);
    let read = |planner: &mut Planner| {
        let read = only(planner.plan(now));
        assert!(matches!(read.call, Call::Read { purpose: Purpose::ProveReleased, .. }), "{read:?}");
        read
    };
    let first = read(&mut planner);
    // The watch is ahead of the read.
    objects.apply(released(3));
    planner.changed(&ObjectRef::Volume(VolumeName::from("pv")), now);
    planner.answered(first, Ok(Answer::Volume(released(2))), now, 0.0);
    let second = read(&mut planner);
    // And then the read ahead of the watch.
    planner.answered(second, Ok(Answer::Volume(released(4))), now, 0.0);
    let start = only(planner.plan(now));
    assert_eq!(start.call.write_kind(), Some(WriteKind::StartPod));
    let busy = CallError::Throttled { message: "busy".into(), after: Duration::from_secs(7) };
    planner.answered(start, Err(busy), now, 0.0);
    assert!(planner.plan(now).calls.is_empty());
    let later = only(planner.plan(now + Duration::from_secs(7)));
    assert!(matches!(later.call, Call::Read { purpose: Purpose::ProveReleased, .. }), "{later:?}");
}

#[test]
fn l8_a_recycler_pod_that_the_list_lacks_is_gone_and_its_run_has_failed() {
    let now = Instant::now();
    let (objects, mut planner, pod) = recycling(now);
    planner.changed(&ObjectRef::Pod(pod.key()), now);
    let proof = only(planner.plan(now));
    assert!(matches!(proof.call, Call::Read { purpose: Purpose::ProveReleased, .. }), "{proof:?}");
    objects.pods.advance(ResourceVersion(8));
    objects.reset::<Pod>(vec![]);
    planner.changed(&ObjectRef::Pod(pod.key()), now);
    assert!(planner.plan(now).calls.is_empty(), "the volume is being read");
    planner.answered(proof, Ok(Answer::Volume(released(1))), now, 0.0);
    assert_eq!(only(planner.plan(now)).call.write_kind(), Some(WriteKind::VolumeFailed));
}

#[test]
fn s23_the_pod_has_the_name_that_kube_controller_manager_gives_it() {
    let now = Instant::now();
    let (_, mut planner) = to_recycle(now);
    let pod = ObjectRef::Pod(PodKey::new("default", "recycler-for-pv"));
    assert_eq!(only(planner.plan(now)).call.target(), Some(&pod));
}

/// Until its deletion is told of, it is not asked for again.
#[test]
fn a_recycler_pod_is_deleted_once() {
    let now = Instant::now();
    let (objects, mut planner, mut pod) = recycling(now);
    let read = only(planner.plan(now));
    planner.answered(read, Ok(Answer::Volume(released(1))), now, 0.0);
    let start = only(planner.plan(now));
    pod.metadata.resource_version = ResourceVersion(8);
    planner.answered(start, Ok(Answer::Pod(pod.clone())), now, 0.0);
    assert_eq!(planner.state.plugins.pods_at_work(&planner.state.objects).len(), 1);
    assert!(planner.plan(now).calls.is_empty());

    pod.metadata.resource_version = ResourceVersion(9);
    pod.status.phase = PodPhase::Succeeded;
    objects.apply(pod.clone());
    planner.changed(&ObjectRef::Pod(pod.key()), now);
    let deletion = only(planner.plan(now));
    assert_eq!(deletion.call.write_kind(), Some(WriteKind::DeletePod));
    planner.answered(deletion, Ok(Answer::Deleted), now, 0.0);
    assert!(planner.plan(now).calls.is_empty());

    pod.metadata.resource_version = ResourceVersion(10);
    objects.delete(pod.clone());
    planner.changed(&ObjectRef::Pod(pod.key()), now);
    assert_eq!(only(planner.plan(now)).call.write_kind(), Some(WriteKind::Unbind));
}

/// Another writer reserves a recycled volume for the claim that is gone, as it was before: what was done then counts
/// for nothing.
#[test]
fn s23_a_volume_that_was_recycled_is_recycled_anew() {
    let now = Instant::now();
    let (objects, mut planner, mut pod) = recycling(now);
    pod.metadata.resource_version = ResourceVersion(8);
    pod.status.phase = PodPhase::Succeeded;
    objects.apply(pod.clone());
    planner.changed(&ObjectRef::Pod(pod.key()), now);
    let deletion = only(planner.plan(now));
    assert_eq!(deletion.call.write_kind(), Some(WriteKind::DeletePod));
    planner.answered(deletion, Ok(Answer::Deleted), now, 0.0);
    pod.metadata.resource_version = ResourceVersion(9);
    objects.delete(pod.clone());
    planner.changed(&ObjectRef::Pod(pod.key()), now);
    let unbinding = only(planner.plan(now));
    assert_eq!(unbinding.call.write_kind(), Some(WriteKind::Unbind));
    let mut free = released(2);
    free.spec.claim_ref = None;
    free.status.phase = VolumePhase::Available;
    planner.answered(unbinding, Ok(Answer::Volume(free)), now, 0.0);
    assert!(planner.plan(now).calls.is_empty());

    let mut reserved = released(3);
    reserved.status.phase = VolumePhase::Available;
    objects.apply(reserved);
    planner.changed(&ObjectRef::Volume(VolumeName::from("pv")), now);
    let proof = only(planner.plan(now));
    assert!(matches!(proof.call, Call::Read { purpose: Purpose::ProveClaim(_), .. }));
    planner.answered(proof, Err(CallError::NotFound("c".into())), now, 0.0);
    let releasing = only(planner.plan(now));
    assert_eq!(releasing.call.write_kind(), Some(WriteKind::VolumeReleased));
    planner.answered(releasing, Ok(Answer::Volume(released(4))), now, 0.0);
    assert_eq!(only(planner.plan(now)).call.write_kind(), Some(WriteKind::CreatePod));
}

/// Another writer keeps changing the pod: after some tries there are pauses, and nothing is forgotten meanwhile.
#[test]
fn s40_a_start_that_meets_conflicts_is_tried_again_with_pauses() {
    let now = Instant::now();
    let (objects, mut planner, mut pod) = recycling(now);
    for round in 0..4 {
        let read = only(planner.plan(now));
        assert!(matches!(read.call, Call::Read { purpose: Purpose::ProveReleased, .. }), "{read:?}");
        planner.answered(read, Ok(Answer::Volume(released(1))), now, 0.0);
        let start = only(planner.plan(now));
        assert_eq!(start.call.write_kind(), Some(WriteKind::StartPod));
        if round == 3 {
            // The change is told of before the answer: if the pod is gone, it is that one which is gone.
            pod.metadata.resource_version.0 += 1;
            objects.apply(pod.clone());
            planner.changed(&ObjectRef::Pod(pod.key()), now);
        }
        planner.answered(start, Err(CallError::Conflict("changed".into())), now, 0.0);
        if round < 3 {
            let refresh = only(planner.plan(now));
            assert_eq!(
                refresh.call,
                Call::Read { target: ObjectRef::Pod(pod.key()), purpose: Purpose::Refresh }
            );
            pod.metadata.resource_version.0 += 1;
            planner.answered(refresh, Ok(Answer::Pod(pod.clone())), now, 0.0);
        }
    }
    let plan = planner.plan(now);
    assert!(plan.calls.is_empty() && planner.is_waiting());
    let due = plan.wake_at.unwrap();
    let refresh = only(planner.plan(due));
    assert_eq!(refresh.call, Call::Read { target: ObjectRef::Pod(pod.key()), purpose: Purpose::Refresh });
    planner.answered(refresh, Err(CallError::NotFound("gone".into())), due, 0.0);
    assert_eq!(only(planner.plan(due)).call.write_kind(), Some(WriteKind::VolumeFailed));
}

#[test]
fn s40_a_proof_that_fails_is_tried_again_after_a_pause() {
    let now = Instant::now();
    let (_, mut planner, _) = recycling(now);
    let read = only(planner.plan(now));
    planner.answered(read.clone(), Err(CallError::Unknown("timed out".into())), now, 0.0);
    let plan = planner.plan(now);
    assert!(plan.calls.is_empty());
    let again = only(planner.plan(plan.wake_at.unwrap()));
    assert_eq!(again, read);
    // An answer of another kind proves nothing either.
    planner.answered(again, Ok(Answer::Deleted), now, 0.0);
    assert!(planner.plan(now).calls.is_empty() && planner.is_waiting());
}

/// A released volume that is a directory here, as it stands at this revision.
fn directory_volume(revision: u64) -> PersistentVolume {
    decode(&json!({
        "metadata": {
            "name": "pv", "uid": "uid-pv", "resourceVersion": revision.to_string(),
            "annotations": {"pv.kubernetes.io/provisioned-by": "kubernetes.io/host-path"},
            "finalizers": [IN_TREE_FINALIZER],
        },
        "spec": {
            "hostPath": {"path": "/tmp/x"}, "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": "ns", "name": "c", "uid": "gone"},
        },
        "status": {"phase": "Released"},
    }))
}

/// A planner that deletes, and a released volume.
fn with_directory() -> (Arc<Objects>, Planner) {
    let objects = Arc::new(Objects::default());
    objects.reset(vec![directory_volume(1)]);
    let planner = planner(&objects, host_path());
    (objects, planner)
}

/// A volume whose directory is to be removed, and the read that is to prove that it still is.
fn deleting(now: Instant) -> (Arc<Objects>, Planner, Op) {
    let (objects, mut planner) = with_directory();
    planner.load(now);
    planner.lead(now);
    let proof = only(planner.plan(now));
    planner.answered(proof, Err(CallError::NotFound("c".into())), now, 0.0);
    let read = only(planner.plan(now));
    assert!(matches!(read.call, Call::Read { purpose: Purpose::ProveReleased, .. }), "{read:?}");
    (objects, planner, read)
}

fn removal(plan: Plan) -> Op {
    let removal = only(plan);
    assert_eq!(removal.call, Call::Directory(Directory::Remove("/tmp/x".to_owned())));
    removal
}

/// Its data is neither emptied nor removed, unless what was known of the claim before says that it has another volume.
#[test]
fn s42_s45_a_claim_that_was_never_read_keeps_the_data_of_what_is_released() {
    let gives_up = |call: &Call| {
        matches!(call, Call::Directory(Directory::Remove(_)))
            || call.write_kind() == Some(WriteKind::CreatePod)
    };
    let recycler = || (released(1), with_recycler());
    let directory = || (directory_volume(1), with_directory());
    let rows = [(recycler(), false), (recycler(), true), (directory(), false), (directory(), true)];
    for ((volume, (objects, mut planner)), is_known) in rows {
        let (row, now) = (format!("{:?} {is_known}", volume.spec.reclaim_policy), Instant::now());
        let mut odd = claim("odd");
        odd.spec.volume_name = "other".into();
        if is_known {
            objects.apply(odd.clone());
        }
        let known = (None, Some(ResourceVersion(9)), apiserver::wire::AttachmentNames::default());
        objects.note_unreadable::<PersistentVolumeClaim>(None, &odd.key(), known, "bad".to_owned());
        planner.load(now);
        planner.lead(now);
        let mut acts = Vec::new();
        for _ in 0..4 {
            for op in planner.plan(now).calls {
                let result = match &op.call {
                    Call::Read { purpose: Purpose::ProveReleased, .. } => Ok(Answer::Volume(volume.clone())),
                    Call::Read { .. } => Err(CallError::NotFound("c".into())),
                    call => {
                        acts.push(call.clone());
                        continue;
                    }
                };
                planner.answered(op, result, now, 0.0);
            }
        }
        assert_eq!(
            (acts.len(), acts.iter().any(gives_up)),
            (usize::from(is_known), is_known),
            "{row}: {acts:?}"
        );
        let waits = planner.volume_reason(&volume.key()).map(VolumeReason::code) == Some("ObjectUnreadable");
        assert_eq!(waits, !is_known, "{row}");
    }
}

/// Between the read and the removal the volume changes: what was read before counts for nothing.
#[test]
fn s23_a_directory_is_removed_on_a_proof_of_the_volume_as_it_is() {
    let now = Instant::now();
    let (objects, mut planner, first) = deleting(now);
    objects.apply(directory_volume(3));
    planner.changed(&ObjectRef::Volume(VolumeName::from("pv")), now);
    planner.answered(first.clone(), Ok(Answer::Volume(directory_volume(2))), now, 0.0);
    let second = only(planner.plan(now));
    assert_eq!(second.call, first.call, "S23");
    planner.answered(second, Ok(Answer::Volume(directory_volume(3))), now, 0.0);
    removal(planner.plan(now));
}

/// Until the watch tells of it, a volume that was deleted is there, and nothing more is done to it: what holds
/// it goes last.
#[test]
fn a_host_path_volume_is_deleted_once_after_its_directory_and_let_go_last() {
    let now = Instant::now();
    let (objects, mut planner, read) = deleting(now);
    planner.answered(read, Ok(Answer::Volume(directory_volume(1))), now, 0.0);
    let removal = removal(planner.plan(now));
    planner.answered(removal, Ok(Answer::Directory(Ok(()))), now, 0.0);
    let deletion = only(planner.plan(now));
    assert_eq!(deletion.call.write_kind(), Some(WriteKind::DeleteVolume));
    planner.answered(deletion, Ok(Answer::Deleted), now, 0.0);
    assert!(planner.plan(now).calls.is_empty(), "it is not known to be going");
    // Nor when it changes: the watch may be behind.
    objects.apply(directory_volume(2));
    let key = ObjectRef::Volume(VolumeName::from("pv"));
    planner.changed(&key, now);
    assert!(planner.plan(now).calls.is_empty(), "it is not known to be going");

    let mut volume = directory_volume(3);
    volume.metadata.deletion_timestamp = Some(Box::new("2026-01-01T00:00:00Z".parse().unwrap()));
    objects.apply(volume.clone());
    planner.changed(&key, now);
    let letting_go = only(planner.plan(now));
    let Call::Write(write) = &letting_go.call else { panic!("{letting_go:?}") };
    assert_eq!(write.request.body.as_ref().unwrap()["metadata"]["finalizers"], json!([]));
    volume.metadata.finalizers.clear();
    volume.metadata.resource_version = ResourceVersion(4);
    objects.delete(volume);
    planner.answered(letting_go, Err(CallError::NotFound("pv".into())), now, 0.0);
    planner.changed(&key, now);
    assert!(planner.plan(now).calls.is_empty());
}

/// A creation that was not answered may have been carried out, or come late: what was made is not taken for ours, and goes
/// first.
#[test]
fn s23_a_pod_that_is_there_when_it_is_asked_for_again_is_an_old_one() {
    let now = Instant::now();
    let (_, mut planner) = to_recycle(now);
    let creation = only(planner.plan(now));
    assert_eq!(creation.call.write_kind(), Some(WriteKind::CreatePod));
    planner.answered(creation.clone(), Err(CallError::Unknown("timed out".into())), now, 0.0);
    let read = only(planner.plan(now));
    planner.answered(read, Err(CallError::NotFound("not yet".into())), now, 0.0);
    let again = only(planner.plan(now));
    assert_eq!(again.call.target(), creation.call.target());
    planner.answered(again, Err(CallError::AlreadyExists("there".into())), now, 0.0);
    assert_eq!(only(planner.plan(now)).call.write_kind(), Some(WriteKind::VolumeFailed));
    assert_eq!(
        planner.volume_reason(&VolumeName::from("pv")),
        Some(&VolumeReason::RecycleFailed("old recycler pod found, will retry later".to_owned()))
    );
}

#[test]
fn a_pod_that_happens_to_have_the_name_is_not_taken_for_ours() {
    let now = Instant::now();
    let (objects, mut planner, pod) = recycling(now);
    let read = only(planner.plan(now));
    objects.delete(pod.clone());
    planner.changed(&ObjectRef::Pod(pod.key()), now);
    planner.answered(read, Ok(Answer::Volume(released(1))), now, 0.0);
    let failed = only(planner.plan(now));
    assert_eq!(failed.call.write_kind(), Some(WriteKind::VolumeFailed));
    let mut volume = released(2);
    volume.status.phase = VolumePhase::Failed;
    planner.answered(failed, Ok(Answer::Volume(volume)), now, 0.0);
    let later = planner.plan(now).wake_at.unwrap();
    let creation = only(planner.plan(later));
    assert_eq!(creation.call.write_kind(), Some(WriteKind::CreatePod));
    assert_eq!(creation.call.target(), Some(&ObjectRef::Pod(pod.key())));
    planner.answered(creation, Err(CallError::AlreadyExists("there".into())), later, 0.0);
    assert!(planner.plan(later).calls.is_empty());
    assert_eq!(
        planner.volume_reason(&VolumeName::from("pv")),
        Some(&VolumeReason::RecycleFailed("old recycler pod found, will retry later".to_owned()))
    );
}

/// A claim for which a volume is to be made, with this annotation too.
fn provisioning(name: &str, value: &str) -> (Arc<Objects>, Planner) {
    let objects = Arc::new(Objects::default());
    let mut claim = claim("c");
    claim.spec.storage_class_name = Some("gold".into());
    let provisioner = ("volume.kubernetes.io/storage-provisioner", "kubernetes.io/host-path");
    for (name, value) in [provisioner, (name, value)] {
        claim.metadata.annotations.insert(name.to_owned(), value.to_owned());
    }
    objects.reset(vec![claim]);
    objects.reset(vec![decode::<apiserver::kinds::StorageClass>(&json!({
        "metadata": {"name": "gold"}, "provisioner": "kubernetes.io/host-path", "volumeBindingMode": "Immediate",
    }))]);
    let planner = planner(&objects, host_path());
    (objects, planner)
}

/// A claim whose directory was made, and the request that is to create its volume.
fn creating(now: Instant) -> (Arc<Objects>, Planner, Op) {
    let (objects, mut planner) = provisioning("example.com/kept", "");
    planner.load(now);
    planner.lead(now);
    let op = only(planner.plan(now));
    assert_eq!(op.call, making());
    planner.answered(op, Ok(Answer::Directory(Ok(()))), now, 0.0);
    let creation = only(planner.plan(now));
    assert_eq!(creation.call.write_kind(), Some(WriteKind::CreateVolume));
    (objects, planner, creation)
}

/// Making the directory of that claim.
fn making() -> Call {
    Call::Directory(Directory::Make("/tmp/hostpath_pv/uid-c".to_owned()))
}

#[test]
fn l1_a_volume_is_made_as_soon_as_the_selected_node_is_told_of() {
    let now = Instant::now();
    let (objects, mut planner) = provisioning("volume.kubernetes.io/selected-node", "node1");
    planner.load(now);
    planner.lead(now);
    assert!(planner.plan(now).calls.is_empty());
    let node: Node = decode(&json!({"metadata": {"name": "node1", "uid": "u", "resourceVersion": "5"}}));
    objects.apply(node.clone());
    planner.changed(&ObjectRef::Node(node.key()), now);
    assert_eq!(only(planner.plan(now)).call, making());
}

#[test]
fn l1_a_volume_is_made_as_soon_as_its_name_is_free() {
    let now = Instant::now();
    let (objects, mut planner) = provisioning("example.com/kept", "");
    let mut other = released(1);
    other.metadata.name = "pvc-uid-c".into();
    other.spec.reclaim_policy = ReclaimPolicy::Retain;
    other.spec.claim_ref = None;
    objects.reset(vec![other.clone()]);
    planner.load(now);
    planner.lead(now);
    let available = only(planner.plan(now));
    assert_eq!(available.subject, Target::Volume(other.key()), "no directory is made");
    other.metadata.resource_version = ResourceVersion(5);
    objects.delete(other.clone());
    planner.changed(&ObjectRef::Volume(other.key()), now);
    assert_eq!(only(planner.plan(now)).call, making());
}

/// That its pod still waits for a node beside that claim, no change of the pod tells.
#[test]
fn s44_a_volume_is_recycled_once_the_pods_are_shown_as_of_its_claim_made_anew() {
    let now = Instant::now();
    let (objects, mut planner) = with_recycler();
    objects.reset::<Pod>(vec![decode(&json!({
        "metadata": {"namespace": "ns", "name": "p", "uid": "uid-p", "resourceVersion": "2"},
        "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
        "status": {"phase": "Pending"},
    }))]);
    planner.load(now);
    planner.lead(now);
    assert!(planner.plan(now).calls.is_empty(), "it may use the volume");
    let mut anew = claim("c");
    anew.metadata.resource_version = ResourceVersion(9);
    objects.apply(anew.clone());
    planner.changed(&ObjectRef::Claim(anew.key()), now);
    let plan = planner.plan(now);
    assert_eq!((plan.calls, plan.wake_at), (vec![], Some(now + Duration::from_secs(15))));
    objects.pods.advance(ResourceVersion(9));
    let next = only(planner.plan(now + Duration::from_secs(15)));
    assert_eq!(next.subject, Target::Volume(VolumeName::from("pv")));
}

/// The watch tells of the volume and of its end before the creation is answered: its directory may have gone
/// with it.
#[test]
fn s23_a_volume_that_is_gone_by_the_answer_to_its_creation_has_its_directory_made_anew() {
    let now = Instant::now();
    let (objects, mut planner, creation) = creating(now);
    let Call::Write(write) = &creation.call else { panic!("{creation:?}") };
    let mut body = write.request.body.clone().unwrap();
    body["metadata"]["uid"] = json!("uid-pv");
    body["metadata"]["resourceVersion"] = json!("5");
    let made: PersistentVolume = decode(&body);
    let mut gone = made.clone();
    gone.metadata.resource_version = ResourceVersion(6);
    objects.apply(made.clone());
    objects.delete(gone);
    planner.changed(&ObjectRef::Volume(made.key()), now);
    planner.answered(creation, Ok(Answer::Volume(made)), now, 0.0);
    assert_eq!(only(planner.plan(now)).call, making());
}

#[test]
fn a_volume_that_is_refused_is_created_again_after_a_pause() {
    let now = Instant::now();
    let (_, mut planner, creation) = creating(now);
    let refused = || Err(CallError::Refused { code: 403, message: "no".into() });
    let mut now = now;
    for _ in 0..4 {
        planner.answered(creation.clone(), refused(), now, 0.0);
        let plan = planner.plan(now);
        assert!(plan.calls.is_empty());
        now += Duration::from_secs(10);
        assert_eq!(plan.wake_at, Some(now));
        assert_eq!(only(planner.plan(now)), creation);
    }
    // The fifth refusal is the last: the directory goes, and that has as many tries.
    planner.answered(creation, refused(), now, 0.0);
    let removal = only(planner.plan(now));
    assert!(matches!(removal.call, Call::Directory(Directory::Remove(_))), "{removal:?}");
    planner.answered(removal.clone(), Ok(Answer::Directory(Err("busy".to_owned()))), now, 0.0);
    let plan = planner.plan(now);
    assert!(plan.calls.is_empty());
    assert_eq!(plan.wake_at, Some(now + Duration::from_secs(10)));
    assert_eq!(only(planner.plan(now + Duration::from_secs(10))), removal);
}
