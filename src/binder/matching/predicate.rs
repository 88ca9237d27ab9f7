//! Whether one volume suits one claim, and why not.
//!
//! In: one PersistentVolume and what a claim asks for ([`Requirements`]). Out: nothing, or the first
//! [`Mismatch`]. The two upstream checks are kept apart: [`mismatch_for_search`] judges volumes the
//! binder picks itself, [`mismatch_for_named`] the one a user picked by name, where selector and
//! phase do not count (pv-binder §2.1.B, §4.2).

use std::cell::Cell;

use apiserver::{
    kinds::{
        ClaimPhase, ClaimRef, LabelSelector, Meta, PersistentVolume, PersistentVolumeClaim, VolumePhase,
    },
    text::{Text, TextMap},
};
use strum::VariantArray;
use thiserror::Error;

use super::quantity::{Quantity, QuantityError};
use crate::binder::annotations;

/// Name of the resource in capacities and requests.
pub const STORAGE: &str = "storage";

/// The access modes that this version knows.
const KNOWN_MODES: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];

/// A set of access modes, in the fixed order RWO, ROX, RWX, RWOP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessModes(u8);

impl AccessModes {
    /// Size of the largest set.
    pub const MOST: u32 = 4;

    /// The known modes of a list. A mode this version does not know is left out: a volume is not
    /// trusted to offer it, and a claim that asks for it is refused by [`Requirements::of`].
    pub fn known(modes: &[Text]) -> Self {
        Self(modes.iter().filter_map(|mode| bit(mode)).fold(0, |set, bit| set | bit))
    }

    /// Whether all of `other` is in this set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
}

fn bit(mode: &str) -> Option<u8> {
    KNOWN_MODES.iter().position(|known| *known == mode).map(|place| 1 << place)
}

/// `volumeMode`; absent means a file system. A mode that this version does not know is equal only to itself.
pub fn volume_mode(field: Option<&str>) -> &str {
    field.filter(|mode| !mode.is_empty()).unwrap_or("Filesystem")
}

/// Why a volume does not suit a claim, in the order of explanations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, VariantArray)]
pub enum Mismatch {
    /// Reserved for or bound to another claim.
    Taken,
    Terminating,
    Phase,
    Class,
    /// Smaller than asked for, or of no readable size.
    TooSmall,
    /// An access mode is missing.
    AccessModes,
    /// File system against block device.
    VolumeMode,
    Attributes,
    /// The claim's selector does not match its labels.
    Selector,
}

impl Mismatch {
    pub fn code(self) -> &'static str {
        match self {
            Self::Taken => "ReservedForOther",
            Self::Terminating => "Terminating",
            Self::TooSmall => "TooSmall",
            Self::Class => "ClassMismatch",
            Self::Attributes => "AttributesClassMismatch",
            Self::VolumeMode => "ModeMismatch",
            Self::AccessModes => "AccessModeMissing",
            Self::Phase => "PhaseNotAvailable",
            Self::Selector => "SelectorMismatch",
        }
    }

    /// What is wrong with a volume that is reserved for the claim.
    pub fn of_reserved(self, volume: &str) -> String {
        match self {
            Self::TooSmall => "it is too small".to_owned(),
            mismatch => mismatch.text(volume),
        }
    }

    /// The tail of the VolumeMismatch event for a volume named by the user (pv-binder §2.1.B-2).
    pub fn text(self, volume: &str) -> String {
        match self {
            Self::Taken => "the volume belongs to another claim".to_owned(),
            Self::Terminating => format!("the volume is marked for deletion {volume:?}"),
            Self::TooSmall => "requested PV is too small".to_owned(),
            Self::Class => "storageClassName does not match".to_owned(),
            Self::Attributes => "volumeAttributesClassName does not match".to_owned(),
            Self::VolumeMode => "incompatible volumeMode".to_owned(),
            Self::AccessModes => "incompatible accessMode".to_owned(),
            Self::Phase => "the volume is not available".to_owned(),
            Self::Selector => "the selector does not match".to_owned(),
        }
    }
}

/// What in a claim cannot be read; it blocks this claim alone (S42).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unreadable {
    #[error("requested storage: {0}")]
    Request(QuantityError),
    /// An operator of the selector.
    #[error("{0:?} is not a valid label selector operator")]
    Operator(String),
    #[error("{0:?} is not a known access mode")]
    AccessMode(String),
}

/// What a claim asks for, read once.
#[derive(Clone, Debug, PartialEq)]
pub struct Requirements<'a> {
    pub claim: &'a PersistentVolumeClaim,
    /// Size; nothing asked for is zero.
    pub request: Quantity,
    pub modes: AccessModes,
    pub volume_mode: &'a str,
    /// This class, empty for none.
    pub class: &'a str,
}

