//! The few patches that people make by hand, each with the proof it demands.
//!
//! In: a snapshot, what is assumed of the binder, and the repair. Out: a refusal that says all that is missing, or a
//! proposal with the exact requests. Every request names the UID and the revision of what was looked at, so that it does
//! nothing to anything else. What a proposal promises of the binder, the binder was asked over a changed copy.
//!
//! No finalizer of an attachment that may be attached is ever taken away, and nothing is concluded from what was not
//! read: what cannot be proven is refused.

mod free;
mod relink;
mod text;
mod unstick;

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    assumptions::Assumptions,
    report::{API_VERSION, Verdict},
    snapshot::Snapshot,
};
use crate::{
    attach_detach::desired::volume_name::VolumeId,
    kube_api::{
        call::{Request, Verb},
        ids::{AttachmentName, ClaimKey, VolumeName},
        kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
    },
    state::Stored,
};

/// What is to be repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// A claim and its volume are led to each other again, after one of them was made anew.
    Relink(ClaimKey, VolumeName),
    /// A volume that was released becomes available: for a claim of the same name, or for any.
    Free(VolumeName, FreeFor),
    /// An attachment that nothing will ever take away goes.
    Unstick(AttachmentName),
}

/// Whom a freed volume is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FreeFor {
    /// A claim of the name that the volume had.
    SameName,
    /// Any claim that fits.
    Anyone,
}

/// A request as it will be sent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Write {
    /// `PATCH`.
    pub method: &'static str,
    /// Path of the URL.
    pub path: String,
    /// Body, with UID and revision.
    pub body: Value,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    /// Version of the form.
    pub api_version: &'static str,
    /// `Repair`.
    pub kind: &'static str,
    /// What was asked for.
    pub repair: String,
    /// Whether there is a proposal.
    pub verdict: Verdict,
    /// All that speaks against it; empty for a proposal.
    pub refused: Vec<String>,
    /// What was proven, a sentence each.
    pub proof: Vec<String>,
    /// What it costs, and what happens next.
    pub consequence: String,
    /// What is to be sent, in this order.
    pub requests: Vec<Write>,
    /// When it was looked at.
    pub at: Timestamp,
}

/// What a repair found out.
#[derive(Debug, Default)]
struct Findings {
    against: Vec<String>,
    proof: Vec<String>,
    is_missing: bool,
    is_unseen: bool,
}

impl Findings {
    /// Something has to be so.
    fn demand(&mut self, holds: bool, proof: impl Into<String>, against: impl Into<String>) {
        if holds {
            self.proof.push(proof.into());
        } else {
            self.against.push(against.into());
        }
    }

    /// Something has not to be so.
    fn refuse_if(&mut self, holds: bool, against: impl Into<String>) {
        if holds {
            self.against.push(against.into());
        }
    }

    /// A table has to have been read whole.
    fn demand_list<T: Stored>(&mut self, snapshot: &Snapshot) {
        if !snapshot.is_listed::<T>() {
            self.is_unseen = true;
            self.against
                .push(format!("{} could not all be read: nothing is proven by those that were", T::PLURAL));
        }
    }

    /// The object, which has to be there and whole.
    fn demand_object<T: Stored>(&mut self, snapshot: &Snapshot, key: &T::Key) -> Option<Arc<T>> {
        let object = T::table(&snapshot.objects).get(key);
        match &object {
            None => {
                self.is_missing |= snapshot.is_absent(&T::object_ref(key.clone()));
                self.is_unseen |= !self.is_missing;
                self.against.push(format!("{} was not found", T::object_ref(key.clone())));
            }
            Some(object) => {
                let metadata = object.metadata();
                self.refuse_if(
                    metadata.uid.is_empty() || metadata.resource_version.0 == 0,
                    format!("{} has no UID and revision to name", T::object_ref(key.clone())),
                );
            }
        }
        object
    }
}

