//! Pod: where it runs, whether it still runs, and which volumes it names.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;

use super::{
    InTreeSource, Meta,
    source::{Malformed, Source, WithoutSource, parse},
};
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
#[derive(Clone, Debug, PartialEq)]
pub struct PodVolume {
    /// Name of the volume inside the pod.
    pub name: String,
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
#[derive(Clone, PartialEq, Eq, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSource {
    /// Name of the claim in the pod's namespace.
    #[prost(string, tag = "1")]
    pub claim_name: String,
}

impl Source for PodVolumeSource {
    fn key(name: &str) -> Option<&'static str> {
        match name {
            "persistentVolumeClaim" => Some("persistentVolumeClaim"),
            "ephemeral" => Some("ephemeral"),
            _ => InTreeSource::key(name),
        }
    }

    fn read(key: &'static str, value: Value) -> Self {
        match key {
            "persistentVolumeClaim" => parse(key, value, Self::PersistentVolumeClaim),
            "ephemeral" => Self::Ephemeral,
            _ => Self::InTree(Box::new(InTreeSource::read(key, value))),
        }
    }

    fn malformed(malformed: Malformed) -> Self {
        Self::InTree(Box::new(InTreeSource::Malformed(malformed)))
    }
}

/// `status` of a Pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// `Pending`, `Running`, `Succeeded`, `Failed`.
    pub phase: String,
    /// Why, as text for people.
    pub message: Box<str>,
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

/// `state` of a container status: only "runs or not" is kept. The API documents no state at all as waiting;
/// KCM takes it for running, and so nothing is taken from a pod that may run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    /// Present when the container does not run yet.
    pub waiting: Option<Present>,
    /// Present when the container does not run any more.
    pub terminated: Option<Present>,
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

    // KCM: pkg/volume/util/util.go, notRunning.
    fn has_running_container(&self) -> bool {
        let status = &self.status;
        status
            .init_container_statuses
            .iter()
            .chain(&status.container_statuses)
            .chain(&status.ephemeral_container_statuses)
            .any(|container| container.state.waiting.is_none() && container.state.terminated.is_none())
    }

    /// The claim a volume of this pod stands for, if it does (attach-detach §2.2).
    #[must_use]
    pub fn claim_of(&self, volume: &PodVolume) -> Option<ClaimKey> {
        let namespace = &self.metadata.namespace;
        match &volume.source {
            PodVolumeSource::PersistentVolumeClaim(claim) => {
                Some(ClaimKey::new(namespace, &claim.claim_name))
            }
            PodVolumeSource::Ephemeral => {
                Some(ClaimKey::new(namespace, &format!("{}-{}", self.metadata.name, volume.name)))
            }
            PodVolumeSource::InTree(_) => None,
        }
    }
}

fn attachable_candidates<'de, D>(deserializer: D) -> Result<Vec<PodVolume>, D::Error>
where
    D: Deserializer<'de>,
{
    let entries = Option::<Vec<Entry>>::deserialize(deserializer)?.unwrap_or_default();
    Ok(entries.into_iter().filter_map(|Entry(volume)| volume).collect())
}

/// An entry of `volumes`, if it may be attachable.
struct Entry(Option<PodVolume>);

impl<'de> Deserialize<'de> for Entry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Named {
            name: String,
        }

        struct Volume;
        impl<'de> Visitor<'de> for Volume {
            type Value = Entry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a volume of a pod")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Entry, A::Error> {
                let mut source = None;
                let rest = WithoutSource::new(map, &mut source);
                let Named { name } = Named::deserialize(MapAccessDeserializer::new(rest))?;
                Ok(Entry(source.map(|source| PodVolume { name, source })))
            }
        }
        deserializer.deserialize_map(Volume)
    }
}
