//! Pod: where it runs, whether it still runs, and which volumes it names.

use serde::{Deserialize, Deserializer};

use super::Meta;
use crate::kube_api::ids::{ClaimKey, NodeName};

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

/// A volume of a pod.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PodVolume {
    /// Name of the volume inside the pod.
    pub name: String,
    /// Where it comes from.
    #[serde(flatten)]
    pub source: PodVolumeSource,
}

/// The sources that lead to something attachable.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodVolumeSource {
    /// A claim by name.
    #[serde(rename_all = "camelCase")]
    PersistentVolumeClaim {
        /// Name of the claim in the pod's namespace.
        claim_name: String,
        /// Whether the pod mounts it read-only.
        #[serde(default)]
        read_only: bool,
    },
    /// A generic ephemeral volume: a claim named `<pod>-<volume>` that the pod owns.
    Ephemeral {},
}

/// `status` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: String,
    /// Init containers.
    pub init_container_statuses: Vec<ContainerStatus>,
    /// Containers.
    pub container_statuses: Vec<ContainerStatus>,
    /// Ephemeral containers.
    pub ephemeral_container_statuses: Vec<ContainerStatus>,
}

/// Run state of one container.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContainerStatus {
    /// State.
    pub state: ContainerState,
}

/// `state` of a container status: only "runs or not" is kept. No state at all counts as waiting,
/// as the API documents.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Present when the container is neither waiting nor terminated.
    pub running: Option<Present>,
}

/// A value whose presence is all that matters.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Present {}

impl Pod {
    /// Whether the pod is done with its volumes: Failed or Succeeded, or being deleted with no
    /// container running (attach-detach §2.1).
    #[must_use]
    pub fn is_terminated(&self) -> bool {
        let phase = self.status.phase.as_str();
        phase == "Failed"
            || phase == "Succeeded"
            || (self.metadata.is_terminating() && !self.has_running_container())
    }

    fn has_running_container(&self) -> bool {
        let status = &self.status;
        status
            .init_container_statuses
            .iter()
            .chain(&status.container_statuses)
            .chain(&status.ephemeral_container_statuses)
            .any(|container| container.state.running.is_some())
    }

    /// The claim a volume of this pod stands for (attach-detach §2.2).
    #[must_use]
    pub fn claim_of(&self, volume: &PodVolume) -> ClaimKey {
        let namespace = &self.metadata.namespace;
        match &volume.source {
            PodVolumeSource::PersistentVolumeClaim { claim_name, .. } => ClaimKey::new(namespace, claim_name),
            PodVolumeSource::Ephemeral {} => {
                ClaimKey::new(namespace, &format!("{}-{}", self.metadata.name, volume.name))
            }
        }
    }
}

fn attachable_candidates<'de, D>(deserializer: D) -> Result<Vec<PodVolume>, D::Error>
where
    D: Deserializer<'de>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Entry {
        Candidate(PodVolume),
        #[allow(dead_code)]
        Other(serde::de::IgnoredAny),
    }
    let entries = Option::<Vec<Entry>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(entries
        .into_iter()
        .filter_map(|entry| match entry {
            Entry::Candidate(volume) => Some(volume),
            Entry::Other(_) => None,
        })
        .collect())
}
