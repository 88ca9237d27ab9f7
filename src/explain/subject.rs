//! What a question is about.
//!
//! In: words as kubectl takes them (`pvc/data`, `pod web-0`). Out: an [`ObjectRef`], or what is wrong with the words; and an object as it
//! is typed, said and written in an answer.

use apiserver::kinds::{
    Narrow as _, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
    VolumeAttachment, VolumeAttributesClass,
};
use serde_json::{Map, Value, json};

/// Names of each kind, as kubectl takes them; the first is the one that is printed, the last that of its URLs.
const WORDS: &[&[&str]] = &[
    &["pod", "po", Pod::PLURAL],
    &["pvc", "persistentvolumeclaim", PersistentVolumeClaim::PLURAL],
    &["pv", "persistentvolume", "volume", PersistentVolume::PLURAL],
    &["va", "volumeattachment", VolumeAttachment::PLURAL],
    &["node", "no", Node::PLURAL],
    &["sc", "storageclass", StorageClass::PLURAL],
    &["vac", "volumeattributesclass", VolumeAttributesClass::PLURAL],
];

/// What is known of a kind as kubectl writes it, in any case.
fn known(kind: &str) -> Option<&'static &'static [&'static str]> {
    // `pvc.v1.`, `volumeattachments.storage.k8s.io`: the resource comes first.
    let word = kind.split('.').next().unwrap_or_default().to_ascii_lowercase();
    WORDS.iter().find(|words| words.contains(&word.as_str()))
}

/// The object of a kind as kubectl writes it.
///
/// # Errors
/// The kind is unknown, or there is no name.
pub fn named(kind: &str, namespace: &str, name: &str) -> Result<ObjectRef, String> {
    let plural = known(kind).and_then(|words| words.last());
    let Some(object) = plural.and_then(|plural| ObjectRef::named(plural, namespace, name)) else {
        let known: Vec<&str> = words().collect();
        return Err(format!("{kind:?} cannot be explained: there are {}", known.join(", ")));
    };
    if name.is_empty() {
        return Err(format!("{kind}: the name is missing"));
    }
    Ok(object)
}

/// The object of `kind/name`, or `kind` and `name`.
///
/// # Errors
/// See [`named`].
pub fn parse(words: &[&str], namespace: &str) -> Result<ObjectRef, String> {
    match words {
        [one] => match one.split_once('/') {
            Some((kind, name)) => named(kind, namespace, name),
            None => Err(format!("{one:?}: want KIND/NAME or KIND NAME")),
        },
        [one, other] if one.contains('/') => Err(format!("one object at a time: {one}, without {other}")),
        [kind, name] => named(kind, namespace, name),
        _ => Err("want KIND/NAME or KIND NAME".to_owned()),
    }
}

/// All kinds, as they are typed.
pub fn words() -> impl Iterator<Item = &'static str> {
    WORDS.iter().filter_map(|words| words.first().copied())
}

/// The kind of an object, as it is typed; nothing if none of it can be explained.
pub fn word(object: &ObjectRef) -> &'static str {
    known(object.kind()).and_then(|words| words.first()).copied().unwrap_or_default()
}

/// As it is typed: `pvc/data`. The namespace is not part of it.
pub fn typed(object: &ObjectRef) -> String {
    format!("{}/{}", word(object), object.names().1)
}

/// Its name, with its namespace if it has one.
pub(super) fn full_name(object: &ObjectRef) -> String {
    let (namespace, name) = object.names();
    namespace.into_iter().chain([name]).collect::<Vec<_>>().join("/")
}

/// As it stands in a sentence: `claim shop/data`.
pub(super) fn spoken(object: &ObjectRef) -> String {
    let word = match object {
        ObjectRef::Pod(_) | ObjectRef::Node(_) => word(object),
        ObjectRef::Claim(_) => "claim",
        ObjectRef::Class(_) => "class",
        other => other.kind(),
    };
    format!("{word} {}", full_name(object))
}

/// The object of an answer; none for programs.
pub fn of(object: &Value) -> Option<ObjectRef> {
    named(field(object, "kind"), field(object, "namespace"), field(object, "name")).ok()
}

/// Each once, in the order met.
pub(super) fn distinct<T: PartialEq>(all: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for one in all {
        if !found.contains(&one) {
            found.push(one);
        }
    }
    found
}

/// As JSON: kind, name, and the namespace if there is one.
pub fn json(object: &ObjectRef) -> Value {
    let (namespace, name) = object.names();
    let mut fields = Map::from_iter([("kind".to_owned(), json!(object.kind()))]);
    if let Some(namespace) = namespace {
        fields.insert("namespace".to_owned(), json!(namespace));
    }
    fields.insert("name".to_owned(), json!(name));
    Value::Object(fields)
}

/// The text of a field; empty if there is none.
pub(super) fn field<'a>(object: &'a Value, name: &str) -> &'a str {
    object.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// Whether an object can have the name: another could lead to another path, or do things to a terminal.
/// (`ValidatePathSegmentName`; the names of all kinds that are read are DNS subdomains.)
pub fn is_name(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '.' | ':' | '_');
    !name.is_empty() && name.len() <= 253 && name != "." && name != ".." && name.chars().all(is_letter)
}

#[cfg(test)]
mod tests {
    use apiserver::ids::ClaimKey;

    use super::*;

    #[test]
    fn a_subject_is_typed_as_for_kubectl() {
        let claim = ObjectRef::Claim(ClaimKey::new("shop", "data"));
        for words in [
            &["pvc/data"][..],
            &["pvc", "data"],
            &["PersistentVolumeClaim", "data"],
            &["persistentvolumeclaims.v1./data"],
        ] {
            assert_eq!(parse(words, "shop").as_ref(), Ok(&claim), "{words:?}");
        }
        assert_eq!(typed(&claim), "pvc/data");
        assert_eq!(
            json(&claim),
            json!({ "kind": "PersistentVolumeClaim", "namespace": "shop", "name": "data" })
        );
        let attachment = ObjectRef::Attachment("csi-1".into());
        assert_eq!(parse(&["volumeattachments.storage.k8s.io/csi-1"], "shop"), Ok(attachment));
        let mistakes = [
            (&["job/x"][..], "\"job\" cannot be explained: there are pod, pvc, pv, va, node, sc, vac"),
            (&["pvc/"], "pvc: the name is missing"),
            (&["data"], "\"data\": want KIND/NAME or KIND NAME"),
            (&[], "want KIND/NAME or KIND NAME"),
        ];
        for (words, mistake) in mistakes {
            assert_eq!(parse(words, "shop"), Err(mistake.to_owned()));
        }
    }
}
