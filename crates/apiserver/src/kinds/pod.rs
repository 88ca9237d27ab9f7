//! Pod: where it runs, whether it still runs, and which volumes it names.

use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::Map;

use super::{
    InTreeSource, Keep, Meta, Narrow, OwnerReference,
    source::{Malformed, Raw, Source, source_of, take_source},
};
use crate::{
    ids::{ClaimKey, NamespacedName, NodeName},
    protobuf::{FromProtobuf, Values, enumeration, message},
    text::Text,
    wire::DecodeError,
};

/// A Pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Pod {
    /// Metadata.
    pub metadata: Meta,
    /// Spec.
    pub spec: PodSpec,
    /// Status.
    pub status: PodStatus,
}
message!(Pod { metadata: 1, spec: 2, status: 3 });

/// `spec` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    /// Empty until scheduled.
    pub node_name: NodeName,
    /// Volumes; those that can never be attached are not kept.
    #[serde(deserialize_with = "attachable_candidates")]
    pub volumes: Vec<PodVolume>,
}
message!(PodSpec { volumes: 1 by attachable, node_name: 10 });

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq)]
pub struct PodVolume {
    /// Name of the volume inside the pod.
    pub name: Text,
    /// Where it comes from.
    pub source: PodVolumeSource,
}

/// The sources that lead to something attachable. A CSI source is not among them: that of a pod is
/// ephemeral and never attached (attach-detach §2.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodVolumeSource {
    /// A claim.
    PersistentVolumeClaim(ClaimSource),
    /// A generic ephemeral volume: a claim named `<pod>-<volume>` that the pod owns.
    Ephemeral,
    /// An in-tree volume without claim, or what cannot be read.
    InTree(Box<InTreeSource>),
}

/// `persistentVolumeClaim`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSource {
    /// Name of the claim in the pod's namespace.
    pub claim_name: Text,
}
message!(ClaimSource { claim_name: 1 });

impl Source for PodVolumeSource {
    const KEYS: &'static [(u32, &'static str)] = &[
        (3, "gcePersistentDisk"),
        (4, "awsElasticBlockStore"),
        (8, "iscsi"),
        (10, "persistentVolumeClaim"),
        (12, "flexVolume"),
        (13, "cinder"),
        (17, "fc"),
        (18, "azureFile"),
        (20, "vsphereVolume"),
        (22, "azureDisk"),
        (24, "portworxVolume"),
        (29, "ephemeral"),
    ];

    fn read(key: &'static str, raw: Raw<'_>) -> Result<Self, String> {
        Ok(match key {
            "persistentVolumeClaim" => Self::PersistentVolumeClaim(raw.parse()?),
            "ephemeral" => Self::Ephemeral,
            _ => Self::InTree(Box::new(InTreeSource::read(key, raw)?)),
        })
    }

    fn malformed(malformed: Malformed) -> Self {
        Self::InTree(Box::new(InTreeSource::Malformed(malformed)))
    }
}

/// `status` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "StatusFields")]
pub struct PodStatus {
    /// Phase.
    pub phase: PodPhase,
    /// Why, as text for people; kept of a pod that failed.
    pub message: Box<str>,
    /// Whether a container of any list runs; kept of a pod that is being deleted.
    pub is_running: bool,
    /// Whether a container of any list runs, or has run; kept of a pod that is Pending.
    pub has_run: bool,
}

/// `status.phase` of a Pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum PodPhase {
    /// Not all containers have begun.
    #[default]
    #[serde(alias = "")]
    Pending,
    /// At least one container runs.
    Running,
    /// All containers ended well, for good.
    Succeeded,
    /// All containers ended, for good.
    Failed,
    /// `Unknown`, or a phase this version does not know.
    #[serde(other)]
    Unknown,
}
enumeration!(PodPhase);

