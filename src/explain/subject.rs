//! What a question is about.
//!
//! In: words as kubectl takes them (`pvc/data`, `pod web-0`). Out: a [`Subject`], or what is wrong with the words.

use std::fmt;

use apiserver::{
    ids::{AttachmentName, AttributesClassName, ClaimKey, ClassName, NodeName, PodKey, VolumeName},
    kinds::{
        Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
        VolumeAttachment, VolumeAttributesClass,
    },
};
use serde_json::{Map, Value, json};

/// An object that can be explained.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Subject {
    /// A Pod.
    Pod(PodKey),
    /// A PersistentVolumeClaim.
    Claim(ClaimKey),
    /// A PersistentVolume.
    Volume(VolumeName),
    /// A VolumeAttachment.
    Attachment(AttachmentName),
    /// A Node.
    Node(NodeName),
    /// A StorageClass.
    Class(ClassName),
    /// A VolumeAttributesClass.
    AttributesClass(AttributesClassName),
}

/// Makes a subject of namespace and name.
type Make = fn(&str, &str) -> Subject;

/// Names of each kind, as kubectl takes them; the first is the one that is printed.
const WORDS: &[(&[&str], Make)] = &[
    (&["pod", "po", "pods"], |namespace, name| Subject::Pod(PodKey::new(namespace, name))),
    (&["pvc", "persistentvolumeclaim", "persistentvolumeclaims"], |namespace, name| {
        Subject::Claim(ClaimKey::new(namespace, name))
    }),
    (&["pv", "persistentvolume", "persistentvolumes", "volume"], |_, name| Subject::Volume(name.into())),
    (&["va", "volumeattachment", "volumeattachments"], |_, name| Subject::Attachment(name.into())),
    (&["node", "no", "nodes"], |_, name| Subject::Node(name.into())),
    (&["sc", "storageclass", "storageclasses"], |_, name| Subject::Class(name.into())),
    (&["vac", "volumeattributesclass", "volumeattributesclasses"], |_, name| {
        Subject::AttributesClass(name.into())
    }),
];

impl Subject {
    /// The subject of a kind as kubectl writes it, in any case.
    ///
    /// # Errors
    /// The kind is unknown, or there is no name.
    pub fn new(kind: &str, namespace: &str, name: &str) -> Result<Self, String> {
        // `pvc.v1.`, `volumeattachments.storage.k8s.io`: the resource comes first.
        let word = kind.split('.').next().unwrap_or_default().to_ascii_lowercase();
        let make = WORDS.iter().find(|(words, _)| words.contains(&word.as_str())).map(|(_, make)| make);
        let Some(make) = make else {
            let known: Vec<&str> = Self::words().collect();
            return Err(format!("{kind:?} cannot be explained: there are {}", known.join(", ")));
        };
        if name.is_empty() {
            return Err(format!("{kind}: the name is missing"));
        }
        Ok(make(namespace, name))
    }

