//! The two names that the kubelet computes for itself, so that ours must be the same to the byte:
//! the unique volume name, by which `node.status` lists a volume, and the name of the
//! VolumeAttachment (attach-detach §2.5, §7.1).

use apiserver::{
    ids::{AttachmentName, DriverName, NodeName},
    text,
};
use arcstr::ArcStr;
use derive_more::{Debug, Display};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// The driver of GCE disks.
const GCE_DISKS: &str = "pd.csi.storage.gke.io";
const CSI_PREFIX: &str = "kubernetes.io/csi/";
const ISCSI_PREFIX: &str = "kubernetes.io/iscsi/";
const FC_PREFIX: &str = "kubernetes.io/fc/";

/// How volumes of a plugin come to be attached (attach-detach §2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VolumeKind {
    /// By a VolumeAttachment, which the driver's external-attacher carries out.
    Csi,
    /// By saying so: iSCSI and Fibre Channel have nothing to attach, but the kubelet waits for their
    /// names in the node's status all the same, and an exclusive one may be on one node only.
    NoOp,
}

/// Unique volume name: one storage volume, also if several PersistentVolumes stand for it. Kept once, as the node that
/// lists it, its attachment and its pod each lead to it.
#[derive(Clone, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[debug("{_0:?}")]
pub struct VolumeId(ArcStr);

impl VolumeId {
    /// The name of a CSI volume.
    pub fn csi(driver: &DriverName, handle: &str) -> Self {
        Self(text::share(&format!("{CSI_PREFIX}{driver}^{handle}")))
    }

    /// The name of an iSCSI volume.
    /// KCM: pkg/volume/iscsi/iscsi.go, `GetVolumeName`.
    pub fn iscsi(portal: &str, iqn: &str, lun: i32) -> Self {
        Self(text::share(&format!("{ISCSI_PREFIX}{portal}:{iqn}:{lun}")))
    }

    /// The name of a Fibre Channel volume given by target and logical unit.
    /// KCM: pkg/volume/fc/fc.go, `GetVolumeName`, which prints a Go slice.
    pub(crate) fn fc_target(wwns: &[String], lun: i32) -> Self {
        Self(text::share(&format!("{FC_PREFIX}[{}]:{lun}", wwns.join(" "))))
    }

    /// The name of a Fibre Channel volume given by its own identifiers.
    pub(crate) fn fc_wwids(wwids: &[String]) -> Self {
        Self(text::share(&format!("{FC_PREFIX}[{}]", wwids.join(" "))))
    }

    /// A name found in node status, if it is one that a constructor could have made.
    pub fn parse(name: &str) -> Option<Self> {
        Self::parse_csi(name).or_else(|| is_no_op(name).then(|| Self(text::share(name))))
    }

    /// A name found in node status, if it is one of a CSI volume. Split at the *first* `^`: a driver
    /// name has none, a handle may (KCM demands exactly one and never detaches such volumes).
    pub(crate) fn parse_csi(name: &str) -> Option<Self> {
        let (driver, handle) = name.strip_prefix(CSI_PREFIX)?.split_once('^')?;
        (!driver.is_empty() && !handle.is_empty()).then(|| Self(text::share(name)))
    }

    /// How the volume comes to be attached.
    pub fn kind(&self) -> VolumeKind {
        if self.0.starts_with(CSI_PREFIX) { VolumeKind::Csi } else { VolumeKind::NoOp }
    }

    /// Name of the plugin: the first two segments of the volume's name.
    pub fn plugin(&self) -> &str {
        let mut slashes = self.0.match_indices('/').map(|(index, _)| index);
        slashes.nth(1).and_then(|second| self.0.get(..second)).unwrap_or_default()
    }

    /// The name as the API writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Driver and handle of a CSI volume; both are empty for any other.
    pub fn driver_and_handle(&self) -> (&str, &str) {
        self.0.strip_prefix(CSI_PREFIX).and_then(|rest| rest.split_once('^')).unwrap_or_default()
    }

    /// Whether the two are one disk for all that their handles say: that of a GCE disk has the zone in it if the labels of its
    /// PersistentVolume name one, and the project if that is a CSI volume.
    pub(in crate::attach_detach) fn is_one_disk(&self, other: &Self) -> bool {
        let disk = |it| match Self::driver_and_handle(it) {
            (GCE_DISKS, handle) => handle.rsplit_once("/disks/"),
            _ => None,
        };
        disk(self).zip(disk(other)).is_some_and(|((_, one), (_, other))| one == other)
    }

    /// The name of the VolumeAttachment that attaches this volume to a node: `csi-` and the hex
    /// SHA-256 of handle, driver and node without separators. Means something for CSI volumes only.
    pub fn attachment_name(&self, node: &NodeName) -> AttachmentName {
        let (driver, handle) = self.driver_and_handle();
        AttachmentName::from(hashed("csi-", &[handle, driver, node.as_str()]))
    }
}

/// Whether the name is one that mooring, or KCM, gives to a VolumeAttachment.
pub(in crate::attach_detach) fn is_computed(name: &AttachmentName) -> bool {
    let is_hash = |hash: &str| hash.len() == 64 && hash.bytes().all(|it| it.is_ascii_hexdigit());
    name.as_str().strip_prefix("csi-").is_some_and(is_hash)
}

/// The prefix and the hex SHA-256 of all parts together.
pub(in crate::attach_detach) fn hashed(prefix: &str, parts: &[&str]) -> String {
    format!("{prefix}{:x}", Sha256::digest(parts.concat()))
}

/// Whether the name has the form of an iSCSI volume (`<portal>:<iqn>:<lun>`) or of a Fibre Channel one
/// (`[<wwn> <wwn>]:<lun>` or `[<wwid> <wwid>]`).
fn is_no_op(name: &str) -> bool {
    let is_lun = |text: &str| text.parse::<i32>().is_ok();
    if let Some(rest) = name.strip_prefix(ISCSI_PREFIX) {
        return rest.rsplit_once(':').is_some_and(|(target, lun)| is_lun(lun) && target.contains(':'));
    }
    let Some((names, rest)) = name
        .strip_prefix(FC_PREFIX)
        .and_then(|rest| rest.strip_prefix('['))
        .and_then(|rest| rest.split_once(']'))
    else {
        return false;
    };
    !names.is_empty() && (rest.is_empty() || rest.strip_prefix(':').is_some_and(is_lun))
}
