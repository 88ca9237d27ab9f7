//! What a write of mooring would have changed: its mutations, from the request and the object that it is about. Pure.

use std::collections::BTreeSet;

use apiserver::{
    call::{Request, Verb},
    ids::{ClaimKey, NodeName, Uid},
    kinds::{Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim},
    tables::Objects,
};
use serde_json::Value;

use super::{
    acts::{finalizer_changes, list_changes},
    mutation::{Chosen, Mutation, MutationKind},
};
use crate::binder::annotations::{BIND_COMPLETED, MIGRATED_TO, STORAGE_PROVISIONER};
use crate::expander::calls::STORAGE_RESIZER;

/// The mutations of a write that is not made. Empty if it changes nothing that is compared.
pub(super) fn wished(request: &Request, objects: &Objects) -> Vec<Chosen> {
    let Some(body) = &request.body else { return Vec::new() };
    let target = request.target();
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let one = |kind, object, uid: &Uid| vec![Chosen::from(Mutation::new(kind, object, uid, ""))];
    match (request.verb, target.plural) {
        (Verb::Create, "volumeattachments") => {
            let object = ObjectRef::Attachment(text("/metadata/name").into());
            let created = Mutation::new(MutationKind::Attach, object, &Uid::default(), "");
            vec![created.on(&NodeName::from(text("/spec/nodeName"))).into()]
        }
        (Verb::Delete, "volumeattachments") => {
            let Some(known) = objects.attachments.get(&target.name.into()) else { return Vec::new() };
            let object = ObjectRef::Attachment(known.key());
            let deleted = Mutation::new(MutationKind::Detach, object, &known.metadata.uid, "");
            vec![deleted.on(&known.spec.node_name).into()]
        }
        (Verb::Delete, "persistentvolumes") => {
            let object = ObjectRef::Volume(target.name.into());
            one(MutationKind::DeleteVolume, object, &text("/preconditions/uid").into())
        }
        (Verb::Create, "persistentvolumeclaims") => {
            let namespace = request.path.rsplit('/').nth(1).unwrap_or_default();
            let key = ClaimKey::new(namespace, text("/metadata/name"));
            one(MutationKind::CreateClaim, ObjectRef::Claim(key), &Uid::default())
        }
        (Verb::Patch, "nodes") => {
            let Some(node) = objects.nodes.get(&target.name.into()) else { return Vec::new() };
            let list = body.pointer("/status/volumesAttached").and_then(Value::as_array);
            let names = list.into_iter().flatten().filter_map(|entry| entry["name"].as_str());
            list_changes(&node, &names.map(str::to_owned).collect())
        }
        (Verb::Patch, "persistentvolumes") => match objects.volumes.get(&target.name.into()) {
            Some(known) => volume(body, &known),
            None => Vec::new(),
        },
        (Verb::Patch, "persistentvolumeclaims") => {
            let namespace = request.path.split('/').skip_while(|part| *part != "namespaces").nth(1);
            match objects.claims.get(&ClaimKey::new(namespace.unwrap_or_default(), target.name)) {
                Some(known) => claim(body, &known),
                None => Vec::new(),
            }
        }
        (Verb::Patch, "volumeattributesclasses") => {
            match objects.attributes_classes.get(&target.name.into()) {
                Some(known) => finalizers(body, &*known),
                None => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

fn of<T: Narrow>(kind: MutationKind, object: &T, value: &str) -> Chosen {
    Mutation::new(kind, T::object_ref(object.key()), &object.metadata().uid, value).into()
}

fn volume(body: &Value, known: &PersistentVolume) -> Vec<Chosen> {
    let mut found = Vec::new();
    if let Some(claim) = body.pointer("/spec/claimRef") {
        let text = |field: &str| claim[field].as_str().unwrap_or_default();
        if text("uid").is_empty() {
            found.push(of(MutationKind::Unreserve, known, ""));
        } else {
            let object = ObjectRef::Claim(ClaimKey::new(text("namespace"), text("name")));
            let mutation = Mutation::new(MutationKind::Reserve, object, &text("uid").into(), "");
            found.push(Chosen { mutation, volume: Some(known.key()) });
        }
    }
    let phase = body.pointer("/status/phase").and_then(Value::as_str);
    if let Some(phase) = phase.filter(|phase| *phase != known.status.phase.as_str()) {
        found.push(of(MutationKind::VolumePhase, known, phase));
    }
    if annotates(body, MIGRATED_TO) {
        found.push(of(MutationKind::Annotate, known, MIGRATED_TO));
    }
    found.extend(finalizers(body, known));
    found
}

fn claim(body: &Value, known: &PersistentVolumeClaim) -> Vec<Chosen> {
    let mut found = Vec::new();
    if body.pointer("/spec/storageClassName").is_some() {
        found.push(of(MutationKind::AssignClass, known, ""));
    }
    if body.pointer("/spec/volumeName").is_some() || annotates(body, BIND_COMPLETED) {
        found.push(of(MutationKind::NameVolume, known, ""));
    }
    for (key, kind) in
        [(STORAGE_PROVISIONER, MutationKind::AskProvisioner), (STORAGE_RESIZER, MutationKind::AskResizer)]
    {
        if annotates(body, key) && known.metadata.annotation(key).is_none() {
            found.push(of(kind, known, ""));
        }
    }
    let phase = body.pointer("/status/phase").and_then(Value::as_str);
    if let Some(phase) = phase.filter(|phase| *phase != known.status.phase.as_str()) {
        found.push(of(MutationKind::ClaimPhase, known, phase));
    }
    found.extend(finalizers(body, known));
    found
}

fn annotates(body: &Value, key: &str) -> bool {
    body.pointer("/metadata/annotations").is_some_and(|annotations| annotations.get(key).is_some())
}

fn finalizers<T: Narrow>(body: &Value, known: &T) -> Vec<Chosen> {
    let Some(list) = body.pointer("/metadata/finalizers").and_then(Value::as_array) else {
        return Vec::new();
    };
    let list: BTreeSet<&str> = list.iter().filter_map(Value::as_str).collect();
    finalizer_changes(known, &list)
}
