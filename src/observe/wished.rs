//! What a write of mooring would have changed: its mutations, from the request and the object that it is about. Pure.

use std::sync::Arc;

use apiserver::{
    call::{Request, Verb},
    kinds::{ObjectRef, PersistentVolumeClaim, VolumeAttachment},
    tables::Objects,
};
use serde::Deserialize as _;
use serde_json::Value;

use super::{
    acts::{Shape, acts, deleted},
    mutation::Mutation,
};

/// The mutations of a write that is not made. Empty if it changes nothing that is compared.
///
/// A volume or claim is taken as the ruler left it at the last act that was judged: its own write of the same, which the
/// tables have already, makes no wish moot.
pub(super) fn wished(request: &Request, world: &Objects, objects: &Objects) -> Vec<Mutation> {
    let Some(body) = &request.body else { return Vec::new() };
    let target = request.target();
    let namespace =
        request.path.split('/').skip_while(|part| *part != "namespaces").nth(1).unwrap_or_default();
    let Some(object) = ObjectRef::named(target.plural, namespace, target.name) else { return Vec::new() };
    let judged = Shape::of(world, &object).filter(|it| matches!(it, Shape::Volume(_) | Shape::Claim(_)));
    let known = judged.or_else(|| Shape::of(objects, &object));
    match (request.verb, &known) {
        (Verb::Create, _) => acts(None, made(&object, namespace, body).as_ref()),
        (Verb::Patch, Some(was)) => acts(Some(was), Some(&was.clone().patched(body))),
        // Its finalizers go later.
        (Verb::Delete, Some(Shape::Volume(volume))) => vec![deleted(volume)],
        (Verb::Delete, Some(was)) => acts(Some(was), None),
        _ => Vec::new(),
    }
}

/// The object that a create makes.
fn made(object: &ObjectRef, namespace: &str, body: &Value) -> Option<Shape> {
    match object {
        ObjectRef::Attachment(_) => {
            VolumeAttachment::deserialize(body).ok().map(Arc::new).map(Shape::Attachment)
        }
        ObjectRef::Claim(_) => {
            let mut claim = PersistentVolumeClaim::deserialize(body).ok()?;
            claim.metadata.namespace = namespace.into();
            Some(Shape::Claim(Arc::new(claim)))
        }
        _ => None,
    }
}
