//! What messages of all kinds are made of: metadata, times, quantities, and the ways from a message's value to
//! that of a narrow kind.

use std::collections::BTreeMap;

use arcstr::ArcStr;
use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use prost::Message;
use serde::{Deserialize, de::value::StrDeserializer};

use crate::{
    ids::{ResourceVersion, Uid},
    kinds::{self, Meta},
    text::{Text, TextMap, share},
    wire::DecodeError,
};

/// `meta.v1.ObjectMeta`, without labels.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ObjectMeta {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub namespace: String,
    #[prost(string, tag = "5")]
    pub uid: String,
    #[prost(string, tag = "6")]
    pub resource_version: String,
    #[prost(message, optional, tag = "8")]
    pub creation_timestamp: Option<Time>,
    #[prost(message, optional, tag = "9")]
    pub deletion_timestamp: Option<Time>,
    #[prost(message, repeated, tag = "12")]
    pub annotations: Vec<MapEntry>,
    #[prost(message, repeated, tag = "13")]
    pub owner_references: Vec<OwnerReference>,
    #[prost(string, repeated, tag = "14")]
    pub finalizers: Vec<String>,
}

/// An entry of a map of strings, not yet copied out of the body.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MapEntry {
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// `meta.v1.OwnerReference`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct OwnerReference {
    #[prost(string, tag = "1")]
    pub kind: String,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(string, tag = "4")]
    pub uid: String,
    #[prost(bool, tag = "6")]
    pub controller: bool,
}

/// An object of which only the labels are read.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Labelled {
    #[prost(message, required, tag = "1")]
    pub metadata: Labels,
}

/// `meta.v1.ObjectMeta`, labels only.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Labels {
    #[prost(btree_map = "string, string", tag = "11")]
    pub labels: BTreeMap<String, String>,
}

/// `meta.v1.Time`. Parts of a second are not read, as in Go. The zero time, which JSON writes as `null`, is an
/// empty message.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Time {
    #[prost(int64, optional, tag = "1")]
    pub seconds: Option<i64>,
    #[prost(int32, optional, tag = "2")]
    pub nanos: Option<i32>,
}

/// `resource.Quantity`, as written.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Quantity {
    #[prost(string, tag = "1")]
    pub string: String,
}

/// A message of which only the presence matters.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Present {}

impl From<Present> for kinds::Present {
    fn from(Present {}: Present) -> Self {
        Self {}
    }
}

/// The time in a field of that path.
pub(super) fn time(field: &'static str, time: Option<&Time>) -> Result<Option<Timestamp>, DecodeError> {
    match time {
        None | Some(Time { seconds: None, nanos: None }) => Ok(None),
        Some(time) => Timestamp::from_second(time.seconds.unwrap_or_default())
            .map(Some)
            .map_err(|_| DecodeError::Value { field, what: "no time" }),
    }
}

/// The value of an enumeration by its text, as in JSON.
pub(super) fn by_name<'a, T: Deserialize<'a>>(field: &'static str, text: &'a str) -> Result<T, DecodeError> {
    T::deserialize(StrDeserializer::<serde::de::value::Error>::new(text))
        .map_err(|_| DecodeError::Value { field, what: "no value of the enumeration" })
}

/// What Go omits from JSON when it is empty and protobuf has nevertheless.
pub(super) fn non_empty(text: &str) -> Option<Text> {
    Some(text).filter(|text| !text.is_empty()).map(Text::from)
}

pub(super) fn quantities(map: &BTreeMap<String, Quantity>) -> TextMap {
    map.iter().map(|(name, quantity)| (name, &quantity.string)).collect()
}

/// A text as it must be.
pub(super) fn utf8<'a>(field: &'static str, bytes: &'a [u8]) -> Result<&'a str, DecodeError> {
    std::str::from_utf8(bytes).map_err(|_| DecodeError::Value { field, what: "it is not UTF-8" })
}

impl ObjectMeta {
    /// The metadata of an object that others refer to by name.
    pub(super) fn narrow(self) -> Result<Meta, DecodeError> {
        let name = share(&self.name);
        self.named(name)
    }

    /// The metadata of an object whose name stands nowhere else.
    pub(super) fn narrow_unreferenced(self) -> Result<Meta, DecodeError> {
        let name = ArcStr::from(self.name.as_str());
        self.named(name)
    }

    fn named(self, name: ArcStr) -> Result<Meta, DecodeError> {
        let no_revision = DecodeError::Value { field: "metadata.resourceVersion", what: "it is no integer" };
        let resource_version = match self.resource_version.as_str() {
            "" => ResourceVersion::default(),
            text => text.parse().map(ResourceVersion).map_err(|_| no_revision)?,
        };
        let mut annotations = Vec::new();
        for MapEntry { key, value } in &self.annotations {
            if kinds::is_kept_annotation(key) {
                let [key, value] = [key, value].map(|text| utf8("metadata.annotations", text));
                annotations.push((key?, value?));
            }
        }
        Ok(Meta {
            name,
            namespace: share(&self.namespace),
            uid: Uid::from(self.uid),
            resource_version,
            creation_timestamp: time("metadata.creationTimestamp", self.creation_timestamp.as_ref())?,
            deletion_timestamp: time("metadata.deletionTimestamp", self.deletion_timestamp.as_ref())?
                .map(Box::new),
            finalizers: self.finalizers.iter().collect(),
            owner_references: self.owner_references.into_iter().map(Into::into).collect(),
            annotations: annotations.into_iter().collect(),
            labels: TextMap::default(),
        })
    }
}

impl From<OwnerReference> for kinds::OwnerReference {
    fn from(owner: OwnerReference) -> Self {
        Self {
            kind: owner.kind.into(),
            name: owner.name.into(),
            uid: Uid::from(owner.uid),
            controller: owner.controller,
        }
    }
}
