//! Recycling: a Released volume is emptied by a pod and given back (pv-binder §6.4). Off unless asked for.
//!
//! In: a volume whose claim is gone, the pods at work on it, and how far the run has got. Out: the next
//! step. Emptying cannot be taken back, so it takes three: a pod is made that cannot be scheduled yet; the
//! volume is read live and is still released; only then is the pod let go, by a patch that names its UID
//! and revision. A request that arrives late makes a pod that never runs. What counts is the result of
//! the very pod of this run, by its UID; every other recycler pod of the volume goes first, and nothing
//! else is done to the volume while one is there. The pod has the name that kube-controller-manager gives it, so that of two
//! that rule one after the other each meets what the other left.

use apiserver::{
    call::{Request, Verb},
    ids::{PodKey, Uid},
    kinds::{
        ClaimRef, FileSource, Narrow, ObjectRef, PersistentVolume, Pod, RECYCLER_PREFIX, ReclaimPolicy,
        VolumePhase,
    },
    tables::Objects,
};
use serde_json::{Value, json};

use super::{
    operations::{CLAIM_UID, VolumeStage},
    options::Recycler,
    plugins::HostPlugins,
};
use crate::binder::{
    calls::{Call, Purpose, Write, WriteKind},
    decide::{
        binding,
        decision::{Decision, VolumeDecision},
    },
    events,
    matching::predicate::capacity,
    patches,
    reasons::VolumeReason,
    state::State,
};

/// What keeps a recycler pod from being scheduled.
const GATE: &str = "mooring.binder/volume-is-released";

/// Where a pod's scheduling gates are.
const SCHEDULING_GATES: &str = "/spec/schedulingGates";

/// Annotation of a recycler pod: the claim that used the volume.
const CLAIM: &str = "mooring.binder/claim";

impl Recycler {
    /// How long a pod may take, in seconds.
    // KCM: pkg/volume/util/util.go, CalculateTimeoutForVolume.
    fn deadline(&self, volume: &PersistentVolume) -> u64 {
        let gibibytes = capacity(volume).unwrap_or_default().gibibytes();
        let grown = gibibytes.saturating_mul(u64::from(self.increment_timeout));
        grown.max(u64::from(self.minimum_timeout)).min(i64::MAX.unsigned_abs())
    }

    /// The pod of one run, from a template of its own: no run can bend another's.
    fn creation(
        &self,
        volume: &PersistentVolume,
        reference: &ClaimRef,
        source: &FileSource,
        name: &str,
    ) -> Request {
        let mut pod = self.template.clone();
        let source = match source {
            FileSource::HostPath(source) => ("hostPath", json!({ "path": source.path })),
            FileSource::Nfs(source) => ("nfs", json!({ "server": source.server, "path": source.path })),
        };
        let mut set = |section: &str, field: &str, value: Value| {
            if let Some(section) = pod.get_mut(section).and_then(Value::as_object_mut) {
                section.insert(field.to_owned(), value);
            }
        };
        let meta = &volume.metadata;
        set("metadata", "name", json!(name));
        set("metadata", "namespace", json!(self.namespace()));
        // Who looks at the pod sees what it is for, and it goes with its volume at the latest.
        let owner = json!({ "apiVersion": "v1", "kind": PersistentVolume::KIND, "name": &*meta.name, "uid": meta.uid });
        set("metadata", "ownerReferences", json!([owner]));
        // Those of the template stay: one may keep a side-car out that would not end.
        let own = [(CLAIM, reference.key().to_string()), (CLAIM_UID, reference.uid.to_string())];
        let template = self.template.pointer("/metadata/annotations").and_then(Value::as_object);
        let mut annotations = template.cloned().unwrap_or_default();
        annotations.extend(own.map(|(key, value)| (key.to_owned(), Value::String(value))));
        set("metadata", "annotations", Value::Object(annotations));
        let mut volumes = self.list("/spec/volumes");
        if let Some(first) = volumes.first_mut() {
            *first = json!({ "name": first.get("name"), source.0: source.1 });
        }
        set("spec", "volumes", Value::Array(volumes));
        set("spec", "activeDeadlineSeconds", json!(self.deadline(volume)));
        let mut gates = self.list(SCHEDULING_GATES);
        gates.push(json!({ "name": GATE }));
        set("spec", "schedulingGates", Value::Array(gates));
        let path = format!("/api/v1/namespaces/{}/pods", self.namespace());
        Request { verb: Verb::Create, path, body: Some(pod) }
    }

