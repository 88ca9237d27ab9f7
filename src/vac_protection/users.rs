//! Which claims and volumes name a VolumeAttributesClass: as the tables show, and as live lists show.
//!
//! In: claims and volumes as they change. Out: the classes whose use that may end or begin; whether one is used; and one
//! pair of lists for all classes that wait for it. Claims that name no class cost nothing.

use std::collections::BTreeSet;

use apiserver::{
    call::{CallError, Caller},
    ids::AttributesClassName,
    kinds::{Narrow, ObjectRef, VolumeAttributesClass},
    tables::Objects,
};
use derive_more::Display;
use serde::Deserialize;

use crate::controller::{
    finalizer::{Users, pages},
    uses::Uses,
};

/// Names of classes.
type ClassNames = BTreeSet<AttributesClassName>;

/// The claims and volumes that name classes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ClassUsers(pub Uses<ObjectRef, AttributesClassName>);

/// The classes that a claim or volume names.
// KCM: pkg/controller/volume/vacprotection, getPVCReferencedVACNames and getPVReferencedVACNames.
fn names_of(object: &ObjectRef, objects: &Objects) -> ClassNames {
    match object {
        ObjectRef::Claim(key) => {
            objects.claims.get(key).map(|claim| claim.attributes_classes().collect()).unwrap_or_default()
        }
        ObjectRef::Volume(name) => {
            objects.volumes.get(name).into_iter().filter_map(|volume| volume.attributes_class()).collect()
        }
        _ => ClassNames::new(),
    }
}

impl Users<AttributesClassName> for ClassUsers {
    type List = ClaimsAndVolumes;
    /// The classes that are named.
    type Shown = ClassNames;

    fn load(&mut self, objects: &Objects) {
        for key in objects.claims.snapshot().into_keys() {
            self.changed(&ObjectRef::Claim(key), objects);
        }
        for name in objects.volumes.snapshot().into_keys() {
            self.changed(&ObjectRef::Volume(name), objects);
        }
    }

    fn changed(&mut self, object: &ObjectRef, objects: &Objects) -> ClassNames {
        let [before, now] = self.0.set(object, names_of(object, objects));
        before.symmetric_difference(&now).cloned().collect()
    }

    fn user(&self, class: &VolumeAttributesClass, _: &Objects) -> Option<&'static str> {
        match self.0.of(&class.key()).next()? {
            ObjectRef::Volume(_) => Some("a volume names it"),
            _ => Some("a claim names it"),
        }
    }

    fn list_of(&self, _: &AttributesClassName) -> Option<ClaimsAndVolumes> {
        Some(ClaimsAndVolumes)
    }

    async fn send(_: &ClaimsAndVolumes, caller: &Caller) -> Result<ClassNames, CallError> {
        let mut named = ClassNames::new();
        let of_claim = |claim: NamedByClaim| {
            let (spec, status) = (claim.spec.unwrap_or_default(), claim.status.unwrap_or_default());
            let target = status.modify_volume_status;
            named.extend(spec.volume_attributes_class_name);
            named.extend(status.current_volume_attributes_class_name);
            named.extend(target.and_then(|target| target.target_volume_attributes_class_name));
        };
        pages::list(caller, "/api/v1/persistentvolumeclaims", "PersistentVolumeClaimList", of_claim).await?;
        let of_volume = |volume: NamedByVolume| {
            named.extend(volume.spec.and_then(|spec| spec.volume_attributes_class_name));
        };
        pages::list(caller, "/api/v1/persistentvolumes", "PersistentVolumeList", of_volume).await?;
        Ok(named)
    }

    fn shown_user(named: &ClassNames, class: &VolumeAttributesClass) -> Option<&'static str> {
        named.contains(&class.key()).then_some("a claim or volume names it, as a live list shows")
    }
}

/// All claims, and then all volumes. In this order: what provisions a volume writes the class of the claim into it, so
/// that a use may go over from a claim to a volume, and not back.
#[derive(Clone, Debug, Display, PartialEq, Eq, PartialOrd, Ord)]
#[display("claims and volumes")]
pub struct ClaimsAndVolumes;

/// What of a claim is read. Whatever else there is wrong with it keeps no class.
#[derive(Deserialize)]
struct NamedByClaim {
    spec: Option<NamesInSpec>,
    status: Option<NamesInStatus>,
}

/// The same of a volume.
#[derive(Deserialize)]
struct NamedByVolume {
    spec: Option<NamesInSpec>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamesInSpec {
    volume_attributes_class_name: Option<AttributesClassName>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamesInStatus {
    current_volume_attributes_class_name: Option<AttributesClassName>,
    modify_volume_status: Option<NameInModification>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NameInModification {
    target_volume_attributes_class_name: Option<AttributesClassName>,
}
