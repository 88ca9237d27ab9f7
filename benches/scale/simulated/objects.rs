//! The objects of a simulated cluster, each made from its kind, its number and the seed, and none of them stored.
//!
//! In: a number. Out: bytes in either encoding. An object is a [`Template`], which is encoded once, with texts put into its
//! slots. Each slot is as wide as what comes into it, so that lengths stay as they are. The templates are the objects of
//! `tests/cases/wire/realistic.txt`, which are as large as in clusters.

use std::{collections::HashMap, sync::OnceLock};

use apiserver::{
    kinds::{Narrow, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
    wire::Encoding,
};
use bytes::Bytes;
use serde_json::{Value, json};
use test_support::{actors::attachment_name, cluster::DRIVER};

use super::encode::Schema;

const REALISTIC: &str = include_str!("../../../tests/cases/wire/realistic.txt");

/// Pods and claims are spread over so many namespaces.
pub const NAMESPACES: usize = 100;

/// The revision of an object that nobody has written.
pub const REVISION: u64 = 1;

/// How large the cluster is.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub nodes: usize,
    /// Pods of each node, and how many of them, the first, have an attached volume.
    pub pods: usize,
    pub attached: usize,
    /// Bound claims of each node.
    pub claims: usize,
    pub seed: u64,
}

/// Name of a node.
pub fn node_name(number: usize) -> String {
    format!("n{number:06}")
}

/// Name of a claim; its pod's is the last part.
pub fn claim_name(number: usize) -> String {
    format!("data-database-{number:07}")
}

/// Name of a namespace.
pub fn namespace(number: usize) -> String {
    format!("team-{:04}", number % NAMESPACES)
}

fn handle(volume: usize) -> String {
    format!("vol-0000000000{volume:07}")
}

/// Kinds of which a node has some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Node,
    CsiNode,
    Volume,
    Claim,
    Attachment,
    Pod,
}

impl Kind {
    /// As the API names it.
    pub fn of(plural: &str) -> Option<Self> {
        Some(match plural {
            "nodes" => Self::Node,
            "csinodes" => Self::CsiNode,
            "persistentvolumes" => Self::Volume,
            "persistentvolumeclaims" => Self::Claim,
            "volumeattachments" => Self::Attachment,
            "pods" => Self::Pod,
            _ => return None,
        })
    }
}

/// The objects that belong together, by their numbers.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    node: usize,
    /// The volume and its claim; of a node the first.
    volume: usize,
    pod: usize,
    namespace: usize,
}

/// What comes into a slot.
#[derive(Clone, Copy, Debug)]
enum Slot {
    Node,
    Volume,
    Pod,
    Namespace,
    /// Of a node: the number of one of its volumes.
    VolumeAt(usize),
    /// The UID of an object of this kind, by the kind's first letter; of a node also its boot, `b`.
    Uid(u8),
    /// What the name of a VolumeAttachment ends with.
    Hash,
}

/// All slots, each with the text that stands in its place in a template.
fn slots(attached: usize) -> Vec<(String, Slot)> {
    let mut slots = vec![
        ("~N~~~~".to_owned(), Slot::Node),
        ("~V~~~~~".to_owned(), Slot::Volume),
        ("~P~~~~~".to_owned(), Slot::Pod),
        ("~S~~".to_owned(), Slot::Namespace),
        (hash(), Slot::Hash),
    ];
    slots.extend(b"nbvcap".map(|of| (uid(of), Slot::Uid(of))));
    slots.extend((0..attached).map(|at| (volume_at(at), Slot::VolumeAt(at))));
    slots
}

fn volume_at(at: usize) -> String {
    format!("~H{at:02}~~~")
}

fn uid(of: u8) -> String {
    format!("~U{}{}", char::from(of), "~".repeat(33))
}

fn hash() -> String {
    format!("~A{}", "~".repeat(62))
}

/// An object in one encoding, to be filled.
#[derive(Debug)]
pub struct Template {
    raw: Vec<u8>,
    slots: Vec<(usize, Slot)>,
}

