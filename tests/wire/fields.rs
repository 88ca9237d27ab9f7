//! The field numbers of our messages are those of the pinned release's `generated.proto`.
//!
//! prost has no reflection, so the messages are read from their source: each names its Kubernetes message in its
//! first line of documentation.

use std::collections::BTreeMap;

/// What is in the repository.
pub const COMMITTED: &str = include_str!("../cases/wire/fields.txt");

const SOURCES: [&str; 9] = [
    include_str!("../../crates/apiserver/src/protobuf/claim.rs"),
    include_str!("../../crates/apiserver/src/protobuf/meta.rs"),
    include_str!("../../crates/apiserver/src/protobuf/mod.rs"),
    include_str!("../../crates/apiserver/src/protobuf/node.rs"),
    include_str!("../../crates/apiserver/src/protobuf/pod.rs"),
    include_str!("../../crates/apiserver/src/protobuf/storage.rs"),
    include_str!("../../crates/apiserver/src/protobuf/volume.rs"),
    include_str!("../../crates/apiserver/src/kinds/source.rs"),
    include_str!("../../crates/apiserver/src/kinds/volume.rs"),
];

/// Sources that are read into the narrow kind itself, and messages that stand for several.
const MESSAGES: [(&str, &[&str]); 19] = [
    ("AwsElasticBlockStore", &["AWSElasticBlockStoreVolumeSource"]),
    ("GcePersistentDisk", &["GCEPersistentDiskVolumeSource"]),
    ("AzureDisk", &["AzureDiskVolumeSource"]),
    ("AzureFile", &["AzureFilePersistentVolumeSource"]),
    ("Cinder", &["CinderVolumeSource", "CinderPersistentVolumeSource"]),
    ("VsphereVolume", &["VsphereVirtualDiskVolumeSource"]),
    ("PortworxVolume", &["PortworxVolumeSource"]),
    ("Iscsi", &["ISCSIVolumeSource", "ISCSIPersistentVolumeSource"]),
    ("Fc", &["FCVolumeSource"]),
    ("FlexVolume", &["FlexVolumeSource", "FlexPersistentVolumeSource"]),
    ("HostPathSource", &["HostPathVolumeSource"]),
    ("NfsSource", &["NFSVolumeSource"]),
    ("List", &["PodList"]),
    ("Headed", &["Pod", "Node", "VolumeAttachment"]),
    ("Labelled", &["PersistentVolume"]),
    // Maps have entries of a key (1) and a value (2), by the definition of protobuf.
    ("MapEntry", &[]),
    ("Present", &[]),
    ("HeadMessage", &["ObjectMeta"]),
    ("Labels", &["ObjectMeta"]),
];

/// A field of `generated.proto`: number and type.
type Field = (u32, String);

fn pinned() -> BTreeMap<&'static str, BTreeMap<String, Field>> {
    let mut messages: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    let mut message = "";
    for line in COMMITTED.lines().filter(|line| !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix("message ") {
            message = name;
            continue;
        }
        let (name, rest) = line.trim().split_once(' ').unwrap();
        let (number, of_type) = rest.split_once(' ').unwrap();
        let field = (number.parse().unwrap(), of_type.to_owned());
        messages.entry(message).or_default().insert(name.to_lowercase(), field);
    }
    messages
}

/// A field of ours: message, name, number, attribute.
fn ours() -> Vec<(String, String, u32, String)> {
    let mut fields = Vec::new();
    let mut documented = String::new();
    let mut message = String::new();
    let mut attribute = String::new();
    for line in SOURCES.iter().flat_map(|source| source.lines()).map(str::trim) {
        let declaration = line.strip_prefix("pub(super) ").or(line.strip_prefix("pub ")).unwrap_or(line);
        if let Some(text) = line.strip_prefix("/// `") {
            text.split('`').next().unwrap().rsplit('.').next().unwrap().clone_into(&mut documented);
        } else if let Some(name) = declaration.strip_prefix("struct ") {
            let name = name.split(' ').next().unwrap();
            let is_listed = MESSAGES.iter().any(|(ours, _)| *ours == name);
            message = if is_listed { name.to_owned() } else { documented.clone() };
        } else if let Some(text) = line.strip_prefix("#[prost(") {
            text.strip_suffix(")]").expect("one line").clone_into(&mut attribute);
        } else if !attribute.is_empty() {
            let name = declaration.split(':').next().unwrap().trim_start_matches("r#").replace('_', "");
            let (of_type, number) = attribute.rsplit_once(", tag = \"").unwrap();
            let number = number.trim_end_matches('"').parse().unwrap();
            fields.push((message.clone(), name, number, of_type.to_owned()));
            attribute.clear();
        }
    }
    fields
}

/// Whether a field of that proto type may be read as prost is told to.
fn fits(of_type: &str, prost: &str) -> bool {
    let (single, is_repeated) = match of_type.strip_prefix("[]") {
        Some(single) => (single, true),
        None => (of_type, of_type.starts_with("map<")),
    };
    let is_scalar = matches!(single, "string" | "bytes" | "bool" | "int32" | "int64");
    let kind = prost.split(',').next().unwrap();
    let kind_fits = match kind {
        "string" | "bool" | "int32" | "int64" => single == kind,
        "bytes = \"bytes\"" => matches!(single, "string" | "bytes") || !is_scalar,
        "message" => !is_scalar,
        _ => match prost {
            "btree_map = \"string, string\"" => single == "map<string, string>",
            "btree_map = \"string, message\"" => {
                single.starts_with("map<string, .") && single.ends_with("Quantity>")
            }
            _ => false,
        },
    };
    kind_fits && is_repeated == (prost.contains("repeated") || prost.starts_with("btree_map"))
}

#[test]
fn field_numbers_are_those_of_the_pinned_release() {
    let pinned = pinned();
    let ours = ours();
    assert!(ours.len() > 130, "all messages are found: {}", ours.len());
    for (message, field, number, prost) in ours {
        let single = [&*message];
        let names =
            MESSAGES.iter().find(|(ours, _)| *ours == message).map_or(&single[..], |(_, names)| names);
        for name in names {
            let fields = pinned.get(name).unwrap_or_else(|| panic!("no message {name}"));
            let (expected, of_type) = fields.get(&field).unwrap_or_else(|| panic!("{name} has no {field}"));
            assert_eq!(number, *expected, "{name}.{field}");
            assert!(fits(of_type, &prost), "{name}.{field}: {of_type} as {prost}");
        }
    }
}