impl<'a> Requirements<'a> {
    /// Reads a claim.
    ///
    /// # Errors
    /// Something in it cannot be understood.
    pub fn of(claim: &'a PersistentVolumeClaim) -> Result<Self, Unreadable> {
        let request = match claim.spec.resources.requests.get(STORAGE) {
            Some(text) => text.parse().map_err(Unreadable::Request)?,
            None => Quantity::default(),
        };
        if let Some(mode) = claim.spec.access_modes.iter().find(|mode| bit(mode).is_none()) {
            return Err(Unreadable::AccessMode(mode.to_string()));
        }
        if let Some(selector) = &claim.spec.selector {
            for expression in &selector.match_expressions {
                if !["In", "NotIn", "Exists", "DoesNotExist"].contains(&expression.operator.as_str()) {
                    return Err(Unreadable::Operator(expression.operator.clone()));
                }
            }
        }
        Ok(Self {
            claim,
            request,
            modes: AccessModes::known(&claim.spec.access_modes),
            volume_mode: volume_mode(claim.spec.volume_mode.as_deref()),
            class: claim_class(claim),
        })
    }
}

/// What has to be equal in a claim and the volume the binder picks for it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// Class, empty for none.
    pub class: Text,
    pub mode: Text,
    /// VolumeAttributesClass, empty for none.
    pub attributes: Text,
}

impl Group {
    pub fn of(volume: &PersistentVolume) -> Self {
        Self {
            class: volume_class(volume).into(),
            mode: volume_mode(volume.spec.volume_mode.as_deref()).into(),
            attributes: volume.spec.volume_attributes_class_name.clone().unwrap_or_default(),
        }
    }
}

/// A label, as selectors ask for it.
pub type Label = (Text, Text);

impl Requirements<'_> {
    /// The group that a volume has to be of.
    pub fn group(&self) -> Group {
        Group {
            class: self.class.into(),
            mode: self.volume_mode.into(),
            attributes: self.claim.spec.volume_attributes_class_name.clone().unwrap_or_default(),
        }
    }

    /// Labels that a volume must bear, each of them.
    pub fn labels(&self) -> impl Iterator<Item = Label> {
        let selector = self.claim.spec.selector.as_ref();
        selector.into_iter().flat_map(|selector| {
            let exact = selector.match_labels.iter().map(|(key, value)| (key.clone(), value.clone()));
            let single = selector.match_expressions.iter().filter_map(|expression| {
                match (expression.operator.as_str(), expression.values.as_slice()) {
                    ("In", [value]) => Some((expression.key.clone(), value.clone())),
                    _ => None,
                }
            });
            exact.chain(single)
        })
    }
}

/// How often a volume and a claim were held against each other: there may be as many of either as there are in the
/// cluster, and only these counts tell what a decision cost.
pub type Comparisons = Cell<usize>;

/// Class of a claim, empty for none (pv-binder §2.3).
pub fn claim_class(claim: &PersistentVolumeClaim) -> &str {
    class(&claim.metadata, claim.spec.storage_class_name.as_deref())
}

/// Class of a volume, empty for none (pv-binder §2.3).
pub fn volume_class(volume: &PersistentVolume) -> &str {
    class(&volume.metadata, volume.spec.storage_class_name.as_deref())
}

fn class<'a>(meta: &'a Meta, field: Option<&'a str>) -> &'a str {
    meta.annotation(annotations::BETA_STORAGE_CLASS).or(field).unwrap_or_default()
}

/// Size of a volume; zero if it has none, `None` if it cannot be read.
pub fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    volume.spec.capacity.get(STORAGE).map_or(Some(Quantity::default()), |text| text.parse().ok())
}

/// Whether a volume's claimRef names this claim, with its UID or none.
// KCM: component-helpers/storage/volume/pv_helpers.go, IsVolumeBoundToClaim.
pub fn refers_to(reference: &ClaimRef, claim: &PersistentVolumeClaim) -> bool {
    *reference.namespace == *claim.metadata.namespace
        && *reference.name == *claim.metadata.name
        && (reference.uid.is_empty() || reference.uid == claim.metadata.uid)
}

/// Whether a reference names another claim than this one. What has its UID, or its name and no UID, is its own: a
/// cleared UID is taken back (S45).
pub fn is_of_another(reference: &ClaimRef, claim: &PersistentVolumeClaim) -> bool {
    reference.uid != claim.metadata.uid && !refers_to(reference, claim)
}

/// Whether a volume already belongs to this very claim.
pub fn held_by(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    let reference = volume.spec.claim_ref.as_ref();
    reference.is_some_and(|reference| !reference.uid.is_empty() && refers_to(reference, claim))
}

/// Whether the claim was bound to the volume that it names. The phase is written by controllers alone.
pub fn was_bound(claim: &PersistentVolumeClaim) -> bool {
    matches!(claim.status.phase, ClaimPhase::Bound | ClaimPhase::Lost)
        || annotations::has(&claim.metadata, annotations::BIND_COMPLETED)
}

