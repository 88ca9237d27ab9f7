//! The field numbers of our tables are those of the pinned release's `generated.proto`.
//!
//! The tables (`message!`, and the keys of volume sources) are read from their source, which names each field as the API
//! does. That a field has the type that we read is what [`crate::conformance`] shows.

use std::collections::BTreeMap;

/// What is in the repository.
pub const COMMITTED: &str = include_str!("../cases/wire/fields.txt");

const SOURCES: [&str; 11] = [
    include_str!("../../crates/apiserver/src/kinds/attachment.rs"),
    include_str!("../../crates/apiserver/src/kinds/claim.rs"),
    include_str!("../../crates/apiserver/src/kinds/class.rs"),
    include_str!("../../crates/apiserver/src/kinds/csi.rs"),
    include_str!("../../crates/apiserver/src/kinds/meta.rs"),
    include_str!("../../crates/apiserver/src/kinds/node.rs"),
    include_str!("../../crates/apiserver/src/kinds/pod.rs"),
    include_str!("../../crates/apiserver/src/kinds/source.rs"),
    include_str!("../../crates/apiserver/src/kinds/volume.rs"),
    include_str!("../../crates/apiserver/src/wire/status.rs"),
    include_str!("../../crates/apiserver/src/wire/values.rs"),
];

/// What Kubernetes calls the messages that we name otherwise.
const MESSAGES: [(&str, &[&str]); 32] = [
    ("AttachmentNames", &["VolumeAttachmentSpec"]),
    ("AttachmentSource", &["VolumeAttachmentSource"]),
    ("AttachmentSpec", &["VolumeAttachmentSpec"]),
    ("AttachmentStatus", &["VolumeAttachmentStatus"]),
    ("AwsElasticBlockStore", &["AWSElasticBlockStoreVolumeSource"]),
    ("AzureDisk", &["AzureDiskVolumeSource"]),
    ("AzureFile", &["AzureFilePersistentVolumeSource"]),
    ("Cinder", &["CinderVolumeSource", "CinderPersistentVolumeSource"]),
    ("ClaimCondition", &["PersistentVolumeClaimCondition"]),
    ("ClaimRef", &["ObjectReference"]),
    ("ClaimResources", &["VolumeResourceRequirements"]),
    ("ClaimSource", &["PersistentVolumeClaimVolumeSource"]),
    ("ClaimSpec", &["PersistentVolumeClaimSpec"]),
    ("ClaimStatus", &["PersistentVolumeClaimStatus"]),
    ("CsiDriver", &["CSIDriver"]),
    ("CsiDriverSpec", &["CSIDriverSpec"]),
    ("CsiSource", &["CSIPersistentVolumeSource"]),
    ("Fc", &["FCVolumeSource"]),
    ("FlexVolume", &["FlexVolumeSource", "FlexPersistentVolumeSource"]),
    ("GcePersistentDisk", &["GCEPersistentDiskVolumeSource"]),
    ("Head", &["ObjectMeta"]),
    ("HostPathSource", &["HostPathVolumeSource"]),
    ("Iscsi", &["ISCSIVolumeSource", "ISCSIPersistentVolumeSource"]),
    ("LabelExpression", &["LabelSelectorRequirement"]),
    ("Meta", &["ObjectMeta"]),
    ("NfsSource", &["NFSVolumeSource"]),
    ("NodeInfo", &["NodeSystemInfo"]),
    ("PortworxVolume", &["PortworxVolumeSource"]),
    ("StatusFields", &["PodStatus"]),
    ("VolumeSpec", &["PersistentVolumeSpec"]),
    ("VolumeStatus", &["PersistentVolumeStatus"]),
    ("VsphereVolume", &["VsphereVirtualDiskVolumeSource"]),
];

/// What Kubernetes calls the fields that we name otherwise, by message.
const FIELDS: [(&str, &str, &str); 3] = [
    ("AttachmentNames", "node", "nodename"),
    ("AttachmentNames", "volume", "source"),
    ("VolumeSpec", "reclaimpolicy", "persistentvolumereclaimpolicy"),
];

/// Numbers of fields, by message and name in small letters.
fn pinned() -> BTreeMap<&'static str, BTreeMap<String, u32>> {
    let mut messages: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    let mut message = "";
    for line in COMMITTED.lines().filter(|line| !line.starts_with('#')) {
        let begins = line.split_once(':').filter(|_| !line.starts_with(' '));
        let (name, fields) = begins.unwrap_or((message, line));
        message = name;
        for field in fields.split(';').map(str::trim).filter(|field| !field.is_empty()) {
            let [name, number, _] = field.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
            messages.entry(message).or_default().insert(name.to_lowercase(), number.parse().unwrap());
        }
    }
    messages
}

/// The fields of our tables: message, name, number.
fn ours() -> Vec<(String, String, u32)> {
    let mut fields = Vec::new();
    for source in SOURCES {
        for table in source.split("\nmessage!(").skip(1) {
            let (message, rows) = table.split_once(" {").unwrap();
            let rows = rows.split_once('}').unwrap().0.split(',').map(str::trim);
            for row in rows.filter(|row| !row.is_empty()) {
                let (name, rest) = row.split_once(": ").unwrap();
                let number = rest.split(' ').next().unwrap().parse().unwrap();
                fields.push((message.to_owned(), name.trim_start_matches("r#").replace('_', ""), number));
            }
        }
        for keys in source.split("impl Source for ").skip(1) {
            let of_pods = keys.starts_with("PodVolumeSource");
            let message = if of_pods { "VolumeSource" } else { "PersistentVolumeSource" };
            let rows = keys.split_once("= &[").unwrap().1.split_once("];").unwrap().0;
            for row in rows.lines().map(str::trim).filter(|row| !row.is_empty()) {
                let (number, key) = row.trim_matches(['(', ')', ',']).split_once(", ").unwrap();
                let key = key.trim_matches('"').to_lowercase();
                fields.push((message.to_owned(), key, number.parse().unwrap()));
            }
        }
    }
    fields
}

#[test]
fn field_numbers_are_those_of_the_pinned_release() {
    let pinned = pinned();
    let ours = ours();
    assert!(ours.len() > 130, "all tables are found: {}", ours.len());
    for (message, field, number) in ours {
        let single = [&*message];
        let names =
            MESSAGES.iter().find(|(ours, _)| *ours == message).map_or(&single[..], |(_, names)| names);
        let field = FIELDS
            .iter()
            .find(|(of, ours, _)| *of == message && *ours == field)
            .map_or(&*field, |(.., name)| name);
        for name in names {
            let fields = pinned.get(name).unwrap_or_else(|| panic!("no message {name}"));
            let expected = fields.get(field).unwrap_or_else(|| panic!("{name} has no {field}"));
            assert_eq!(number, *expected, "{name}.{field}");
        }
    }
}