    /// The subject of `kind/name`, or `kind` and `name`.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub fn parse(words: &[&str], namespace: &str) -> Result<Self, String> {
        match words {
            [one] => match one.split_once('/') {
                Some((kind, name)) => Self::new(kind, namespace, name),
                None => Err(format!("{one:?}: want KIND/NAME or KIND NAME")),
            },
            [one, other] if one.contains('/') => Err(format!("one object at a time: {one}, without {other}")),
            [kind, name] => Self::new(kind, namespace, name),
            _ => Err("want KIND/NAME or KIND NAME".to_owned()),
        }
    }

    /// Its kind, that as it is typed and as it is said, its namespace, and its name.
    fn parts(&self) -> (&'static str, &'static str, &'static str, Option<&str>, &str) {
        match self {
            Self::Pod(key) => (Pod::KIND, "pod", "pod", Some(key.namespace()), key.name()),
            Self::Claim(key) => {
                (PersistentVolumeClaim::KIND, "pvc", "claim", Some(key.namespace()), key.name())
            }
            Self::Volume(name) => (PersistentVolume::KIND, "pv", PersistentVolume::KIND, None, name.as_str()),
            Self::Attachment(name) => {
                (VolumeAttachment::KIND, "va", VolumeAttachment::KIND, None, name.as_str())
            }
            Self::Node(name) => (Node::KIND, "node", "node", None, name.as_str()),
            Self::Class(name) => (StorageClass::KIND, "sc", "class", None, name.as_str()),
            Self::AttributesClass(name) => {
                (VolumeAttributesClass::KIND, "vac", VolumeAttributesClass::KIND, None, name.as_str())
            }
        }
    }

    /// All kinds, as they are typed.
    pub fn words() -> impl Iterator<Item = &'static str> {
        WORDS.iter().filter_map(|(words, _)| words.first().copied())
    }

    /// Its kind, as it is typed.
    #[must_use]
    pub fn word(&self) -> &'static str {
        self.parts().1
    }

    /// Its kind, as in `kind:`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.parts().0
    }

    /// Its namespace; none for what has none.
    #[must_use]
    pub fn namespace(&self) -> Option<&str> {
        self.parts().3
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().4
    }

    /// As a key of the tables.
    #[must_use]
    pub fn object(&self) -> ObjectRef {
        match self.clone() {
            Self::Pod(key) => ObjectRef::Pod(key),
            Self::Claim(key) => ObjectRef::Claim(key),
            Self::Volume(name) => ObjectRef::Volume(name),
            Self::Attachment(name) => ObjectRef::Attachment(name),
            Self::Node(name) => ObjectRef::Node(name),
            Self::Class(name) => ObjectRef::Class(name),
            Self::AttributesClass(name) => ObjectRef::AttributesClass(name),
        }
    }

    /// As it stands in a sentence: `claim shop/data`.
    #[must_use]
    pub fn spoken(&self) -> String {
        match self.parts() {
            (_, _, word, Some(namespace), name) => format!("{word} {namespace}/{name}"),
            (_, _, word, None, name) => format!("{word} {name}"),
        }
    }

    /// The subject of an object of an answer; none for programs.
    #[must_use]
    pub fn of(object: &Value) -> Option<Self> {
        Self::new(field(object, "kind"), field(object, "namespace"), field(object, "name")).ok()
    }

    /// As JSON: kind, name, and the namespace if there is one.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut fields = Map::from_iter([("kind".to_owned(), json!(self.kind()))]);
        if let Some(namespace) = self.namespace() {
            fields.insert("namespace".to_owned(), json!(namespace));
        }
        fields.insert("name".to_owned(), json!(self.name()));
        Value::Object(fields)
    }
}

/// The text of a field; empty if there is none.
pub(super) fn field<'a>(object: &'a Value, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Whether an object can have the name: another could lead to another path, or do things to a terminal.
/// (`ValidatePathSegmentName`; the names of all kinds that are read are DNS subdomains.)
#[must_use]
pub fn is_name(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | ':' | '_');
    !name.is_empty() && name.len() <= 253 && name != "." && name != ".." && name.chars().all(is_letter)
}

/// As it is typed: `pvc/data`. The namespace is not part of it.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, word, _, _, name) = self.parts();
        write!(f, "{word}/{name}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_typed_as_for_kubectl() {
        let claim = Subject::Claim(ClaimKey::new("shop", "data"));
        for words in [
            &["pvc/data"][..],
            &["pvc", "data"],
            &["PersistentVolumeClaim", "data"],
            &["persistentvolumeclaims.v1./data"],
        ] {
            assert_eq!(Subject::parse(words, "shop").as_ref(), Ok(&claim), "{words:?}");
        }
        assert_eq!(claim.to_string(), "pvc/data");
        assert_eq!(
            claim.json(),
            json!({ "kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data" })
        );
        let attachment = Subject::Attachment("csi-1".into());
        assert_eq!(Subject::parse(&["volumeattachments.storage.k8s.io/csi-1"], "shop"), Ok(attachment));
        let mistakes = [
            (&["job/x"][..], "\"job\" cannot be explained: there are pod, pvc, pv, va, node, sc, vac"),
            (&["pvc/"], "pvc: the name is missing"),
            (&["data"], "\"data\": want KIND/NAME or KIND NAME"),
            (&[], "want KIND/NAME or KIND NAME"),
        ];
        for (words, mistake) in mistakes {
            assert_eq!(Subject::parse(words, "shop"), Err(mistake.to_owned()));
        }
    }
}
