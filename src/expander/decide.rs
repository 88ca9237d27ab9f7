//! Whether a claim waits for its volume to grow, and who is to expand the volume. Pure.

use apiserver::{
    ids::Uid,
    kinds::{ClaimPhase, InTreeSource, PersistentVolume, PersistentVolumeClaim, ResizeStep},
    text::{Text, TextMap},
};
use thiserror::Error;

use crate::controller::{
    in_tree::migrated,
    quantity::{Quantity, QuantityError},
};

/// On a volume: the size that its file system still has.
// KCM: pkg/volume/util/resize_util.go, AnnPreResizeCapacity.
const PRE_RESIZE_CAPACITY: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

/// Who expands a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Resizer {
    /// The CSI driver that took over this in-tree plugin.
    #[error("the external-resizer of {driver} is to expand the volume")]
    Migrated {
        /// The plugin.
        plugin: &'static str,
        /// The driver.
        driver: &'static str,
    },
    /// The CSI driver that it names.
    #[error("an external controller is to expand the volume")]
    External,
    /// No controller of Kubernetes: it has no driver.
    #[error("no controller of Kubernetes expands such a volume: whether another program does is not known")]
    Nobody,
    /// A FlexVolume's driver, which is not supported.
    #[error("FlexVolume is not supported: nothing expands this PVC")]
    FlexVolume,
    /// The source of the volume cannot be read (S42).
    #[error("the source of the volume cannot be read")]
    Unknown,
}

/// What of a claim has been dealt with: it is looked at again when one of these changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expansion {
    claim: Uid,
    volume: Text,
    request: Option<Text>,
    capacity: Option<Text>,
}

/// What a claim waits for; `None` if its volume need not grow.
///
/// # Errors
/// A size cannot be read (S42).
// KCM: pkg/controller/volume/expand/expand_controller.go, enqueuePVC and syncHandler.
pub fn expansion(
    claim: &PersistentVolumeClaim,
    volume: Option<&PersistentVolume>,
) -> Result<Option<Expansion>, QuantityError> {
    if claim.status.phase != ClaimPhase::Bound {
        return Ok(None);
    }
    let (request, capacity) = (&claim.spec.resources.requests, &claim.status.capacity);
    let is_resized = volume.is_some_and(|volume| volume.metadata.annotation(PRE_RESIZE_CAPACITY).is_some());
    if size(request)? <= size(capacity)? && !is_resized {
        return Ok(None);
    }
    Ok(Some(Expansion {
        claim: claim.metadata.uid.clone(),
        volume: claim.spec.volume_name.as_str().into(),
        request: request.get(STORAGE).cloned(),
        capacity: capacity.get(STORAGE).cloned(),
    }))
}

/// Whether at most a kubelet is left, which expands the file system. A volume that is as large as requested is no proof: the
/// external-resizer writes that first, and may end before it writes the claim's status.
pub fn is_left_to_kubelet(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let wanted = size(&claim.spec.resources.requests).ok();
    let is_large = |of: &TextMap| size(of).ok().zip(wanted).is_some_and(|(has, wanted)| has >= wanted);
    let is_of_node = matches!(claim.status.resize(), Some(ResizeStep::Node | ResizeStep::NodeInfeasible));
    is_large(&volume.spec.capacity) && (is_of_node || is_large(&claim.status.capacity))
}

const STORAGE: &str = "storage";

fn size(of: &TextMap) -> Result<Quantity, QuantityError> {
    of.get(STORAGE).map_or(Ok(Quantity::default()), |text| text.as_str().parse())
}

/// Who expands a volume that was read live; `None` if it is not the claim's.
pub fn resizer(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Resizer> {
    let reference = volume.spec.claim_ref.as_ref()?;
    let is_its =
        reference.uid == claim.metadata.uid && reference.namespace.as_str() == &*claim.metadata.namespace;
    is_its.then(|| match volume.spec.in_tree.as_deref() {
        Some(InTreeSource::FlexVolume(_)) => Resizer::FlexVolume,
        Some(InTreeSource::Malformed(_)) => Resizer::Unknown,
        Some(source) => {
            migrated(source).map_or(Resizer::Nobody, |(plugin, driver)| Resizer::Migrated { plugin, driver })
        }
        None if volume.spec.csi.is_some() => Resizer::External,
        None => Resizer::Nobody,
    })
}
