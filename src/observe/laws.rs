//! The laws that each act of the ruler is held against, with no regard to what mooring would do. Pure.
//!
//! In: the world right before an act, and the act. Out: what the act was held against, and if it breaks a law
//! ([safety](../../docs/spec/safety.md)), which and how. What kube-controller-manager does by intention, and mooring too,
//! is named and not called unsafe: a detach by force after six minutes or because a node is out of service.

use apiserver::{
    ids::NodeName,
    kinds::{
        ClaimPhase, ClaimRef, Narrow as _, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim,
        VolumeAttachment, VolumePhase,
    },
    tables::Objects,
};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::{
    acts::Shape,
    holders::{Held, holder, no_op},
    mutation::{Mutation, MutationKind},
    past::Earlier,
    situations::Situation,
};
use crate::{
    attach_detach::state::desired::volume_source::source_of,
    binder::{
        annotations::{BIND_COMPLETED, has},
        dry_run::all_mismatches,
        matching::predicate::Mismatch,
    },
};

/// All laws that acts are held against, by their numbers in docs/spec/safety.md.
#[cfg(test)]
pub const LAWS: [&str; 13] =
    ["S1", "S2", "S3", "S4", "S19", "S21", "S23", "S24", "S27", "S33", "S43", "S45", "S49"];

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Breach {
    /// Its number in docs/spec/safety.md.
    pub law: &'static str,
    /// What happened.
    pub told: String,
}

/// What an act was held against.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// The laws.
    pub laws: Vec<&'static str>,
    /// The one that it breaks.
    pub breach: Option<Breach>,
    /// What it was done in, by intention.
    pub named: Option<Situation>,
}

impl Judged {
    fn by(law: &'static str, broken: Option<String>) -> Self {
        Self { laws: vec![law], breach: broken.map(|told| Breach { law, told }), named: None }
    }

    fn and(mut self, law: &'static str, broken: Option<String>) -> Self {
        self.laws.push(law);
        self.breach = self.breach.or_else(|| broken.map(|told| Breach { law, told }));
        self
    }
}

/// Holds an act against the laws: the object before and after, in the world as it was.
pub(super) fn judge(
    (world, past): (&Objects, &Earlier),
    act: &Mutation,
    (before, after): (Option<&Shape>, Option<&Shape>),
    now: Timestamp,
) -> Judged {
    match (act.kind, before, after) {
        (MutationKind::Attach, _, Some(Shape::Attachment(made))) => {
            Judged::by("S1", second_attachment(world, made))
        }
        (MutationKind::Detach, Some(Shape::Attachment(was)), _) => detach((world, past), was, now),
        (MutationKind::List, _, Some(Shape::Node(is))) => listed(world, act, &is.key()),
        (MutationKind::Unlist, Some(Shape::Node(was)), _) => unlisted((world, past), act, was, now),
        (MutationKind::Reserve, Some(Shape::Volume(was)), _) => {
            let named = live_claim(world, was).map(|_| Situation::HandedOver);
            let judged = Judged::by("S45", named_by_another(world, was, act));
            let mut judged = judged.and("S19", second_volume(world, act));
            if named.is_none() {
                judged = judged.and("S27", does_not_suit(world, was, act));
            }
            Judged { named, ..judged }
        }
        (MutationKind::Unreserve, Some(Shape::Volume(was)), _) => {
            Judged::by("S45", of_live_claim(world, was, "takes its claim off, although"))
        }
        (MutationKind::VolumePhase, Some(Shape::Volume(was)), Some(Shape::Volume(is))) => {
            match is.status.phase {
                VolumePhase::Released | VolumePhase::Failed | VolumePhase::Available => {
                    let set = format!("sets it {}, although", <&str>::from(is.status.phase));
                    Judged::by("S23", of_live_claim(world, was, &set))
                }
                _ => Judged::default(),
            }
        }
        (MutationKind::DeleteVolume, Some(Shape::Volume(was)), _) => {
            Judged::by("S23", of_live_claim(world, was, "it is gone, although"))
        }
        (MutationKind::NameVolume, _, Some(Shape::Claim(is))) => Judged::by("S21", names_anothers(world, is)),
        (MutationKind::ClaimPhase, _, Some(Shape::Claim(is))) if is.status.phase == ClaimPhase::Lost => {
            Judged::by("S24", is_not_lost(world, is))
        }
        (MutationKind::Unprotect, Some(was), _) => unprotect(world, was),
        _ => Judged::default(),
    }
}

fn second_attachment(world: &Objects, made: &VolumeAttachment) -> Option<String> {
    let (volume, node) = (source_of(world, made)?, &made.spec.node_name);
    second_node(world, &(volume.id, volume.sharing), node)
}

