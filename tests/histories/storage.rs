//! Claims, PersistentVolumes and the driver's CSIDriver, and what happens to them.

use std::sync::Arc;

use apiserver::{
    ids::{ClaimKey, DriverName, VolumeName},
    kinds::{ClaimPhase, CsiDriver, Narrow, ObjectRef, PersistentVolume, PersistentVolumeClaim},
};
use fastrand::Rng;
use k8s_openapi::jiff::Timestamp;
use mooring::attach_detach::state::desired::volume_name::{VolumeId, VolumeKind};
use serde_json::{Value, json};

use super::server::{DRIVER, Object, Server, VOLUMES};

impl Server {
    /// A user changes, removes or mends what leads from a pod to its storage.
    pub fn storage_acts(&mut self, rng: &mut Rng) {
        let (name, mode) = VOLUMES[rng.usize(0..VOLUMES.len())];
        let claim = self.claims.get(&ClaimKey::new("ns", name)).cloned();
        let volume = self.volumes.get(&VolumeName::from(name)).cloned();
        match (rng.u32(0..7), claim, volume) {
            (0 | 1, ..) => self.driver_says([None, Some(true), Some(false)][rng.usize(0..3)]),
            (2, Some(mut claim), _) => {
                claim.status.phase = if rng.bool() { ClaimPhase::Pending } else { ClaimPhase::Lost };
                self.put_claim(claim);
            }
            (3, Some(claim), _) => {
                Arc::make_mut(&mut self.claims).remove(&claim.key());
                self.record_end(ObjectRef::Claim(claim.key()), Object::Claim(claim));
            }
            (4, _, Some(mut volume)) => {
                volume.metadata.deletion_timestamp = Timestamp::from_second(1).ok().map(Box::new);
                self.put_volume(volume);
            }
            (5, _, Some(volume)) => {
                Arc::make_mut(&mut self.volumes).remove(&volume.key());
                self.record_end(ObjectRef::Volume(volume.key()), Object::Volume(volume));
            }
            _ => self.storage_is_well(name, mode),
        }
    }

    /// Claim and PersistentVolume are there and belong together. What was gone comes back as another object.
    pub(super) fn storage_is_well(&mut self, name: &str, mode: &str) {
        let claim_uid = match self.claims.get(&ClaimKey::new("ns", name)) {
            Some(claim) if claim.status.phase == ClaimPhase::Bound => claim.metadata.uid.to_string(),
            known => {
                let uid = known.map(|claim| claim.metadata.uid.to_string());
                let uid = uid.unwrap_or_else(|| self.made_up("claim"));
                let metadata = json!({"namespace": "ns", "name": name, "uid": uid, "resourceVersion": "0"});
                let json = json!({
                    "metadata": metadata, "spec": {"volumeName": name}, "status": {"phase": "Bound"},
                });
                self.put_claim(serde_json::from_value(json).expect("a claim"));
                uid
            }
        };
        let known = self.volumes.get(&VolumeName::from(name));
        let named =
            known.and_then(|volume| volume.spec.claim_ref.as_ref()).map(|claim| claim.uid.to_string());
        if known.is_some_and(|volume| !volume.metadata.is_terminating()) && named.as_ref() == Some(&claim_uid)
        {
            return;
        }
        let mut json = json!({
            "metadata": {"name": name, "uid": self.made_up("pv"), "resourceVersion": "0"},
            "spec": {"accessModes": [mode], "claimRef": {"namespace": "ns", "name": name, "uid": claim_uid}},
        });
        let (key, source): (&str, Value) = match super::server::id(name).kind() {
            VolumeKind::Csi => ("csi", json!({"driver": DRIVER, "volumeHandle": name})),
            VolumeKind::NoOp => ("iscsi", json!({"targetPortal": "portal", "iqn": name, "lun": 0})),
        };
        json["spec"][key] = source;
        self.put_volume(serde_json::from_value(json).expect("a PersistentVolume"));
    }

    fn made_up(&mut self, kind: &str) -> String {
        self.uids += 1;
        format!("{kind}-{}", self.uids)
    }

    fn put_claim(&mut self, mut claim: PersistentVolumeClaim) {
        claim.metadata.resource_version = self.next();
        Arc::make_mut(&mut self.claims).insert(claim.key(), claim.clone());
        self.record(ObjectRef::Claim(claim.key()), Object::Claim(claim));
    }

    fn put_volume(&mut self, mut volume: PersistentVolume) {
        volume.metadata.resource_version = self.next();
        Arc::make_mut(&mut self.volumes).insert(volume.key(), volume.clone());
        self.record(ObjectRef::Volume(volume.key()), Object::Volume(volume));
    }

    /// The CSIDriver of the driver says whether its volumes are attached.
    pub fn driver_says(&mut self, attach_required: Option<bool>) {
        let key = DriverName::from(DRIVER);
        if self.drivers.get(&key).and_then(|driver| driver.spec.attach_required) == attach_required {
            return;
        }
        let mut driver = CsiDriver::default();
        driver.metadata.name = DRIVER.into();
        driver.metadata.uid = DRIVER.into();
        driver.metadata.resource_version = self.next();
        driver.spec.attach_required = attach_required;
        self.drivers.insert(key.clone(), driver.clone());
        self.record(ObjectRef::Driver(key), Object::Driver(driver));
        self.note_wishes();
    }

    /// Whether a volume must be attached before it is used.
    pub(super) fn attaches(&self, volume: &VolumeId) -> bool {
        let driver = self.drivers.get(&DriverName::from(DRIVER));
        volume.kind() == VolumeKind::NoOp
            || driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
    }
}