/// `status` as it is written.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StatusFields {
    phase: PodPhase,
    message: Box<str>,
    init_container_statuses: Containers,
    container_statuses: Containers,
    ephemeral_container_statuses: Containers,
}
message!(StatusFields {
    phase: 1,
    message: 3,
    container_statuses: 8,
    init_container_statuses: 10,
    ephemeral_container_statuses: 13,
});

impl FromProtobuf for PodStatus {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        StatusFields::from_values(values).map(Self::from)
    }
}

impl From<StatusFields> for PodStatus {
    fn from(fields: StatusFields) -> Self {
        let lists =
            [fields.init_container_statuses, fields.container_statuses, fields.ephemeral_container_statuses];
        Self {
            phase: fields.phase,
            message: fields.message,
            is_running: lists.iter().any(|list| list.is_running),
            has_run: lists.iter().any(|list| list.has_run),
        }
    }
}

/// Whether a container of a list runs, and whether one runs or has run.
#[derive(Default, Deserialize)]
#[serde(from = "Vec<ContainerStatus>")]
struct Containers {
    is_running: bool,
    has_run: bool,
}

impl FromProtobuf for Containers {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        Vec::from_values(values).map(Self::from)
    }
}

impl From<Vec<ContainerStatus>> for Containers {
    fn from(containers: Vec<ContainerStatus>) -> Self {
        Self {
            is_running: containers.iter().any(|container| container.state.is_running()),
            has_run: containers.iter().any(ContainerStatus::has_run),
        }
    }
}

/// Run state of one container.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    state: ContainerState,
    last_state: ContainerState,
}
message!(ContainerStatus { state: 2, last_state: 3 });

impl ContainerStatus {
    fn has_run(&self) -> bool {
        self.state.is_running() || self.state.terminated.is_some() || self.last_state.terminated.is_some()
    }
}

/// `state` of a container status: only "runs or not" is read. The API documents no state at all as waiting;
/// KCM takes it for running, and so nothing is taken from a pod that may run.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    /// Present when the container does not run yet.
    waiting: Option<Present>,
    /// Present when the container does not run any more.
    terminated: Option<Present>,
}
message!(ContainerState { waiting: 1, terminated: 3 });

impl ContainerState {
    // KCM: pkg/volume/util/util.go, notRunning.
    fn is_running(&self) -> bool {
        self.waiting.is_none() && self.terminated.is_none()
    }
}

/// A value whose presence is all that matters.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Present {}

impl FromProtobuf for Present {
    fn from_values(_: Values<'_, '_>) -> Result<Self, DecodeError> {
        Ok(Self {})
    }
}

impl Pod {
    /// Whether the pod is done with its volumes: Failed or Succeeded, or being deleted with no
    /// container running (attach-detach §2.1).
    pub fn is_terminated(&self) -> bool {
        matches!(self.status.phase, PodPhase::Failed | PodPhase::Succeeded)
            || (self.metadata.is_terminating() && !self.status.is_running)
    }

    /// Whether a container runs, or has run: all volumes are mounted before the first one.
    pub fn has_started(&self) -> bool {
        self.status.phase == PodPhase::Running || self.status.has_run
    }

    /// The claim a volume of this pod stands for, if it does (attach-detach §2.2).
    pub fn claim_of(&self, volume: &PodVolume) -> Option<ClaimKey> {
        let namespace = &self.metadata.namespace;
        match &volume.source {
            PodVolumeSource::PersistentVolumeClaim(claim) => Some(ClaimKey(NamespacedName {
                namespace: namespace.clone(),
                name: claim.claim_name.clone().into(),
            })),
            PodVolumeSource::Ephemeral => {
                Some(ClaimKey::new(namespace, &format!("{}-{}", self.metadata.name, volume.name)))
            }
            PodVolumeSource::InTree(_) => None,
        }
    }
}

