//! Dangerous situations: those in which a storage loop can lose data, counted so that a reader knows what an observation has
//! seen and what not. Pure.

use apiserver::{
    kinds::{Meta, ObjectRef, Pod},
    tables::Objects,
};
use serde::Serialize;
use strum::{IntoStaticStr, VariantArray};

use super::{
    acts::Shape,
    holders::{holder, volumes_of},
};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum Situation {
    /// A pod came to a node whose exclusive volume another node has.
    WantedElsewhere,
    /// A node with volumes is no longer Ready.
    NodeNotReady,
    /// A node with volumes was deleted.
    NodeDeleted,
    /// A node with volumes was declared out of service.
    NodeOutOfService,
    /// A bound claim is deleted.
    ClaimDeleted,
    /// A bound volume is deleted.
    VolumeDeleted,
    /// A volume was taken off a node by force, after six minutes.
    DetachedByForce,
    /// A volume was taken off a node that is out of service.
    DetachedOutOfService,
    /// A volume was taken off a node whose object is gone.
    DetachedFromGoneNode,
    /// A volume was taken off a node whose kubelet began to use it after it came off the list.
    UsedAfterUnlist,
    /// A volume was given to another claim while its claim lived, as populators do.
    HandedOver,
}

/// What a change of an object of one of the kinds that the loops write to leads to.
pub(super) fn situation(before: Option<&Shape>, after: Option<&Shape>) -> Option<Situation> {
    let goes = |was: &Meta| !was.is_terminating() && after.is_none_or(|is| is.meta().is_terminating());
    match (before, after) {
        (Some(Shape::Node(was)), _) if was.status.volumes_attached.is_empty() => None,
        (Some(Shape::Node(_)), None) => Some(Situation::NodeDeleted),
        (Some(Shape::Node(was)), Some(Shape::Node(is))) => {
            if is.is_out_of_service() && !was.is_out_of_service() {
                return Some(Situation::NodeOutOfService);
            }
            (was.is_ready() && !is.is_ready()).then_some(Situation::NodeNotReady)
        }
        (Some(Shape::Claim(was)), _) if !was.spec.volume_name.is_empty() => {
            goes(&was.metadata).then_some(Situation::ClaimDeleted)
        }
        (Some(Shape::Volume(was)), _) if was.spec.claim_ref.is_some() => {
            goes(&was.metadata).then_some(Situation::VolumeDeleted)
        }
        _ => None,
    }
}

/// Whether a pod has come to a node whose exclusive volume another node has.
pub(super) fn wanted_elsewhere(world: &Objects, object: &ObjectRef, after: &Pod) -> Option<Situation> {
    let ObjectRef::Pod(key) = object else { return None };
    let node = &after.spec.node_name;
    let was_there = world.pods.get(key).is_some_and(|was| was.spec.node_name == *node);
    if node.is_empty() || was_there {
        return None;
    }
    let is_held = volumes_of(world, after).iter().any(|volume| holder(world, volume, node).is_some());
    is_held.then_some(Situation::WantedElsewhere)
}