impl Template {
    fn new(raw: Vec<u8>, of: &[(String, Slot)]) -> Self {
        let mut slots = Vec::new();
        for at in (0..raw.len()).filter(|at| raw[*at] == b'~') {
            let slot = of.iter().find(|(text, _)| raw[at..].starts_with(text.as_bytes()));
            slots.extend(slot.map(|(_, slot)| (at, *slot)));
        }
        Self { raw, slots }
    }

    /// Size of every object that is made of it.
    pub fn size(&self) -> usize {
        self.raw.len()
    }
}

/// The templates of a cluster.
pub struct Objects {
    pub shape: Shape,
    /// By kind and encoding; pods with a volume come under `true`.
    templates: HashMap<(Kind, bool, bool), Template>,
    /// VolumeAttachments by their names.
    attachments: OnceLock<HashMap<String, usize>>,
}

impl Objects {
    /// Makes them.
    pub fn new(shape: Shape, schema: &Schema) -> Self {
        let slots = slots(shape.attached);
        let mut templates = HashMap::new();
        for (name, kind, is_variant) in [
            ("node", Kind::Node, false),
            ("csi node", Kind::CsiNode, false),
            ("volume", Kind::Volume, false),
            ("claim", Kind::Claim, false),
            ("attachment", Kind::Attachment, false),
            ("pod without", Kind::Pod, false),
            ("pod with a volume", Kind::Pod, true),
        ] {
            let object = model(name, shape);
            let message = schema.message(object["kind"].as_str().unwrap(), &object);
            let json = Template::new(object.to_string().into_bytes(), &slots);
            templates.insert((kind, is_variant, false), json);
            templates.insert((kind, is_variant, true), Template::new(message, &slots));
        }
        Self { shape, templates, attachments: OnceLock::new() }
    }

