//! Which rows of a debug page are asked for, as in `?claim=shop/data&volume=pv-7`.
//!
//! In: a query. Out: whether a row has one of the names, and what the history knows of the objects that they are of. Without a query
//! each row is shown. A field that no row has asks for nothing.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

use apiserver::kinds::{
    Narrow, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment, VolumeAttributesClass,
};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::telemetry::{history::History, transition::Named};

/// Names by which a row is found, each under its kind.
pub type Names = Vec<(&'static str, String)>;

/// The values that are asked for, by the field.
#[derive(Clone, Debug, Default)]
pub struct Asked(BTreeMap<String, BTreeSet<String>>);

/// A change of an object that was asked for.
#[derive(Debug, Deserialize, Serialize)]
pub struct Past {
    pub(crate) object: String,
    pub(crate) namespace: Option<String>,
    pub(crate) at: Timestamp,
    pub(crate) from: Cow<'static, str>,
    pub(crate) to: Cow<'static, str>,
    pub(crate) reason: Cow<'static, str>,
    attempt: u32,
}

impl Asked {
    /// From the query of a request.
    pub fn parse(query: Option<&str>) -> Self {
        let mut asked = Self::default();
        for (field, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            asked.0.entry(field.into_owned()).or_default().insert(value.into_owned());
        }
        asked
    }

    /// Whether all rows are asked for.
    pub(crate) fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a row with these names is asked for.
    pub fn has(&self, names: &Names) -> bool {
        let is_named =
            |(field, name): &(&str, String)| self.0.get(*field).is_some_and(|values| values.contains(name));
        self.is_all() || names.iter().any(is_named)
    }

    /// What happened to the objects that are asked for; `None` if all rows are asked for.
    pub fn past(&self, history: &History) -> Option<Vec<Past>> {
        if self.is_all() {
            return None;
        }
        let names = self.0.iter().flat_map(|(field, values)| values.iter().map(move |name| (field, name)));
        let objects = names.filter_map(|(field, name)| named(field, name));
        let past = objects.flat_map(|object| {
            let changes = history.of(&object);
            changes.into_iter().map(move |change| Past {
                object: object.object.clone(),
                namespace: object.namespace.clone(),
                at: change.at,
                from: change.from.into(),
                to: change.to.into(),
                reason: change.reason.into(),
                attempt: change.attempt,
            })
        });
        Some(past.collect())
    }
}

/// An object as the log names it.
fn named(field: &str, name: &str) -> Option<Named> {
    let in_namespace =
        |kind| name.split_once('/').map(|(space, name)| Named::in_namespace(kind, space, name));
    match field {
        "claim" => in_namespace(PersistentVolumeClaim::KIND),
        "pod" => in_namespace(Pod::KIND),
        "volume" => Some(Named::in_cluster(PersistentVolume::KIND, name)),
        "attachment" => Some(Named::in_cluster(VolumeAttachment::KIND, name)),
        "node" => Some(Named::in_cluster(Node::KIND, name)),
        "vac" => Some(Named::in_cluster(VolumeAttributesClass::KIND, name)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::telemetry::transition::Transition;

    #[test]
    fn rows_are_found_by_any_of_their_names() {
        let row = |volume: &str, node: &str| vec![("volume", volume.to_owned()), ("node", node.to_owned())];
        let rows = [
            (None, true),
            (Some(""), true),
            (Some("volume=kubernetes.io%2Fcsi%2Fd%5Eh"), true),
            (Some("volume=other&volume=kubernetes.io/csi/d^h"), true),
            (Some("node=n1&claim=shop/data"), true),
            (Some("node=n2"), false),
            (Some("nodes=n1"), false),
        ];
        for (query, expected) in rows {
            let asked = Asked::parse(query);
            assert_eq!(asked.has(&row("kubernetes.io/csi/d^h", "n1")), expected, "{query:?}");
        }
    }

    #[test]
    fn the_past_is_that_of_the_objects_that_are_asked_for() {
        let history = History::default();
        let example = crate::telemetry::transition::tests::example;
        for object in [
            Named::in_namespace("PersistentVolumeClaim", "shop", "data"),
            Named::in_namespace("PersistentVolumeClaim", "other", "data"),
            Named::in_cluster("VolumeAttachment", "csi-1"),
        ] {
            history.note(&Transition { object, ..example() }, Timestamp::UNIX_EPOCH);
        }
        assert!(Asked::parse(None).past(&history).is_none());
        let past = |query| json!(Asked::parse(Some(query)).past(&history));
        let found = past("claim=shop/data&claim=shop/none&attachment=csi-1");
        let objects: Vec<_> = found.as_array().unwrap().iter().map(|one| &one["object"]).collect();
        assert_eq!(objects, ["VolumeAttachment/csi-1", "PersistentVolumeClaim/data"]);
        assert_eq!(
            (&found[1]["namespace"], &found[1]["at"]),
            (&json!("shop"), &json!("1970-01-01T00:00:00Z"))
        );
        assert_eq!(past("claim=data&bogus=x"), json!([]));
    }
}
