//! `in_tree_migration.yaml` and `volume_names.yaml`: what a volume source is translated to, and what it is
//! called.

use std::{collections::HashSet, path::Path};

use apiserver::{
    ids::{AttachmentName, NodeName},
    kinds::{PersistentVolume, Pod, PodVolumeSource},
};
use libtest_mimic::{Failed, Trial};
use mooring::attach_detach::state::desired::{
    in_tree_migration,
    source_error::SourceError,
    volume_name::{VolumeId, VolumeKind},
    volume_source::{self, Storage},
};
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::cases::comparison::Comparison;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Migration {
    name: String,
    #[serde(default)]
    volume: Option<Value>,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    persistent_volume: Option<Value>,
    #[serde(default)]
    then: Option<Value>,
    #[serde(default)]
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Naming {
    name: String,
    #[serde(default)]
    spec: Option<Value>,
    #[serde(default)]
    listed: Option<String>,
    #[serde(default)]
    node: Option<NodeName>,
    #[serde(default)]
    attachment: Option<AttachmentName>,
    #[serde(default)]
    then: Option<String>,
    #[serde(default)]
    kind: Option<String>,
    #[serde(default)]
    error: Option<String>,
}

pub fn migrations(file: &Path) -> Vec<Trial> {
    super::each("in-tree migration", file, |case: &Migration| &case.name, super::always(migrate))
}

pub fn names(file: &Path) -> Vec<Trial> {
    super::each("volume name", file, |case: &Naming| &case.name, super::always(name))
}

pub fn properties() -> Vec<Trial> {
    vec![Trial::test("in-tree migration: inline volumes have names of their own", unique)]
}

fn migrate(case: &Migration, compared: &mut Comparison) {
    let seen = match (&case.volume, &case.persistent_volume) {
        (Some(volume), _) => inline(volume, case.namespace.as_deref().unwrap_or("ns")),
        (None, Some(object)) => {
            let volume = persistent_volume(object);
            let source = volume.spec.in_tree.as_deref().expect("an in-tree source");
            let claim = volume.spec.claim_ref.as_ref();
            in_tree_migration::persistent_volume(&volume.metadata, claim, &volume.spec.access_modes, source)
                .map(|migrated| migrated.expect("a translation"))
                .map(|migrated| {
                    json!({
                        "driver": migrated.driver,
                        "handle": migrated.handle,
                        "accessModes": migrated.access_modes,
                    })
                })
                .map_err(|error| problem(&error))
        }
        (None, None) => panic!("a case has a volume"),
    };
    compared.same(&["then"], &case.then, &seen.as_ref().ok());
    compared.same(&["error"], &case.error, &seen.as_ref().err());
}

/// What is wrong with a source, in one word.
pub fn problem(error: &SourceError) -> String {
    let printed = format!("{error:?}");
    printed.split(|letter: char| !letter.is_alphanumeric()).next().unwrap().to_owned()
}

fn inline(volume: &Value, namespace: &str) -> Result<Value, String> {
    let pod: Pod =
        serde_json::from_value(json!({"spec": {"volumes": [volume]}})).expect("a pod with the volume");
    let [volume] = &pod.spec.volumes[..] else { panic!("one volume") };
    let PodVolumeSource::InTree(source) = &volume.source else { panic!("an in-tree source") };
    let migrated = in_tree_migration::inline_volume(&volume.name, namespace, source)
        .map_err(|error| problem(&error))?
        .expect("a translation");
    let made_up = migrated.inline.expect("a PersistentVolume that is made up");
    assert_eq!(made_up.spec["csi"]["driver"], migrated.driver);
    assert_eq!(made_up.spec["csi"]["volumeHandle"], migrated.handle);
    assert_eq!(made_up.spec["accessModes"], json!(migrated.access_modes));
    Ok(json!({"name": made_up.name, "spec": made_up.spec}))
}

fn persistent_volume(object: &Value) -> PersistentVolume {
    let mut object = object.clone();
    json_patch::merge(&mut object, &json!({"metadata": {"resourceVersion": "1"}}));
    serde_json::from_value(object).expect("a PersistentVolume")
}

/// attach-detach §15.11: two volumes of one plugin are two PersistentVolumes, or they would share a staging path.
fn unique() -> Result<(), Failed> {
    let sources = |id: &str| {
        [
            json!({"name": "v", "awsElasticBlockStore": {"volumeID": id}}),
            json!({"name": "v", "gcePersistentDisk": {"pdName": id}}),
            json!({"name": "v", "azureDisk": {"diskURI": id}}),
            json!({"name": "v", "azureFile": {"secretName": "s", "shareName": id}}),
            json!({"name": "v", "cinder": {"volumeID": id}}),
            json!({"name": "v", "vsphereVolume": {"volumePath": id}}),
            json!({"name": "v", "portworxVolume": {"volumeID": id}}),
        ]
    };
    let mut names = HashSet::new();
    for volume in sources("a").iter().chain(&sources("b")) {
        names.insert(inline(volume, "ns")?["name"].to_string());
    }
    assert_eq!(names.len(), 14);
    Ok(())
}

fn name(case: &Naming, compared: &mut Comparison) {
    let mut attachment = None;
    let mut kind = |volume: VolumeId| {
        let kind = match volume.kind() {
            VolumeKind::Csi => "csi",
            VolumeKind::NoOp => "no-op",
        };
        // What we write into a node's status, we also understand there.
        assert_eq!(VolumeId::parse(volume.as_str()).as_ref(), Some(&volume));
        attachment = case.node.as_ref().map(|node| volume.attachment_name(node));
        Some((volume.to_string(), kind.to_owned()))
    };
    let seen = match (&case.spec, &case.listed) {
        (Some(spec), _) => {
            let volume = persistent_volume(&json!({"metadata": {"name": "pv1"}, "spec": spec}));
            match volume_source::of_persistent_volume(&volume.metadata, &volume.spec) {
                Ok(Storage::Csi(volume)) => Ok(kind(volume.id)),
                Ok(Storage::NoOp(volume, _)) => Ok(kind(volume)),
                Ok(Storage::FlexVolume(_) | Storage::NotAttachable) => Ok(None),
                Err(error) => Err(problem(&error)),
            }
        }
        (None, Some(listed)) => Ok(VolumeId::parse(listed).and_then(kind)),
        (None, None) => panic!("a case has a spec or a name"),
    };
    let (then, kind) = seen.clone().ok().flatten().unzip();
    compared.same(&["then"], &case.then, &then);
    compared.same(&["kind"], &case.kind, &kind);
    compared.same(&["error"], &case.error, &seen.err());
    compared.same(&["attachment"], &case.attachment, &attachment);
}
