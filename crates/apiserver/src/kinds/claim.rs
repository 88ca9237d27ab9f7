//! PersistentVolumeClaim: what is asked for, and what was given.

use serde::{Deserialize, Deserializer, Serialize};
use strum::{IntoStaticStr, VariantNames};

use super::{Keep, Meta, meta::labelled, pod::Present};
use crate::{
    ids::{AttributesClassName, VolumeName},
    protobuf::{FromProtobuf as _, Values, enumeration, message, quantities},
    text::{Text, TextList, TextMap},
    wire::DecodeError,
};

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PersistentVolumeClaim {
    /// Metadata.
    pub metadata: Meta,
    /// Spec.
    pub spec: ClaimSpec,
    /// Status.
    pub status: ClaimStatus,
}
message!(PersistentVolumeClaim { metadata: 1 by labelled, spec: 2, status: 3 });

/// `spec` of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimSpec {
    /// Access modes asked for.
    pub access_modes: TextList,
    /// Resources asked for.
    pub resources: ClaimResources,
    /// The volume this claim is bound to, or asks for by name.
    pub volume_name: VolumeName,
    /// Class; absent and empty differ (pv-binder §2.3).
    pub storage_class_name: Option<Text>,
    /// `Filesystem` (also when absent) or `Block`.
    pub volume_mode: Option<Text>,
    /// VolumeAttributesClass.
    pub volume_attributes_class_name: Option<Text>,
    /// Labels a volume must bear.
    pub selector: Option<Box<LabelSelector>>,
    /// Present when the volume is to be made from something.
    pub data_source: Option<Present>,
}
message!(ClaimSpec {
    access_modes: 1,
    resources: 2,
    volume_name: 3,
    selector: 4,
    storage_class_name: 5,
    volume_mode: 6,
    data_source: 7,
    volume_attributes_class_name: 9,
});

/// `spec.resources`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ClaimResources {
    /// Requests by resource name, as written (quantities).
    pub requests: TextMap,
}
message!(ClaimResources { requests: 2 by quantities });

/// A label selector.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LabelSelector {
    /// All must match.
    pub match_labels: TextMap,
    /// All must match.
    pub match_expressions: Vec<LabelExpression>,
}
message!(LabelSelector { match_labels: 1, match_expressions: 2 });

/// One expression of a label selector.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct LabelExpression {
    /// Label key.
    pub key: Text,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`.
    pub operator: String,
    /// Values for `In` and `NotIn`.
    pub values: Vec<Text>,
}
message!(LabelExpression { key: 1, operator: 2, values: 3 });

/// `status` of a claim.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// Phase.
    pub phase: ClaimPhase,
    /// Access modes of the bound volume.
    pub access_modes: TextList,
    /// Capacity of the bound volume, as written (quantities).
    pub capacity: TextMap,
    /// VolumeAttributesClass in effect.
    pub current_volume_attributes_class_name: Option<Text>,
    /// The change of that class that is under way, if one is.
    pub modify_volume_status: Option<ModifyVolumeStatus>,
    /// How far the resizing of each resource is.
    pub allocated_resource_statuses: TextMap,
    /// The types of the conditions that hold.
    #[serde(deserialize_with = "holding")]
    pub conditions: TextList,
}
message!(ClaimStatus {
    phase: 1,
    access_modes: 2,
    capacity: 3 by quantities,
    conditions: 4 by holding_of,
    allocated_resource_statuses: 7,
    current_volume_attributes_class_name: 8,
    modify_volume_status: 9,
});

/// A condition.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ClaimCondition {
    r#type: Text,
    status: Text,
}
message!(ClaimCondition { r#type: 1, status: 2 });

fn types(conditions: Vec<ClaimCondition>) -> TextList {
    conditions.into_iter().filter(|it| it.status == "True").map(|it| it.r#type).collect()
}

fn holding<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TextList, D::Error> {
    Vec::deserialize(deserializer).map(types)
}

fn holding_of(values: Values<'_, '_>) -> Result<TextList, DecodeError> {
    Vec::from_values(values).map(types)
}

/// `status.modifyVolumeStatus`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ModifyVolumeStatus {
    /// The VolumeAttributesClass that the volume is to have.
    pub target_volume_attributes_class_name: Text,
}
message!(ModifyVolumeStatus { target_volume_attributes_class_name: 1 });

/// How far the expansion of a claim's volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeStep {
    /// The external-resizer enlarges the volume.
    Controller,
    /// The volume cannot be enlarged.
    ControllerInfeasible,
    /// The volume is larger, and a kubelet is to expand its file system.
    Node,
    /// The kubelet cannot.
    NodeInfeasible,
}

impl ClaimStatus {
    /// How far the expansion is, if the status says something of one (KEP-1790).
    // external-resizer: pkg/controller; kubelet: pkg/volume/util/operationexecutor, node_expander.go.
    pub fn resize(&self) -> Option<ResizeStep> {
        let holds = |r#type: &str| self.conditions.iter().any(|one| one == r#type);
        match self.allocated_resource_statuses.get("storage").map(Text::as_str) {
            Some("ControllerResizeInfeasible") => Some(ResizeStep::ControllerInfeasible),
            Some("NodeResizeInfeasible") => Some(ResizeStep::NodeInfeasible),
            Some("NodeResizePending" | "NodeResizeInProgress") => Some(ResizeStep::Node),
            Some(_) => Some(ResizeStep::Controller),
            // Of a resizer without RecoverVolumeExpansionFailure.
            None if holds("FileSystemResizePending") => Some(ResizeStep::Node),
            None => holds("Resizing").then_some(ResizeStep::Controller),
        }
    }
}

impl PersistentVolumeClaim {
    /// The VolumeAttributesClasses that the claim names: wanted, in effect, and being applied.
    pub fn attributes_classes(&self) -> impl Iterator<Item = AttributesClassName> {
        let target = self.status.modify_volume_status.as_ref();
        let names = [
            self.spec.volume_attributes_class_name.as_ref(),
            self.status.current_volume_attributes_class_name.as_ref(),
            target.map(|modify| &modify.target_volume_attributes_class_name),
        ];
        names
            .into_iter()
            .flatten()
            .map(|name| AttributesClassName::from(name.as_str()))
            .filter(|name| !name.is_empty())
    }
}

/// `status.phase` of a claim.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize, Serialize, IntoStaticStr, VariantNames,
)]
pub enum ClaimPhase {
    /// Not bound.
    #[default]
    #[serde(alias = "")]
    Pending,
    /// Bound.
    Bound,
    /// Was bound, and its volume is gone.
    Lost,
    /// A phase this version does not know.
    #[serde(other)]
    Unknown,
}
enumeration!(ClaimPhase);

impl Keep for PersistentVolumeClaim {
    fn trim(&mut self) {
        self.metadata.keep_noted(|owner| owner.controller);
    }
}