    /// How many there are of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        let Shape { nodes, pods, attached, claims, .. } = self.shape;
        match kind {
            Kind::Node | Kind::CsiNode => nodes,
            Kind::Volume | Kind::Claim => nodes * claims,
            Kind::Attachment => nodes * attached,
            Kind::Pod => nodes * pods,
        }
    }

    fn numbers(&self, kind: Kind, number: usize) -> Numbers {
        let Shape { pods, attached, claims, .. } = self.shape;
        let mut numbers = match kind {
            Kind::Node | Kind::CsiNode => {
                Numbers { node: number, volume: number * claims, ..Numbers::default() }
            }
            Kind::Volume | Kind::Claim => {
                Numbers { node: number / claims, volume: number, ..Numbers::default() }
            }
            Kind::Attachment => {
                let node = number / attached;
                Numbers { node, volume: node * claims + number % attached, ..Numbers::default() }
            }
            Kind::Pod => {
                let (node, at) = (number / pods, number % pods);
                Numbers { node, volume: node * claims + at, pod: number, namespace: 0 }
            }
        };
        let is_plain_pod = kind == Kind::Pod && !self.has_volume(number);
        numbers.namespace = if is_plain_pod { number } else { numbers.volume } % NAMESPACES;
        numbers
    }

    fn has_volume(&self, pod: usize) -> bool {
        pod % self.shape.pods < self.shape.attached
    }

    /// What an object is made of.
    pub fn template(&self, kind: Kind, number: usize, is_protobuf: bool) -> &Template {
        let is_variant = kind == Kind::Pod && self.has_volume(number);
        &self.templates[&(kind, is_variant, is_protobuf)]
    }

    /// Appends an object.
    pub fn write(&self, kind: Kind, number: usize, is_protobuf: bool, bytes: &mut Vec<u8>) {
        let template = self.template(kind, number, is_protobuf);
        let begin = bytes.len();
        bytes.extend_from_slice(&template.raw);
        let numbers = self.numbers(kind, number);
        for (at, slot) in &template.slots {
            self.fill(*slot, numbers, &mut bytes[begin + at..]);
        }
    }

    fn fill(&self, slot: Slot, numbers: Numbers, into: &mut [u8]) {
        match slot {
            Slot::Node => digits(&mut into[..6], numbers.node),
            Slot::Volume => digits(&mut into[..7], numbers.volume),
            Slot::VolumeAt(at) => digits(&mut into[..7], numbers.volume + at),
            Slot::Pod => digits(&mut into[..7], numbers.pod),
            Slot::Namespace => digits(&mut into[..4], numbers.namespace),
            Slot::Hash => {
                let name = attachment_name(&handle(numbers.volume), DRIVER, &node_name(numbers.node));
                into[..64].copy_from_slice(&name.as_bytes()["csi-".len()..]);
            }
            Slot::Uid(of) => {
                let number = match of {
                    b'n' | b'b' => numbers.node,
                    b'p' => numbers.pod,
                    _ => numbers.volume,
                };
                let mixed = mix(self.shape.seed ^ (u64::from(of) << 56) ^ number as u64);
                into[..36].copy_from_slice(b"00000000-0000-4000-a000-000000000000");
                hex(&mut into[..8], mixed);
                hex(&mut into[9..13], mixed >> 32);
                hex(&mut into[20..23], mixed >> 48);
                digits(&mut into[24..36], number);
            }
        }
    }

    /// An object as a value.
    pub fn value(&self, kind: Kind, number: usize) -> Value {
        let mut bytes = Vec::new();
        self.write(kind, number, false, &mut bytes);
        serde_json::from_slice(&bytes).expect("a template is JSON")
    }

    /// Whether an object is in a namespace, and on a node, if any are named.
    pub fn is_at(&self, kind: Kind, number: usize, namespace: Option<usize>, node: Option<usize>) -> bool {
        let numbers = self.numbers(kind, number);
        namespace.is_none_or(|it| it == numbers.namespace) && node.is_none_or(|it| it == numbers.node)
    }

    /// The number of an object.
    pub fn number(&self, kind: Kind, name: &str) -> Option<usize> {
        let Shape { pods, claims, attached, .. } = self.shape;
        let after = |prefix: &str| name.strip_prefix(prefix)?.parse::<usize>().ok();
        let number = match kind {
            Kind::Node | Kind::CsiNode => after("n"),
            Kind::Claim => after("data-database-"),
            Kind::Volume => name.strip_prefix("pvc-")?.rsplit('-').next()?.parse().ok(),
            Kind::Attachment => self.attachments().get(name).copied(),
            Kind::Pod => match after("database-") {
                Some(volume) if volume % claims < attached => Some(volume / claims * pods + volume % claims),
                _ => after("service-"),
            },
        };
        number.filter(|number| *number < self.count(kind))
    }

    fn attachments(&self) -> &HashMap<String, usize> {
        self.attachments.get_or_init(|| {
            let all = 0..self.count(Kind::Attachment);
            let name = |number| {
                let Numbers { node, volume, .. } = self.numbers(Kind::Attachment, number);
                (attachment_name(&handle(volume), DRIVER, &node_name(node)), number)
            };
            all.map(name).collect()
        })
    }
}

