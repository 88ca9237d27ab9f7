//! JSON and protobuf say the same.

use apiserver::{
    kinds::{
        ClaimTemplate, CsiDriver, InTreeSource, Narrow, Node, PersistentVolume, PersistentVolumeClaim, Pod,
        StorageClass, VolumeAttachment, VolumeAttributesClass,
    },
    wire::{DecodeError, Encoding, ListPart, WatchEvent, WatchEventKind},
};
use bytes::Bytes;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::encoded::{Case, cases, list_parts};

/// What one kind is checked by: is it the same, in all that is kept?
fn agree<T: Narrow>(name: &str, json: &Bytes, protobuf: &Bytes) -> T {
    let [json, protobuf] = [(Encoding::Json, json), (Encoding::Protobuf, protobuf)].map(|(encoding, raw)| {
        let object: T = encoding.object(raw).unwrap_or_else(|error| panic!("{name}, {encoding:?}: {error}"));
        let head = encoding.head(raw).unwrap();
        let meta = object.metadata();
        assert_eq!(head.key::<T>(), object.key(), "{name}, {encoding:?}");
        let said = (head.uid.unwrap_or_default(), head.resource_version.unwrap_or_default());
        assert_eq!(said, (meta.uid.clone(), meta.resource_version), "{name}");
        object
    });
    assert_eq!(json, protobuf, "{name}");
    // Equality leaves the revision out.
    assert_eq!(json.metadata().resource_version, protobuf.metadata().resource_version, "{name}");
    protobuf
}

fn objects_agree(kind: &str, name: &str, json: &Bytes, protobuf: &Bytes) {
    match kind {
        "Pod" => drop(agree::<Pod>(name, json, protobuf)),
        "Node" => drop(agree::<Node>(name, json, protobuf)),
        "PersistentVolume" => drop(agree::<PersistentVolume>(name, json, protobuf)),
        "PersistentVolumeClaim" => drop(agree::<PersistentVolumeClaim>(name, json, protobuf)),
        "VolumeAttachment" => drop(agree::<VolumeAttachment>(name, json, protobuf)),
        "StorageClass" => drop(agree::<StorageClass>(name, json, protobuf)),
        "CSIDriver" => drop(agree::<CsiDriver>(name, json, protobuf)),
        "VolumeAttributesClass" => drop(agree::<VolumeAttributesClass>(name, json, protobuf)),
        "Status" => {
            let read = [(Encoding::Json, json), (Encoding::Protobuf, protobuf)]
                .map(|(encoding, raw)| encoding.status(raw).unwrap());
            assert_eq!(read[0], read[1], "{name}");
        }
        other => panic!("{name}: {other}"),
    }
}

/// The one event of a stream.
fn event(encoding: Encoding, stream: &[u8]) -> WatchEvent {
    let mut splitter = encoding.splitter();
    splitter.push(stream);
    let frame = splitter.next_frame().unwrap().expect("a frame");
    assert_eq!(splitter.next_frame(), Ok(None));
    assert_eq!(splitter.finish(), Ok(()));
    encoding.watch_event(&frame).unwrap()
}

#[test]
fn json_and_protobuf_say_the_same() {
    for Case { name, what, json, protobuf, kind } in cases() {
        match what {
            "object" => objects_agree(&kind, name, &json, &protobuf),
            "list" => {
                let [json, protobuf] = [(Encoding::Json, &json), (Encoding::Protobuf, &protobuf)]
                    .map(|(encoding, body)| list_parts(encoding, body).unwrap());
                assert_eq!(json.len(), protobuf.len(), "{name}");
                for parts in json.iter().zip(&protobuf) {
                    match parts {
                        (ListPart::Item(json), ListPart::Item(protobuf)) => {
                            objects_agree(kind.strip_suffix("List").unwrap(), name, json, protobuf);
                        }
                        (json, protobuf) => assert_eq!(json, protobuf, "{name}"),
                    }
                }
            }
            "event" => {
                let line = [&json[..], b"\n"].concat();
                let [json, protobuf] = [event(Encoding::Json, &line), event(Encoding::Protobuf, &protobuf)];
                assert_eq!(json.kind, protobuf.kind, "{name}");
                objects_agree(&kind, name, &json.object, &protobuf.object);
            }
            other => panic!("{name}: {other}"),
        }
    }
}

/// Without what Go leaves out of JSON when it is empty.
fn written(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.values_mut().for_each(written);
            let empty = [json!(null), json!({})];
            // The one text whose presence counts.
            fields.retain(|name, value| {
                !empty.contains(value) && (*value != "" || matches!(&**name, "storageClassName" | "tier"))
            });
        }
        Value::Array(list) => list.iter_mut().for_each(written),
        _ => {}
    }
}

