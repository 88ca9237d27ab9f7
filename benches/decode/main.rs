//! What reading one object costs, as JSON and as protobuf, and how many bytes of one are kept.
//!
//! `cargo bench --bench decode`
//!
//! The objects (`tests/cases/wire/realistic.txt`) are as large as in clusters and encoded by the API server's own
//! serializers. What comes out are two tables. It measures, it does not judge.
//!
//! `cargo bench --bench decode -- loop pod protobuf 100000`
//!
//! One of them, so many times, for `perf stat` or `valgrind --tool=callgrind`.

// A benchmark ends at the first thing that goes wrong, and says so on the terminal.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::print_stdout, clippy::print_stderr)]
// Counts become quotients; they are far below 2^52.
#![allow(clippy::cast_precision_loss)]

use std::{hint::black_box, sync::Arc};

use apiserver::{
    kinds::{Narrow, Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment},
    wire::Encoding,
};
use bytes::Bytes;

use tokio::time::Instant;

const OBJECTS: &str = include_str!("../../tests/cases/wire/realistic.txt");

/// In an object: its number, which makes it another one.
const NUMBER: &[u8] = b"000000";

/// Objects that are read to measure the time.
const READ: u32 = 20_000;

/// Objects that are kept to measure the memory.
const KEPT: u32 = 100_000;

/// One object in one encoding, to be numbered.
struct Template {
    name: &'static str,
    encoding: Encoding,
    raw: Vec<u8>,
}

impl Template {
    fn numbered(&self, number: u32) -> Bytes {
        let digits = format!("{number:06}");
        let mut raw = self.raw.clone();
        let mut index = 0;
        while index + NUMBER.len() <= raw.len() {
            if raw[index..].starts_with(NUMBER) {
                raw[index..index + NUMBER.len()].copy_from_slice(digits.as_bytes());
                index += NUMBER.len();
            } else {
                index += 1;
            }
        }
        Bytes::from(raw)
    }
}

fn templates() -> Vec<Template> {
    let from_hex = |text: &str| -> Vec<u8> {
        let pairs = text.as_bytes().chunks(2);
        pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
    };
    let lines = OBJECTS.lines().filter(|line| !line.starts_with('#'));
    lines
        .flat_map(|line| {
            let [name, _, json, protobuf] = line.split('\t').collect::<Vec<_>>().try_into().unwrap();
            [
                Template { name, encoding: Encoding::Json, raw: json.as_bytes().to_vec() },
                Template { name, encoding: Encoding::Protobuf, raw: from_hex(protobuf) },
            ]
        })
        .collect()
}

/// What is done with each kind.
struct Kind {
    name: &'static str,
    /// Reads the object so many times.
    read: fn(Encoding, &Bytes, u32),
    /// Keeps so many different ones, and says what that took, in bytes of resident memory.
    keep: fn(&Template, u32) -> u64,
    size: usize,
}

fn kind<T: Narrow>(name: &'static str) -> Kind {
    Kind { name, read: read::<T>, keep: keep::<T>, size: size_of::<T>() }
}

fn kinds() -> [Kind; 6] {
    [
        kind::<Pod>("pod with a volume"),
        kind::<Pod>("pod without"),
        kind::<Node>("node"),
        kind::<PersistentVolume>("volume"),
        kind::<PersistentVolumeClaim>("claim"),
        kind::<VolumeAttachment>("attachment"),
    ]
}

fn read<T: Narrow>(encoding: Encoding, raw: &Bytes, times: u32) {
    for _ in 0..times {
        black_box(encoding.object::<T>(black_box(raw)).unwrap());
    }
}

fn keep<T: Narrow>(template: &Template, count: u32) -> u64 {
    let mut kept: Vec<Arc<T>> = Vec::with_capacity(count as usize);
    let before = resident();
    for number in 0..count {
        kept.push(Arc::new(template.encoding.object(&template.numbered(number)).unwrap()));
    }
    let after = resident();
    black_box(kept);
    after - before
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let templates = templates();
    let of = |kind: &Kind, encoding| {
        templates.iter().find(|one| one.name == kind.name && one.encoding == encoding).unwrap()
    };
    match arguments[..] {
        [] => {}
        ["loop", name, encoding, times] => {
            let kind = kinds().into_iter().find(|kind| kind.name == name).expect("a name of the table");
            let encoding = if encoding == "json" { Encoding::Json } else { Encoding::Protobuf };
            return (kind.read)(encoding, &of(&kind, encoding).numbered(0), times.parse().unwrap());
        }
        // In a process of its own: memory that was given back is used again.
        ["keep", name] => {
            let kind = kinds().into_iter().find(|kind| kind.name == name).expect("a name of the table");
            let bytes = (kind.keep)(of(&kind, Encoding::Protobuf), KEPT);
            return println!("{:.0}", bytes as f64 / f64::from(KEPT));
        }
        _ => panic!("no arguments, or: loop <name> json|protobuf <times>, or: keep <name>"),
    }
    println!(
        "| object | JSON, bytes | protobuf, bytes | JSON, µs | protobuf, µs | kept, bytes | of them the struct |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for kind in kinds() {
        let cells = [Encoding::Json, Encoding::Protobuf].map(|encoding| {
            let raw = of(&kind, encoding).numbered(0);
            (kind.read)(encoding, &raw, READ / 10);
            let began = Instant::now();
            (kind.read)(encoding, &raw, READ);
            (raw.len(), began.elapsed().as_secs_f64() * 1e6 / f64::from(READ))
        });
        let [json, protobuf] = cells;
        let this = std::env::current_exe().unwrap();
        let kept = std::process::Command::new(this).args(["keep", kind.name]).output().unwrap();
        let kept = String::from_utf8(kept.stdout).unwrap();
        let (name, size) = (kind.name, kind.size);
        println!(
            "| {name} | {} | {} | {:.1} | {:.1} | {} | {size} |",
            json.0,
            protobuf.0,
            json.1,
            protobuf.1,
            kept.trim()
        );
    }
}