impl Keep for Pod {
    fn trim(&mut self) {
        let status = &mut self.status;
        self.metadata.finalizers.clear();
        self.metadata.keep_owners(is_recycled_volume);
        self.spec.volumes.shrink_to_fit();
        // Of other pods neither containers, which a pod that is Pending has while it is initialized, nor failures are asked for.
        status.is_running &= self.metadata.is_terminating();
        status.has_run &= status.phase == PodPhase::Pending;
        if status.phase != PodPhase::Failed || self.metadata.owner_references.is_empty() {
            status.message = Box::default();
        }
    }

    fn has_templates(&self) -> bool {
        self.spec.volumes.iter().any(|volume| volume.source == PodVolumeSource::Ephemeral)
    }

    /// A pod matters for a volume that may be attachable, which names a claim or is in-tree, or because it recycles
    /// a PersistentVolume: its owner, or the one that its name has.
    fn is_relevant(&self) -> bool {
        let meta = &self.metadata;
        !self.spec.volumes.is_empty()
            || meta.owner_references.iter().any(is_recycled_volume)
            || meta.name.starts_with(RECYCLER_PREFIX)
    }
}

/// With what the names of recycler pods begin, before the name of the volume.
///
/// KCM: pkg/volume/util/recyclerclient/recycler_client.go, RecycleVolumeByWatchingPodUntilCompletion.
pub const RECYCLER_PREFIX: &str = "recycler-for-";

/// Whether the owner is the PersistentVolume that a recycler pod works on.
fn is_recycled_volume(owner: &OwnerReference) -> bool {
    owner.kind == super::PersistentVolume::KIND
}

fn attachable_candidates<'de, D>(deserializer: D) -> Result<Vec<PodVolume>, D::Error>
where
    D: Deserializer<'de>,
{
    let entries = Option::<Vec<Entry>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(entries.into_iter().filter_map(|Entry(volume)| volume).collect())
}

fn attachable(values: Values<'_, '_>) -> Result<Vec<PodVolume>, DecodeError> {
    let entries: Vec<Entry> = FromProtobuf::from_values(values)?;
    Ok(entries.into_iter().filter_map(|Entry(volume)| volume).collect())
}

/// An entry of `volumes`, if it may be attachable.
struct Entry(Option<PodVolume>);