/// Splitmix64.
fn mix(seed: u64) -> u64 {
    let seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let seed = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let seed = (seed ^ (seed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    seed ^ (seed >> 31)
}

fn digits(into: &mut [u8], mut number: usize) {
    for digit in into.iter_mut().rev() {
        *digit = b"0123456789"[number % 10];
        number /= 10;
    }
}

fn hex(into: &mut [u8], mut number: u64) {
    for digit in into {
        *digit = b"0123456789abcdef"[usize::try_from(number % 16).unwrap_or_default()];
        number /= 16;
    }
}

/// An object with the texts of slots in their places.
fn model(name: &str, shape: Shape) -> Value {
    if name == "csi node" {
        return json!({
            "kind": "CSINode", "apiVersion": "storage.k8s.io/v1",
            "metadata": {
                "name": "n~N~~~~", "uid": uid(b'b'), "resourceVersion": REVISION.to_string(),
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "n~N~~~~", "uid": uid(b'n') }],
            },
            "spec": { "drivers": [{
                "name": DRIVER, "nodeID": "i-n~N~~~~", "topologyKeys": ["topology.csi.example.com/zone"],
                "allocatable": { "count": 39 },
            }]},
        });
    }
    let realistic = realistic(name).0;
    let pvc = "pvc-00000000-5f0a-4d2e-9e8f-0a1b2c3d4e51";
    let own = match name {
        "node" => b'n',
        "volume" => b'v',
        "claim" => b'c',
        "attachment" => b'a',
        _ => b'p',
    };
    let text = realistic
        .replace("ebs.csi.aws.com", DRIVER)
        .replace("ebs-csi-aws-com", &DRIVER.replace('.', "-"))
        .replace(pvc, &format!("pvc-{}", uid(b'c')))
        .replace("00000000-5f0a-4d2e-9e8f-0a1b2c3d4e51", &uid(b'c'))
        .replace("00000000-5f0a-4d2e-9e8f-0a1b2c3d4e50", &uid(b'b'))
        .replace("00000000-5f0a-4d2e-9e8f-0a1b2c3d4e5f", &uid(own))
        .replace("node-000000.example.internal", "n~N~~~~")
        .replace("node-0001.example.internal", "n~N~~~~")
        .replace("data-web-000000", "data-database-~V~~~~~")
        .replace("web-000000", if name == "pod without" { "service-~P~~~~~" } else { "database-~V~~~~~" })
        .replace(r#""namespace":"shop""#, r#""namespace":"team-~S~~""#)
        .replace("vol-000000000a1b2c3d4", "vol-0000000000~V~~~~~")
        .replace(r#""resourceVersion":"1000000""#, &format!(r#""resourceVersion":"{REVISION}""#))
        .replace(r#""storageClassName":"gp3""#, r#""storageClassName":"standard""#);
    let mut object: Value = serde_json::from_str(&text).expect("a line of realistic.txt");
    match name {
        "attachment" => object["metadata"]["name"] = format!("csi-{}", hash()).into(),
        "node" => {
            let volume = |at| format!("kubernetes.io/csi/{DRIVER}^vol-0000000000{}", volume_at(at));
            object["status"]["volumesInUse"] = (0..shape.attached).map(volume).collect();
            let attached = |at| json!({ "name": volume(at), "devicePath": "" });
            object["status"]["volumesAttached"] = (0..shape.attached).map(attached).collect();
            object["metadata"]["labels"]["kubernetes.io/hostname"] = "n~N~~~~".into();
        }
        _ => {}
    }
    object
}

/// An object of the file, as JSON and as the pinned release encodes it.
fn realistic(name: &str) -> (&'static str, Vec<u8>) {
    let line = REALISTIC.lines().find(|line| line.split('\t').next() == Some(name));
    let [_, _, json, hex] = line.expect("an object").split('\t').collect::<Vec<_>>().try_into().unwrap();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    (json, hex.as_bytes().chunks(2).map(byte).collect())
}

/// Checks that what the schema encodes is read as what the pinned release encodes.
pub fn check(schema: &Schema) {
    fn check<T: Narrow + PartialEq + std::fmt::Debug>(name: &str, schema: &Schema) {
        let (json, pinned) = realistic(name);
        let ours = schema.answer(&serde_json::from_str(json).unwrap());
        let read = |raw: Vec<u8>| Encoding::Protobuf.object::<T>(&Bytes::from(raw)).unwrap();
        // What is missing is no field that is read, but most of what the server sends.
        assert!(ours.len() * 10 > pinned.len() * 9, "{name}: {} of {} bytes", ours.len(), pinned.len());
        assert_eq!(read(ours), read(pinned), "{name}");
    }
    check::<Node>("node", schema);
    check::<PersistentVolume>("volume", schema);
    check::<PersistentVolumeClaim>("claim", schema);
    check::<VolumeAttachment>("attachment", schema);
    check::<Pod>("pod with a volume", schema);
    check::<Pod>("pod without", schema);
}