    fn list(&self, pointer: &str) -> Vec<Value> {
        self.template.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default()
    }

    /// Lets a pod go: of its gates those stay that the template itself has.
    fn start(&self, pod: &Pod) -> Write {
        let gates = self.list(SCHEDULING_GATES);
        patches::start_pod(pod, &gates)
    }
}

impl HostPlugins {
    /// Clears away recycler pods that are not of the volume's run. Until they are gone nothing else is decided
    /// about the volume.
    pub(super) fn leftover(&self, volume: &PersistentVolume, view: &State) -> Option<VolumeDecision> {
        let recycles = volume.spec.reclaim_policy == ReclaimPolicy::Recycle
            && matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed);
        let own = self.operations.of_volume(volume).filter(|_| recycles).and_then(|run| run.pod.as_ref());
        let mut pods = self.operations.pods(volume);
        let (key, _) = pods.find(|(_, uid)| own.is_none_or(|(_, own)| own != *uid))?;
        Some(self.remove(key, VolumeReason::LeftoverPod(key.clone()), view))
    }

    /// Removes a pod, and waits until it is gone.
    fn remove(&self, key: &PodKey, reason: VolumeReason, view: &State) -> VolumeDecision {
        match view.objects.pods.get(key) {
            Some(pod) if !pod.metadata.is_terminating() && !self.operations.is_deleted(&pod) => {
                Decision::step(reason, Call::Write(patches::delete(WriteKind::DeletePod, &*pod)))
            }
            _ => Decision::rest(reason),
        }
    }

    /// Recycles a volume whose claim is proven gone, if there is a recycler for its source.
    // KCM: pkg/controller/volume/persistentvolume/pv_controller.go, recycleVolumeOperation.
    pub(super) fn recycle(
        &self,
        volume: &PersistentVolume,
        reference: &ClaimRef,
        view: &State,
    ) -> Option<VolumeDecision> {
        let source = volume.spec.files.as_deref()?;
        let recycler = self.options.recyclers.as_ref()?.of(source);
        let run = self.operations.of_volume(volume);
        let pod = run.and_then(|run| run.pod.as_ref()).and_then(|(key, uid)| {
            let pod = view.objects.pods.get(key)?;
            (pod.metadata.uid == *uid).then_some((key, pod))
        });
        let stage = run.map(|run| &run.stage);
        Some(match (stage, pod) {
            (Some(VolumeStage::Done), Some((key, _))) => self.remove(key, VolumeReason::Recycling, view),
            (Some(VolumeStage::Failed(error)), Some((key, _))) => {
                self.remove(key, VolumeReason::RecycleFailed(error.clone()), view)
            }
            (Some(VolumeStage::Done), None) => {
                let write = binding::undo(volume).then(events::recycled(volume));
                Decision::step(VolumeReason::Recycling, Call::Write(write))
            }
            (Some(VolumeStage::Failed(error)), None) => {
                VolumeDecision::failed(volume, VolumeReason::RecycleFailed(error.clone()))
            }
            (Some(VolumeStage::Started | VolumeStage::Deleted), _) => Decision::rest(VolumeReason::Recycling),
            (None | Some(VolumeStage::Created | VolumeStage::Proven(_)), pod) => {
                let users = self.users_of(reference, view);
                if !users.is_empty() {
                    return Some(VolumeDecision::waiting(volume, VolumeReason::UsedByPods(users)));
                }
                let call = match (pod, stage) {
                    (None, _) => {
                        let name = format!("{RECYCLER_PREFIX}{}", volume.metadata.name);
                        let key = PodKey::new(recycler.namespace(), &name);
                        let request = recycler.creation(volume, reference, source, &name);
                        let target = ObjectRef::Pod(key);
                        Call::Write(Write {
                            kind: WriteKind::CreatePod,
                            target,
                            request,
                            then: Vec::new(),
                            claim: Uid::default(),
                        })
                    }
                    (Some((_, pod)), Some(VolumeStage::Proven(revision)))
                        if *revision == volume.metadata.resource_version =>
                    {
                        Call::Write(recycler.start(&pod))
                    }
                    _ => Call::read(ObjectRef::Volume(volume.key()), Purpose::ProveReleased),
                };
                Decision::step(VolumeReason::Recycling, call)
            }
        })
    }

    /// The pods that may still use a volume: all that name its claim. One that waits for a node beside a new claim of that name
    /// was given nothing (S44). Whether the claim or the pod is older, their timestamps do not tell: each is of the clock of
    /// some API server.
    fn users_of(&self, reference: &ClaimRef, view: &State) -> Vec<PodKey> {
        let (key, Objects { claims, pods, .. }) = (reference.key(), &*view.objects);
        let is_anew =
            claims.get(&key).is_some_and(|claim| pods.observed() >= claim.metadata.resource_version);
        let has_node = |pod: &PodKey| pods.get(pod).is_some_and(|pod| !pod.spec.node_name.is_empty());
        self.users.of(&key).filter(|pod| !is_anew || has_node(pod)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(size: &str) -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": {"name": "pv", "uid": "pv-uid", "resourceVersion": "7"},
            "spec": {
                "capacity": {"storage": size},
                "hostPath": {"path": "/data"},
                "claimRef": {"namespace": "ns", "name": "c", "uid": "c-uid"},
            },
        }))
        .unwrap()
    }

    fn recycler() -> Recycler {
        Recycler { template: Recycler::default_template(), minimum_timeout: 60, increment_timeout: 30 }
    }

    #[test]
    fn the_deadline_grows_with_the_volume() {
        let cases = [
            ("1Gi", 60),
            ("2Gi", 60),
            ("3Gi", 90),
            ("3.9Gi", 90),
            ("10Gi", 300),
            ("1Ti", 30_720),
            ("1Mi", 60),
        ];
        for (size, seconds) in cases {
            assert_eq!(recycler().deadline(&volume(size)), seconds, "{size}");
        }
    }

    #[test]
    fn a_pod_has_its_own_source_deadline_and_gate() {
        let mut template = Recycler::default_template();
        template["metadata"]["namespace"] = json!("scrub");
        template["metadata"]["annotations"] = json!({"linkerd.io/inject": "disabled"});
        template["spec"]["nodeSelector"] = json!({"disk": "here"});
        template["spec"]["schedulingGates"] = json!([{"name": "mine"}]);
        template["spec"]["volumes"] =
            json!([{"name": "v", "emptyDir": {}}, {"name": "other", "emptyDir": {}}]);
        let recycler = Recycler { template, ..recycler() };
        let volume = volume("5Gi");
        let nfs = FileSource::Nfs(apiserver::kinds::NfsSource { server: "s".into(), path: "/p".into() });
        let reference = volume.spec.claim_ref.clone().unwrap();
        let request = recycler.creation(&volume, &reference, &nfs, "recycler-for-pv-1");
        assert_eq!(request.path, "/api/v1/namespaces/scrub/pods");
        let pod = request.body.unwrap();
        assert_eq!(
            pod["metadata"],
            json!({
                "name": "recycler-for-pv-1",
                "namespace": "scrub",
                "annotations": {
                    "linkerd.io/inject": "disabled",
                    "mooring.binder/claim": "ns/c",
                    "mooring.binder/claim-uid": "c-uid",
                },
                "ownerReferences": [
                    {"apiVersion": "v1", "kind": "PersistentVolume", "name": "pv", "uid": "pv-uid"},
                ],
            })
        );
        let spec = &pod["spec"];
        assert_eq!(
            spec["volumes"],
            json!([{"name": "v", "nfs": {"server": "s", "path": "/p"}}, {"name": "other", "emptyDir": {}}])
        );
        assert_eq!(spec["schedulingGates"], json!([{"name": "mine"}, {"name": GATE}]));
        assert_eq!(
            (&spec["activeDeadlineSeconds"], &spec["nodeSelector"]["disk"]),
            (&json!(150), &json!("here"))
        );
        // The template is as it was, for the next run.
        assert_eq!(recycler.template["spec"]["volumes"][0], json!({"name": "v", "emptyDir": {}}));
        let start = recycler.start(&Pod::default()).request.body.unwrap();
        assert_eq!(start["spec"], json!({"schedulingGates": [{"name": "mine"}]}));
    }
}