fn second_node(world: &Objects, volume: &Held, node: &NodeName) -> Option<String> {
    let (holder, id) = (holder(world, volume, node)?, &volume.0);
    Some(format!("{id} is for one node alone; it is attached to node/{node} while node/{holder} has it"))
}

/// Where a volume has no attachment, the list is what attaches it.
fn listed(world: &Objects, act: &Mutation, node: &NodeName) -> Judged {
    no_op(world, &act.value)
        .map(|volume| Judged::by("S1", second_node(world, &volume, node)))
        .unwrap_or_default()
}

/// Where a volume has an attachment, the detach that follows is held against the laws.
fn unlisted((world, past): (&Objects, &Earlier), act: &Mutation, was: &Node, now: Timestamp) -> Judged {
    let is_detached = no_op(world, &act.value).is_some();
    if !was.uses(&act.value) {
        return if is_detached { Judged::by("S3", None) } else { Judged::default() };
    }
    if was.is_ready() && past.has_just_begun(&was.key(), &act.value, now) {
        // The ruler may have decided before the report. kube-controller-manager reads the Node before it detaches, and lists it again.
        let judged = if is_detached { Judged::by("S3", None) } else { Judged::default() };
        return Judged { named: Some(Situation::UsedAfterUnlist), ..judged };
    }
    let judged = by_force((world, past), (was, &act.value), now);
    if is_detached { judged } else { Judged { named: judged.named, ..Judged::default() } }
}

fn detach((world, past): (&Objects, &Earlier), was: &VolumeAttachment, now: Timestamp) -> Judged {
    let name = &was.spec.node_name;
    let Some(node) = world.nodes.get(name) else {
        // For how long it has been gone is not known, so this is held against nothing.
        return Judged { named: Some(Situation::DetachedFromGoneNode), ..Judged::default() };
    };
    let Some(id) = source_of(world, was).map(|volume| volume.id) else { return Judged::default() };
    let is_listed = node.lists(id.as_str()).then(|| {
        format!("the attachment of {id} is deleted while status.volumesAttached of node/{name} lists it")
    });
    if !node.uses(id.as_str()) {
        let is_doubtful = past.used_by_former(name, id.as_str(), now) && !node.is_out_of_service();
        let mounted = is_doubtful.then(|| {
            format!("{id} is detached from node/{name}, which was made anew less than a minute ago and used it before")
        });
        return Judged::by("S3", None).and("S2", is_listed).and("S43", mounted);
    }
    if past.was_idle(name, id.as_str()) {
        let judged = Judged::by("S3", None).and("S2", is_listed);
        return Judged { named: Some(Situation::UsedAfterUnlist), ..judged };
    }
    by_force((world, past), (node.as_ref(), id.as_str()), now)
}

/// A volume comes off a node whose kubelet uses it.
fn by_force((world, past): (&Objects, &Earlier), (node, id): (&Node, &str), now: Timestamp) -> Judged {
    let name = node.key();
    let in_use = |why: &str| format!("{id} is detached from node/{name}, whose kubelet uses it: {why}");
    if node.is_out_of_service() {
        return Judged { named: Some(Situation::DetachedOutOfService), ..Judged::by("S4", None) };
    }
    if node.is_ready() {
        return Judged::by("S3", Some(in_use("the node is Ready")));
    }
    // kube-controller-manager counts from the end of need, however long the node has been silent by then.
    if past.was_needed(world, (&name, id), now) {
        return Judged::by("S4", Some(in_use("a pod has needed it there within 6 min")));
    }
    Judged { named: Some(Situation::DetachedByForce), ..Judged::by("S4", None) }
}

/// The claim of a volume, if it lives and names the volume.
fn live_claim(world: &Objects, volume: &PersistentVolume) -> Option<ClaimRef> {
    let claim_ref = volume.spec.claim_ref.as_ref().filter(|claim| !claim.uid.is_empty())?;
    let claim = world.claims.get(&claim_ref.key())?;
    let is_it = claim.metadata.uid == claim_ref.uid && claim.spec.volume_name == volume.key();
    is_it.then(|| claim_ref.clone())
}

fn of_live_claim(world: &Objects, volume: &PersistentVolume, done: &str) -> Option<String> {
    let claim = live_claim(world, volume)?;
    Some(format!("pv/{}: {done} pvc/{} lives and names it", volume.key(), claim.key()))
}