/// Whether, and how, something is repaired.
#[must_use]
pub fn repair(snapshot: &Snapshot, assumptions: &Assumptions, what: &Repair) -> Advice {
    let mut findings = Findings::default();
    let (asked, proposal) = match what {
        Repair::Relink(claim, volume) => {
            let asked = format!("relink pvc/{} pv/{volume} -n {}", claim.name(), claim.namespace());
            (asked, relink::propose(snapshot, assumptions, claim, volume, &mut findings))
        }
        Repair::Free(volume, whom) => {
            let flag = if *whom == FreeFor::Anyone { " --for-anyone" } else { "" };
            (
                format!("free pv/{volume}{flag}"),
                free::propose(snapshot, assumptions, volume, *whom, &mut findings),
            )
        }
        Repair::Unstick(name) => {
            (format!("unstick va/{name}"), unstick::propose(snapshot, assumptions, name, &mut findings))
        }
    };
    let Findings { against, proof, is_missing, is_unseen } = findings;
    let (requests, consequence) = proposal.filter(|_| against.is_empty()).unwrap_or_default();
    let verdict = match requests.as_slice() {
        [] if is_missing => Verdict::NotFound,
        [] if is_unseen => Verdict::Forbidden,
        [] => Verdict::Blocked,
        _ => Verdict::Healthy,
    };
    Advice {
        api_version: API_VERSION,
        kind: "Repair",
        repair: asked,
        verdict,
        refused: against,
        proof,
        consequence,
        requests: requests.iter().map(Write::of).collect(),
        at: snapshot.taken_at,
    }
}

/// Requests, and what becomes of it.
type Proposal = (Vec<Request>, String);

impl Write {
    fn of(request: &Request) -> Self {
        let method = match request.verb {
            Verb::Get => "GET",
            Verb::Create => "POST",
            Verb::Update => "PUT",
            Verb::Patch => "PATCH",
            Verb::Delete => "DELETE",
        };
        Self { method, path: request.path.clone(), body: request.body.clone().unwrap_or_default() }
    }

    /// As it is sent.
    #[must_use]
    pub fn request(&self) -> Option<Request> {
        // Nothing else is ever proposed.
        let verb = if self.method == "PATCH" { Verb::Patch } else { return None };
        Some(Request { verb, path: self.path.clone(), body: Some(self.body.clone()) })
    }
}

/// A merge patch that does something to this object at this revision alone.
fn patch<T: Narrow>(object: &T, mut metadata: Value, rest: Value) -> Request {
    let meta = object.metadata();
    if let Some(fields) = metadata.as_object_mut() {
        fields.insert("uid".to_owned(), json!(meta.uid));
        fields.insert("resourceVersion".to_owned(), json!(meta.resource_version));
    }
    let mut body = rest;
    if let Some(fields) = body.as_object_mut() {
        fields.insert("metadata".to_owned(), metadata);
    }
    Request { verb: Verb::Patch, path: T::path(&object.key()), body: Some(body) }
}

/// Other volumes of the same handle.
fn twins(snapshot: &Snapshot, volume: &PersistentVolume) -> Vec<VolumeName> {
    let mut twins = Vec::new();
    let Some(csi) = &volume.spec.csi else { return twins };
    snapshot.objects.volumes.for_each(|other| {
        if other.spec.csi.as_ref() == Some(csi) && other.metadata.name != volume.metadata.name {
            twins.push(other.metadata.name.clone().into());
        }
    });
    twins.sort();
    twins
}

/// Claims that name a volume, other than this one.
fn claimants(snapshot: &Snapshot, name: &VolumeName, but: Option<&ClaimKey>) -> Vec<ClaimKey> {
    let mut claimants = Vec::new();
    snapshot.objects.claims.for_each(|claim: &PersistentVolumeClaim| {
        let key = ClaimKey::new(&claim.metadata.namespace, &claim.metadata.name);
        if claim.spec.volume_name == *name && Some(&key) != but {
            claimants.push(key);
        }
    });
    claimants.sort();
    claimants
}

/// Nodes to which the volume is attached, or may be.
fn attached_to(snapshot: &Snapshot, volume: &PersistentVolume) -> Vec<String> {
    let mut nodes = Vec::new();
    let id = volume.spec.csi.as_ref().map(|csi| VolumeId::csi(&csi.driver, &csi.volume_handle));
    snapshot.objects.attachments.for_each(|attachment| {
        let source = attachment.spec.source.persistent_volume_name.as_ref();
        let is_named = source.is_some_and(|name| name.as_str() == volume.metadata.name.as_str());
        let is_hashed = id.as_ref().is_some_and(|id| {
            id.attachment_name(&attachment.spec.node_name).as_str() == attachment.metadata.name.as_str()
        });
        if is_named || is_hashed {
            nodes.push(attachment.spec.node_name.to_string());
        }
    });
    nodes.sort();
    nodes
}

fn listed<T: ToString>(names: &[T]) -> String {
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
