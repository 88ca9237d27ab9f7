//! Names of things, each a type of its own, so that a node name can never be passed where a
//! volume name belongs. All are cheap to clone (`Arc<str>`) and ordered, because everything that
//! ends in a patch or a printout is sorted.

use std::{borrow::Borrow, fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether the text is empty, which the API uses for "not set".
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self(Arc::from(""))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(Arc::from(text))
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(Arc::from(text))
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer).map(Self::from)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }
    };
}

text_id!(
    /// `metadata.uid`: tells an object from a later one of the same name.
    Uid
);
text_id!(
    /// Name of a Node.
    NodeName
);
text_id!(
    /// Name of a PersistentVolume.
    VolumeName
);
text_id!(
    /// Name of a VolumeAttachment.
    AttachmentName
);
text_id!(
    /// Name of a StorageClass.
    ClassName
);
text_id!(
    /// Name of a CSI driver (and of its CSIDriver object).
    DriverName
);

/// Namespace and name of a namespaced object, printed `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamespacedName {
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name inside the namespace.
    pub name: Arc<str>,
}

impl NamespacedName {
    /// Puts the two parts together.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: Arc::from(namespace), name: Arc::from(name) }
    }
}

impl fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

macro_rules! namespaced_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub NamespacedName);

        impl $name {
            /// Puts namespace and name together.
            #[must_use]
            pub fn new(namespace: &str, name: &str) -> Self {
                Self(NamespacedName::new(namespace, name))
            }

            /// Namespace.
            #[must_use]
            pub fn namespace(&self) -> &str {
                &self.0.namespace
            }

            /// Name inside the namespace.
            #[must_use]
            pub fn name(&self) -> &str {
                &self.0.name
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

namespaced_id!(
    /// Which Pod.
    PodKey
);
namespaced_id!(
    /// Which PersistentVolumeClaim.
    ClaimKey
);

/// `metadata.resourceVersion` as the integer it is on every server of the built-in kinds, so that
/// "newer than" is a comparison of numbers (as text, "10" < "9").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceVersion(pub u64);

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

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
