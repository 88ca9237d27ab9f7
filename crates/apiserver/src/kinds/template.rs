//! The templates of a pod's generic ephemeral volumes, of which a controller makes claims.
//!
//! In: a pod as the API server writes it, in either encoding. Out: of each such volume its name and its template, as JSON
//! to be sent back. Of protobuf all fields of the claim's spec have to be known: if a newer server has written one that is
//! not, there is no template, and the pod has to be read as JSON, where nothing is lost.

use serde_json::{Map, Value};

use crate::{
    protobuf::{self, Fields, Message, Values},
    text::Text,
    wire::{DecodeError, Encoding},
};

/// The template of one volume.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimTemplate {
    /// Name of the volume in the pod.
    pub volume: Text,
    /// `volumeClaimTemplate`: of its metadata the labels and annotations, and its spec as written.
    pub template: Value,
}

impl ClaimTemplate {
    /// The templates of a pod; `None` if one of them cannot be read whole.
    pub fn all(encoding: Encoding, raw: &[u8]) -> Option<Vec<Self>> {
        match encoding {
            Encoding::Json => Some(of_json(&serde_json::from_slice(raw).ok()?)),
            Encoding::Protobuf => of_protobuf(raw).ok().flatten(),
        }
    }
}

fn of_json(pod: &Value) -> Vec<ClaimTemplate> {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
    let template = |volume: &Value| {
        let template = volume.pointer("/ephemeral/volumeClaimTemplate")?.clone();
        Some(ClaimTemplate { volume: Text::from(volume.get("name")?.as_str()?), template })
    };
    volumes.into_iter().flatten().filter_map(template).collect()
}

fn of_protobuf(raw: &[u8]) -> Result<Option<Vec<ClaimTemplate>>, DecodeError> {
    let pod = Message::parse(protobuf::pod(raw)?, 1 << SPEC_OF_POD)?;
    let spec = pod.of(SPEC_OF_POD).message(1 << VOLUMES)?;
    let mut templates = Vec::new();
    for volume in spec.of(VOLUMES).each() {
        let volume = volume.message((1 << NAME) | (1 << SOURCE))?;
        let source = volume.of(SOURCE).message(1 << EPHEMERAL)?;
        if source.of(EPHEMERAL).is_empty() {
            continue;
        }
        let ephemeral = source.of(EPHEMERAL).message(1 << TEMPLATE)?;
        let Some(template) = template(ephemeral.of(TEMPLATE))? else { return Ok(None) };
        templates.push(ClaimTemplate { volume: volume.of(NAME).text()?.as_ref().into(), template });
    }
    Ok(Some(templates))
}

// Numbers in `core/v1/generated.proto`: Pod, PodSpec, Volume, VolumeSource, EphemeralVolumeSource.
const SPEC_OF_POD: u32 = 2;
const VOLUMES: u32 = 1;
const NAME: u32 = 1;
const SOURCE: u32 = 2;
const EPHEMERAL: u32 = 29;
const TEMPLATE: u32 = 1;

/// `PersistentVolumeClaimTemplate`. KCM takes the labels and annotations of its metadata.
fn template(values: Values<'_, '_>) -> Result<Option<Value>, DecodeError> {
    let template = values.message((1 << 1) | (1 << 2))?;
    let metadata = template.of(1).message((1 << 11) | (1 << 12))?;
    let metadata: Option<Map<String, Value>> = [("labels", 11), ("annotations", 12)]
        .into_iter()
        .map(|(name, number)| {
            let mut map = Value::Null;
            for entry in metadata.of(number).each() {
                Form::Map(&Form::Text).put(&mut map, entry.bytes().ok()?)?;
            }
            Some((name.to_owned(), map))
        })
        .collect();
    let spec = message(template.of(2).bytes()?, CLAIM_SPEC);
    Ok(metadata.zip(spec).map(|(metadata, spec)| serde_json::json!({ "metadata": metadata, "spec": spec })))
}

/// How a field is written.
enum Form {
    Text,
    /// Each value is one element.
    Texts,
    /// Each value is one entry.
    Map(&'static Self),
    /// `resource.Quantity`: a message with its text.
    Quantity,
    Message(Table),
    Messages(Table),
}

/// The fields of a message: all of them.
type Table = &'static [(u32, &'static str, Form)];

/// `PersistentVolumeClaimSpec` of 1.36.
const CLAIM_SPEC: Table = &[
    (1, "accessModes", Form::Texts),
    (2, "resources", Form::Message(RESOURCES)),
    (3, "volumeName", Form::Text),
    (4, "selector", Form::Message(SELECTOR)),
    (5, "storageClassName", Form::Text),
    (6, "volumeMode", Form::Text),
    (7, "dataSource", Form::Message(REFERENCE)),
    (8, "dataSourceRef", Form::Message(REFERENCE)),
    (9, "volumeAttributesClassName", Form::Text),
];
const RESOURCES: Table =
    &[(1, "limits", Form::Map(&Form::Quantity)), (2, "requests", Form::Map(&Form::Quantity))];
const SELECTOR: Table =
    &[(1, "matchLabels", Form::Map(&Form::Text)), (2, "matchExpressions", Form::Messages(EXPRESSION))];
const EXPRESSION: Table = &[(1, "key", Form::Text), (2, "operator", Form::Text), (3, "values", Form::Texts)];
const REFERENCE: Table = &[
    (1, "apiGroup", Form::Text),
    (2, "kind", Form::Text),
    (3, "name", Form::Text),
    (4, "namespace", Form::Text),
];

/// A message as JSON; `None` if a field is not in its table, or cannot be read.
fn message(raw: &[u8], table: Table) -> Option<Value> {
    let mut object = Map::new();
    for field in Fields(raw) {
        let (number, protobuf::Value::Bytes(bytes)) = field.ok()? else { return None };
        let (_, name, form) = table.iter().find(|(known, ..)| *known == number)?;
        form.put(object.entry(*name).or_insert(Value::Null), bytes)?;
    }
    Some(Value::Object(object))
}

impl Form {
    /// Adds one value to what the field has so far.
    fn put(&self, field: &mut Value, raw: &[u8]) -> Option<()> {
        let text = |raw| std::str::from_utf8(raw).ok().map(Value::from);
        match self {
            Self::Text => *field = text(raw)?,
            Self::Quantity => {
                let quantity = Message::parse(raw, 1 << 1).ok()?;
                *field = quantity.of(1).text().ok()?.into();
            }
            Self::Message(table) => *field = message(raw, table)?,
            Self::Texts => push(field, text(raw)?),
            Self::Messages(table) => push(field, message(raw, table)?),
            Self::Map(of) => {
                let entry = Message::parse(raw, (1 << 1) | (1 << 2)).ok()?;
                let mut value = Value::Null;
                of.put(&mut value, entry.of(2).bytes().ok()?)?;
                if !field.is_object() {
                    *field = Value::Object(Map::new());
                }
                field.as_object_mut()?.insert(entry.of(1).text().ok()?.into_owned(), value);
            }
        }
        Some(())
    }
}

fn push(field: &mut Value, value: Value) {
    if let Value::Array(list) = field {
        list.push(value);
    } else {
        *field = Value::Array(vec![value]);
    }
}