/// A claim that was bound to the volume names it, although the volume refers to none.
fn named_by_another(world: &Objects, volume: &PersistentVolume, act: &Mutation) -> Option<String> {
    let name = volume.key();
    let mut owner = None;
    if volume.spec.claim_ref.is_none() {
        world.claims.for_each(|claim| {
            let is_owner = claim.spec.volume_name == name && has(&claim.metadata, BIND_COMPLETED);
            if is_owner && claim.metadata.uid != act.uid {
                owner = Some(claim.key());
            }
        });
    }
    let (owner, given) = (owner?, &act.object);
    Some(format!("pv/{name}: gives it to {given}, although pvc/{owner} lives and names it"))
}

/// The claim has another volume already.
fn second_volume(world: &Objects, act: &Mutation) -> Option<String> {
    let ObjectRef::Claim(key) = &act.object else { return None };
    let (claim, given) = (world.claims.get(key)?, act.volume.as_ref()?);
    let named = &claim.spec.volume_name;
    let has_another = claim.metadata.uid == act.uid && !named.is_empty() && named != given;
    has_another.then(|| format!("pv/{given} is given to pvc/{key}, which names pv/{named}"))
}

/// The claim asks for something else, and nobody has joined the two before.
fn does_not_suit(world: &Objects, volume: &PersistentVolume, act: &Mutation) -> Option<String> {
    let ObjectRef::Claim(key) = &act.object else { return None };
    let claim = world.claims.get(key).filter(|claim| claim.metadata.uid == act.uid)?;
    let is_joined = volume.spec.claim_ref.is_some() || claim.spec.volume_name == volume.key();
    let all = all_mismatches(volume, &claim).ok().filter(|all| !is_joined && !all.is_empty())?;
    let codes: Vec<&str> = all.into_iter().map(Mismatch::code).collect();
    Some(format!("pv/{} is given to pvc/{key}, which it does not suit: {}", volume.key(), codes.join(", ")))
}

fn names_anothers(world: &Objects, claim: &PersistentVolumeClaim) -> Option<String> {
    let name = &claim.spec.volume_name;
    if !has(&claim.metadata, BIND_COMPLETED) {
        // People may name a volume before it is bound.
        return None;
    }
    let volume = world.volumes.get(name)?;
    let of = volume.spec.claim_ref.as_ref();
    let is_given = of.is_some_and(|of| of.uid == claim.metadata.uid);
    (!is_given).then(|| format!("pvc/{} is bound to pv/{name}, which is not given to it", claim.key()))
}

fn is_not_lost(world: &Objects, claim: &PersistentVolumeClaim) -> Option<String> {
    let volume = world.volumes.get(&claim.spec.volume_name)?;
    let of = volume.spec.claim_ref.as_ref()?;
    (of.uid == claim.metadata.uid)
        .then(|| format!("pvc/{} is called Lost, although pv/{} refers to it", claim.key(), volume.key()))
}

fn unprotect(world: &Objects, was: &Shape) -> Judged {
    match was {
        Shape::Claim(claim) => {
            let (key, mut user) = (claim.key(), None);
            world.pods.for_each(|pod| {
                let names_it = |volume| pod.claim_of(volume).as_ref() == Some(&key);
                let runs = !pod.is_terminated() && !pod.spec.node_name.is_empty();
                if runs
                    && pod.metadata.namespace == claim.metadata.namespace
                    && pod.spec.volumes.iter().any(names_it)
                {
                    user = Some(pod.key());
                }
            });
            let told = user.map(|pod| format!("pvc/{key} loses its finalizer while pod/{pod} uses it"));
            Judged::by("S33", told)
        }
        Shape::Volume(volume) => {
            Judged::by("S33", of_live_claim(world, volume, "it loses its finalizer, although"))
        }
        Shape::Class(class) => {
            let (name, mut user) = (class.key(), None);
            world.claims.for_each(|claim| {
                if claim.attributes_classes().any(|of| of == name) {
                    user = Some(format!("pvc/{}", claim.key()));
                }
            });
            let told = user.map(|user| format!("{name} loses its finalizer while {user} names it"));
            Judged::by("S49", told)
        }
        Shape::Attachment(_) | Shape::Node(_) => Judged::default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    #[test]
    fn a_detach_from_a_node_that_is_gone_is_named_and_held_against_no_law() {
        let attachment = from_value(json!({
            "metadata": { "name": "a", "uid": "a", "resourceVersion": "1" },
            "spec": { "attacher": "d", "nodeName": "n1", "source": { "persistentVolumeName": "v1" } },
        }));
        let world = (&Objects::default(), &Earlier::default());
        let judged = detach(world, &attachment.unwrap(), Timestamp::UNIX_EPOCH);
        let named = Some(Situation::DetachedFromGoneNode);
        assert_eq!(judged, Judged { named, ..Judged::default() });
    }
}