#[test]
fn templates_of_claims_are_whole_in_both_encodings() {
    for (name, count) in
        [("a pod with templates of claims", 2), ("a whole pod", 1), ("a pod with every source", 0)]
    {
        let case = named(name);
        let [json, protobuf] =
            [(Encoding::Json, &case.json), (Encoding::Protobuf, &case.protobuf)].map(|(encoding, raw)| {
                let mut templates = ClaimTemplate::all(encoding, raw).expect(name);
                for template in &mut templates {
                    written(&mut template.template);
                }
                templates
            });
        assert_eq!(json, protobuf, "{name}");
        assert_eq!(json.len(), count, "{name}");
    }
}

/// What a newer server writes must not be lost on the way: the pod is read as JSON.
#[test]
fn a_template_with_a_field_that_is_not_known_is_not_taken_from_protobuf() {
    let length = |content: &[u8]| u8::try_from(content.len()).unwrap();
    let pod = |spec: &[u8]| {
        let field = |number: u8, content: &[u8]| [&[number << 3 | 2, length(content)], content].concat();
        let ephemeral = field(1, &field(2, spec));
        // The number of `ephemeral` takes two bytes.
        let source = [&[0xea, 0x01, length(&ephemeral)][..], &ephemeral].concat();
        Bytes::from(field(2, &field(1, &[field(1, b"v"), field(2, &source)].concat())))
    };
    let known = ClaimTemplate::all(Encoding::Protobuf, &pod(&[6 << 3 | 2, 1, b'x'])).unwrap();
    assert_eq!(known[0].template["spec"], json!({ "volumeMode": "x" }));
    for spec in [&[10 << 3 | 2, 1, b'x'][..], &[6 << 3, 1], &[6 << 3 | 2, 9]] {
        assert_eq!(ClaimTemplate::all(Encoding::Protobuf, &pod(spec)), None, "{spec:?}");
    }
}

fn named(name: &str) -> Case {
    cases().into_iter().find(|case| case.name == name).expect(name)
}

#[test]
fn events_of_all_types_are_there() {
    use WatchEventKind::{Added, Bookmark, Deleted, Error, Modified};
    let found: Vec<WatchEventKind> = cases()
        .iter()
        .filter(|case| case.what == "event")
        .map(|case| event(Encoding::Protobuf, &case.protobuf).kind)
        .collect();
    assert_eq!(found, [Added, Modified, Deleted, Bookmark, Error]);
    let end = event(Encoding::Protobuf, &named("the end of a watch").protobuf);
    assert!(Encoding::Protobuf.status(&end.object).unwrap().is_expired());
}

#[test]
fn what_is_of_another_kind_is_not_taken_for_an_object() {
    let raw = named("a bare status").protobuf;
    let result = Encoding::Protobuf.object::<PersistentVolume>(&raw);
    assert_eq!(result, Err(DecodeError::Kind("PersistentVolume")));
    assert_eq!(list_parts(Encoding::Protobuf, &raw), Err(DecodeError::Kind("list")));
    let raw = named("a whole volume").protobuf;
    assert_eq!(Encoding::Protobuf.status(&raw), Err(DecodeError::Kind("Status")));
    assert_eq!(list_parts(Encoding::Protobuf, &raw), Err(DecodeError::Kind("list")));
    // Without envelope, no list and no event: nothing says what it is.
    list_parts(Encoding::Protobuf, b"").unwrap_err();
    list_parts(Encoding::Protobuf, b"404 page not found").unwrap_err();
}

/// A field of a message: its number and its bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut field = vec![];
    prost::encoding::encode_key(number.into(), prost::encoding::WireType::LengthDelimited, &mut field);
    prost::encoding::encode_varint(bytes.len() as u64, &mut field);
    [field, bytes.to_vec()].concat()
}

/// An object with that name, and after it what is given.
fn object_with(metadata: &[u8], rest: &[u8]) -> Bytes {
    let metadata = [&field(3, b"ns"), &field(1, b"x"), &field(6, b"7"), metadata].concat();
    Bytes::from([&field(1, &metadata), rest].concat())
}

/// Whoever writes it into a status would else keep the object from being read.
#[test]
fn a_time_out_of_range_is_the_last_one() {
    let never = [&[8][..], &[0xff; 8], &[0x7f]].concat();
    let pod: Pod = Encoding::Protobuf.object(&object_with(&field(8, &never), &[])).unwrap();
    assert_eq!(pod.metadata.creation_timestamp, Some(Timestamp::MAX));
    let node = named("a node with times that a calendar of four digits ends before").json;
    let node: Node = Encoding::Json.object(&node).unwrap();
    let times: Vec<_> = node.status.conditions.iter().map(|it| it.last_transition_time).collect();
    assert_eq!(times, [Some(Timestamp::MAX)]);
}