/// Whether file system and block device are confused between the two.
pub fn modes_differ(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume_mode(volume.spec.volume_mode.as_deref()) != volume_mode(claim.spec.volume_mode.as_deref())
}

/// What speaks against a volume that already refers to the claim, in this order: class, selector and phase do not
/// (pv-binder §4.2-6).
// KCM: component-helpers/storage/volume/pv_helpers.go, FindMatchingVolume.
const FOR_RESERVED: &[Mismatch] = &[
    Mismatch::Taken,
    Mismatch::AccessModes,
    Mismatch::TooSmall,
    Mismatch::VolumeMode,
    Mismatch::Attributes,
    Mismatch::Terminating,
];

/// What speaks against one that is not reserved, after that (pv-binder §4.2).
const FOR_FREE: &[Mismatch] = &[Mismatch::Phase, Mismatch::Selector, Mismatch::Class];

/// What speaks against an unreserved volume that the claim names, in the order of the event texts (pv-binder §2.1.B-2).
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, checkVolumeSatisfyClaim.
const FOR_NAMED: &[Mismatch] = &[
    Mismatch::Terminating,
    Mismatch::TooSmall,
    Mismatch::Class,
    Mismatch::Attributes,
    Mismatch::VolumeMode,
    Mismatch::AccessModes,
];

impl Mismatch {
    /// Whether it speaks against a volume.
    fn holds(self, volume: &PersistentVolume, requirements: &Requirements<'_>) -> bool {
        let Requirements { claim, request, modes, volume_mode: mode, class } = requirements;
        match self {
            Self::Taken => {
                let reference = volume.spec.claim_ref.as_ref();
                reference.is_some_and(|reference| !refers_to(reference, claim))
            }
            Self::Terminating => volume.metadata.is_terminating(),
            Self::TooSmall => capacity(volume).is_none_or(|capacity| capacity < *request),
            Self::Class => volume_class(volume) != *class,
            Self::Attributes => {
                let offered = volume.spec.volume_attributes_class_name.as_deref().unwrap_or_default();
                offered != claim.spec.volume_attributes_class_name.as_deref().unwrap_or_default()
            }
            Self::VolumeMode => volume_mode(volume.spec.volume_mode.as_deref()) != *mode,
            Self::AccessModes => !AccessModes::known(&volume.spec.access_modes).contains(*modes),
            Self::Phase => volume.status.phase != VolumePhase::Available,
            Self::Selector => {
                let selector = claim.spec.selector.as_ref();
                selector.is_some_and(|selector| !selects(selector, &volume.metadata.labels))
            }
        }
    }
}

/// What speaks against a volume that already refers to the claim.
pub fn mismatch_for_reserved(volume: &PersistentVolume, requirements: &Requirements<'_>) -> Option<Mismatch> {
    FOR_RESERVED.iter().copied().find(|mismatch| mismatch.holds(volume, requirements))
}

/// What speaks against a volume that is not reserved.
pub fn mismatch_for_search(volume: &PersistentVolume, requirements: &Requirements<'_>) -> Option<Mismatch> {
    if volume.spec.claim_ref.is_some() {
        return Some(Mismatch::Taken);
    }
    let mut mismatches = FOR_RESERVED.iter().chain(FOR_FREE).copied();
    mismatches.find(|mismatch| mismatch.holds(volume, requirements))
}

/// Everything that speaks against a volume the binder might pick, for explanations. Nothing speaks
/// against one that [`mismatch_for_search`] finds nothing against.
pub fn mismatches(volume: &PersistentVolume, requirements: &Requirements<'_>) -> Vec<Mismatch> {
    // Class, selector and phase of a volume that is reserved for the claim do not count, and no claim
    // asks for those of one that is reserved for another.
    let is_free = volume.spec.claim_ref.is_none();
    let counts = |mismatch: &Mismatch| is_free || !FOR_FREE.contains(mismatch);
    Mismatch::VARIANTS
        .iter()
        .copied()
        .filter(counts)
        .filter(|mismatch| mismatch.holds(volume, requirements))
        .collect()
}

/// What speaks against an unreserved volume that the claim names.
pub fn mismatch_for_named(volume: &PersistentVolume, requirements: &Requirements<'_>) -> Option<Mismatch> {
    FOR_NAMED.iter().copied().find(|mismatch| mismatch.holds(volume, requirements))
}

/// Whether a claim's selector accepts these labels of a volume.
pub fn selects(selector: &LabelSelector, labels: &TextMap) -> bool {
    if selector.match_labels.iter().any(|(key, value)| labels.get(key) != Some(value)) {
        return false;
    }
    selector.match_expressions.iter().all(|expression| {
        let value = labels.get(&expression.key);
        match expression.operator.as_str() {
            "In" => value.is_some_and(|value| expression.values.contains(value)),
            "NotIn" => value.is_none_or(|value| !expression.values.contains(value)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            // `Requirements::of` has refused every other operator.
            _ => false,
        }
    })
}