/// `core.v1.Volume`: the name (1) is read only of what is kept.
impl FromProtobuf for Entry {
    fn from_values(values: Values<'_, '_>) -> Result<Self, DecodeError> {
        let volume = values.message(u64::MAX)?;
        let Some(source) = source_of(volume.of(2))? else { return Ok(Self(None)) };
        let name = Text::from_values(volume.of(1)).map_err(|error| error.within("name"))?;
        Ok(Self(Some(PodVolume { name, source })))
    }
}

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut volume = Map::deserialize(deserializer)?;
        let Some(source) = take_source(&mut volume) else { return Ok(Self(None)) };
        let name = volume.remove("name").map(Text::deserialize).transpose();
        Ok(Self(Some(PodVolume { name: name.map_err(D::Error::custom)?.unwrap_or_default(), source })))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(object: &Value) -> Pod {
        let mut pod: Pod = serde_json::from_str(&object.to_string()).unwrap();
        pod.trim();
        pod
    }

    #[test]
    fn a_pod_is_relevant_for_its_volumes_or_for_what_it_recycles() {
        let owned =
            |kind: &str| json!({"metadata": {"ownerReferences": [{"kind": kind, "name": "x", "uid": "u"}]}});
        let with = |volumes: Value| json!({"spec": {"nodeName": "", "volumes": volumes}});
        let not_ours = json!([
            {"name": "a", "configMap": {}}, {"name": "b", "emptyDir": {}}, {"name": "c", "csi": {"driver": "d"}},
            {"name": "d", "hostPath": {"path": "/"}}, {"name": "e", "nfs": {}}, {"name": "f", "projected": {}},
        ]);
        let claim = json!([{"name": "a", "persistentVolumeClaim": {"claimName": "c"}}]);
        let cases = [
            ("no volume", json!({}), false),
            ("no volumes of ours", with(not_ours), false),
            ("a claim, before it is scheduled", with(claim), true),
            ("an ephemeral claim", with(json!([{"name": "a", "ephemeral": {}}])), true),
            ("an in-tree volume", with(json!([{"name": "a", "fc": {"wwids": ["w"]}}])), true),
            ("what cannot be read", with(json!([{"name": "a", "fc": 5}])), true),
            ("a workload's", owned("ReplicaSet"), false),
            ("a recycler", owned("PersistentVolume"), true),
        ];
        for (name, object, expected) in cases {
            assert_eq!(pod(&object).is_relevant(), expected, "{name}");
        }
    }

    #[test]
    fn what_nobody_asks_for_is_not_kept() {
        let object = |phase: &str, deleted: &Value, owner: &str| {
            json!({
                "metadata": {
                    "name": "p", "labels": {"a": "b"}, "finalizers": ["f"], "deletionTimestamp": deleted,
                    "ownerReferences": [{"kind": owner, "name": "x"}, {"kind": "Node", "name": "y"}],
                },
                "status": {"phase": phase, "message": "m", "containerStatuses": [{"state": {"running": {}}}]},
            })
        };
        let (alive, deleted) = (Value::Null, json!("2026-01-01T00:00:00Z"));
        // phase, deletion, owner; owners, whether a container runs, and has run, message
        let cases = [
            ("Running", &alive, "ReplicaSet", 0, (false, false), ""),
            ("Pending", &alive, "ReplicaSet", 0, (false, true), ""),
            ("Pending", &deleted, "ReplicaSet", 0, (true, true), ""),
            ("Running", &deleted, "ReplicaSet", 0, (true, false), ""),
            ("Failed", &alive, "ReplicaSet", 0, (false, false), ""),
            ("Failed", &alive, "PersistentVolume", 1, (false, false), "m"),
        ];
        for (phase, deleted, owner, owners, containers, message) in cases {
            let pod = pod(&object(phase, deleted, owner));
            assert!(pod.metadata.labels.is_empty() && pod.metadata.finalizers.is_empty());
            let status = &pod.status;
            let kept =
                (pod.metadata.owner_references.len(), (status.is_running, status.has_run), &*status.message);
            assert_eq!(kept, (owners, containers, message), "{phase} {owner}");
        }
    }

    #[test]
    fn s43_a_pod_one_of_whose_containers_has_run_has_started() {
        let (waits, ended) = (json!({"waiting": {}}), json!({"terminated": {"exitCode": 1}}));
        // state and last state of a container; whether the pod has started
        let cases = [
            (&waits, json!({}), false),
            (&waits, ended.clone(), true),
            (&ended, json!({}), true),
            (&json!({"running": {}}), json!({}), true),
        ];
        for (state, last_state, expected) in cases {
            let container = json!({"state": state, "lastState": last_state});
            for list in ["initContainerStatuses", "containerStatuses"] {
                let status = json!({"phase": "Pending", list: [{"state": waits}, container]});
                let mut pod = pod(&json!({"metadata": {"name": "p"}, "status": status}));
                pod.trim();
                assert_eq!(pod.has_started(), expected, "{list} {container}");
            }
        }
    }

    #[test]
    fn a_container_that_neither_waits_nor_has_ended_runs_in_whatever_list() {
        let (waiting, ended) =
            (json!({"state": {"waiting": {}}}), json!({"state": {"terminated": {"exitCode": 0}}}));
        let states = [(json!({}), true), (json!({"state": {"running": {}}}), true), (ended.clone(), false)];
        for list in ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"] {
            for (state, expected) in &states {
                let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
                let pod = pod(&json!({"metadata": deleted, "status": {list: [waiting, state, ended]}}));
                assert_eq!(
                    (pod.status.is_running, pod.is_terminated()),
                    (*expected, !expected),
                    "{list} {state}"
                );
            }
        }
    }
}