#[test]
fn what_cannot_be_read_names_its_field_quotes_nothing_and_has_a_head() {
    let cases: [(&str, Bytes); 3] = [
        ("metadata.creationTimestamp: it is no protobuf", object_with(&field(8, b"s3cret"), &[])),
        ("metadata.resourceVersion: it is no integer", object_with(&field(6, b"s3cret"), &[])),
        ("spec.volumes: it is no protobuf", object_with(&[], &field(2, &field(1, b"s3cret")))),
    ];
    for (place, raw) in cases {
        let text = Encoding::Protobuf.object::<Pod>(&raw).unwrap_err().to_string();
        assert!(text.contains(place) && !text.contains("s3cret"), "{place}: {text}");
        let head = Encoding::Protobuf.head(&raw).unwrap();
        assert_eq!(head.key::<Pod>().to_string(), "ns/x", "{place}");
    }
    Encoding::Protobuf.head(&Bytes::from(field(2, b"x"))).unwrap_err();
    Encoding::Protobuf.head(&Bytes::from(vec![0xff; 20])).unwrap_err();
    assert!(Encoding::Protobuf.head(&object_with(&[], &[0xff; 20])).is_ok(), "what follows does not matter");
}

#[test]
fn a_source_that_cannot_be_read_blocks_its_volume_alone() {
    let broken = b"s3cret";
    let volume = |name: &[u8], source: &[u8]| field(1, &[field(1, name), field(2, source)].concat());
    let volumes =
        [volume(b"bad", &field(13, broken)), volume(b"good", &field(10, &field(1, b"claim")))].concat();
    let pod: Pod = Encoding::Protobuf.object(&object_with(&[], &field(2, &volumes))).unwrap();
    let [bad, good] = &pod.spec.volumes[..] else { panic!("two volumes") };
    assert!(format!("{:?}", bad.source).contains("Malformed") && pod.claim_of(bad).is_none());
    assert_eq!(pod.claim_of(good).unwrap().to_string(), "ns/claim");

    for (number, key) in [(1, "gcePersistentDisk"), (5, "nfs"), (22, "csi")] {
        let raw = object_with(&[], &field(2, &field(2, &field(number, broken))));
        let volume: PersistentVolume = Encoding::Protobuf.object(&raw).unwrap();
        let Some(InTreeSource::Malformed(malformed)) = volume.spec.in_tree.as_deref() else {
            panic!("{key}")
        };
        assert_eq!(malformed.key, key);
    }
}

#[test]
fn s42_a_text_that_is_not_utf8_is_read_as_in_json() {
    let raw = object_with(&[], &field(3, &field(2, b"driver said \xff")));
    let volume: PersistentVolume = Encoding::Protobuf.object(&raw).unwrap();
    assert_eq!(&*volume.status.message, "driver said \u{fffd}");

    let annotation = field(12, &[field(1, b"volume.kubernetes.io/x"), field(2, b"\xff")].concat());
    let owner = field(13, &[field(1, b"\xff"), field(3, b"\xff")].concat());
    let claim = field(1, &[field(1, b"data"), field(2, &field(10, &field(1, b"\xff")))].concat());
    let rest = [field(2, &claim), field(3, &field(1, b"\xff"))].concat();
    let pod: Pod = Encoding::Protobuf.object(&object_with(&[annotation, owner].concat(), &rest)).unwrap();
    assert_eq!(pod.metadata.annotation("volume.kubernetes.io/x"), Some("\u{fffd}"));
    assert_eq!(pod.claim_of(&pod.spec.volumes[0]).unwrap().to_string(), "ns/\u{fffd}");
}

#[test]
fn fields_of_later_versions_are_skipped_whatever_their_type() {
    // Numbers that no message has; a varint, eight bytes, text, a group, four bytes.
    let unknown = [
        &[0xa0, 0x9c, 0x01, 0x05][..],
        &[0xa1, 0x9c, 0x01, 1, 2, 3, 4, 5, 6, 7, 8],
        &[0xa2, 0x9c, 0x01, 2, b'h', b'i'],
        &[0xa3, 0x9c, 0x01, 0xa4, 0x9c, 0x01],
        &[0xa5, 0x9c, 0x01, 1, 2, 3, 4],
    ]
    .concat();
    let plain = object_with(&[], &field(2, &field(10, b"node")));
    let extended = object_with(
        &unknown,
        &[field(2, &[field(10, b"node"), unknown.clone()].concat()), unknown.clone()].concat(),
    );
    let [plain, extended] = [plain, extended].map(|raw| Encoding::Protobuf.object::<Pod>(&raw).unwrap());
    assert_eq!(plain, extended);
    assert_eq!(plain.spec.node_name.as_str(), "node");
}
