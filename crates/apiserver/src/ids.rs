//! Names of things, each a type of its own, so that a node name can never be passed where a
//! volume name belongs. All are cheap to clone (`ArcStr`) and ordered, because everything that
//! ends in a patch or a printout is sorted.

use arcstr::ArcStr;
use derive_more::{Debug, Display};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use super::text;

macro_rules! text_id {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        text::text_type!(
            $(#[$doc])*
            #[derive(derive_more::From)]
            #[from(ArcStr, &str, String)]
            $name
        );

        impl $name {
            /// Whether the text is empty, which the API uses for "not set".
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }

            /// The name as the one copy of its text, for names that objects refer to each other by.
            pub fn shared(text: &str) -> Self {
                Self(text::share(text))
            }
        }
    )+};
}

text_id!(
    /// Name of a Node.
    NodeName,
    /// Name of a PersistentVolume.
    VolumeName,
    /// Name of a VolumeAttachment.
    AttachmentName,
    /// Name of a StorageClass.
    ClassName,
    /// Name of a VolumeAttributesClass.
    AttributesClassName,
    /// Name of a CSI driver (and of its CSIDriver object).
    DriverName,
);

/// `metadata.uid`: tells an object from a later one of the same name.
///
/// The API server makes UUIDs; those are kept as their sixteen bytes. Any other text is kept as it is.
#[derive(Clone, Debug, Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[debug("\"{_0}\"")]
pub struct Uid(UidText);

#[derive(Clone, Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum UidText {
    #[display("{}", _0.hyphenated())]
    Uuid(Uuid),
    Other(ArcStr),
}

impl Uid {
    /// Whether the text is empty, which the API uses for "not set".
    pub fn is_empty(&self) -> bool {
        matches!(&self.0, UidText::Other(text) if text.is_empty())
    }
}

impl Default for Uid {
    fn default() -> Self {
        Self(UidText::Other(ArcStr::new()))
    }
}

impl From<&str> for Uid {
    fn from(text: &str) -> Self {
        Self(match uuid(text) {
            Some(uuid) => UidText::Uuid(uuid),
            None if text.is_empty() => UidText::Other(ArcStr::new()),
            None => UidText::Other(ArcStr::from(text)),
        })
    }
}

impl From<String> for Uid {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
    }
}

/// A UUID in the one form that is printed of it.
fn uuid(text: &str) -> Option<Uuid> {
    let uuid = Uuid::try_parse(text).ok()?;
    (uuid.hyphenated().encode_lower(&mut Uuid::encode_buffer()) == text).then_some(uuid)
}

impl<'de> Deserialize<'de> for Uid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        std::borrow::Cow::<'de, str>::deserialize(deserializer).map(|text| Self::from(&*text))
    }
}

impl Serialize for Uid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Namespace and name of a namespaced object, printed `namespace/name`.
#[derive(Clone, Debug, Default, Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[display("{namespace}/{name}")]
pub struct NamespacedName {
    /// Namespace.
    pub namespace: ArcStr,
    /// Name inside the namespace.
    pub name: ArcStr,
}

impl NamespacedName {
    /// Puts the two parts together.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: ArcStr::from(namespace), name: ArcStr::from(name) }
    }
}

macro_rules! namespaced_id {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub NamespacedName);

        impl $name {
            /// Puts namespace and name together.
            pub fn new(namespace: &str, name: &str) -> Self {
                Self(NamespacedName::new(namespace, name))
            }

            /// Namespace.
            pub fn namespace(&self) -> &str {
                &self.0.namespace
            }

            /// Name inside the namespace.
            pub fn name(&self) -> &str {
                &self.0.name
            }
        }
    )+};
}

namespaced_id!(
    /// Which Pod.
    PodKey,
    /// Which PersistentVolumeClaim.
    ClaimKey,
);

/// `metadata.resourceVersion` as the integer it is on every server of the built-in kinds, so that
/// "newer than" is a comparison of numbers (as text, "10" < "9").
#[derive(Clone, Copy, Debug, Default, Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceVersion(pub u64);

impl<'de> Deserialize<'de> for ResourceVersion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map(Self).map_err(|_| {
            serde::de::Error::custom(format!("metadata.resourceVersion {text:?} is not an integer"))
        })
    }
}

impl Serialize for ResourceVersion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uid_is_printed_as_it_was_read() {
        let canonical = "0d2f9d0e-5f0a-4d2e-9e8f-0a1b2c3d4e5f";
        let others = [
            "",
            "uid-1",
            "0D2F9D0E-5F0A-4D2E-9E8F-0A1B2C3D4E5F",
            "0d2f9d0e-5f0a-4d2e-9e8f0-a1b2c3d4e5f",
            "0d2f9d0e-5f0a-4d2e-9e8f-0a1b2c3d4e5",
            "0d2f9d0e-5f0a-4d2e-9e8f-0a1b2c3d4e5fa",
            "0d2f9d0e+5f0a-4d2e-9e8f-0a1b2c3d4e5f",
            "0d2f9d0e-5f0a-4d2e-9e8f-0a1b2c3d4e5g",
            "-d2f9d0e-5f0a-4d2e-9e8f-0a1b2c3d4e5f",
        ];
        for text in [&[canonical][..], &others].concat() {
            let uid = Uid::from(text);
            assert_eq!(matches!(uid.0, UidText::Uuid(_)), text == canonical, "{text}");
            assert_eq!((uid.to_string(), format!("{uid:?}")), (text.to_owned(), format!("{text:?}")));
            assert_eq!(uid.is_empty(), text.is_empty());
            let json = serde_json::to_string(&uid).unwrap();
            assert_eq!(serde_json::from_str::<Uid>(&json).unwrap(), uid);
        }
    }
}
