//! Nothing that comes over the wire ends the process, and nothing that is announced is allocated before it is there:
//! answers that are cut off, changed or made up, in both encodings.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "wire/encoded.rs"]
mod encoded;

use std::{alloc::System, hint::black_box};

use apiserver::{
    kinds::{
        CsiDriver, Node, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass, VolumeAttachment,
        VolumeAttributesClass,
    },
    wire::Encoding,
};
use bytes::Bytes;
use fastrand::Rng;

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Seeds of the changes. One that ever found something stays.
const SEEDS: [u64; 3] = [1, 2, 3];

/// Changed copies of each case, per seed.
const CHANGES: usize = 20;

/// Bytes that may be allocated, over all reads of one input, for each of its bytes, and besides. The worst is an empty
/// entry of a list: two bytes on the wire, a struct in memory, a copy of it on the way.
const PER_BYTE: usize = 400;
const BESIDES: usize = 64 << 10;

/// Reads the input as all that it could be.
fn read(encoding: Encoding, raw: &Bytes) {
    let _ = black_box(encoding.object::<Pod>(raw));
    let _ = black_box(encoding.object::<Node>(raw));
    let _ = black_box(encoding.object::<PersistentVolume>(raw));
    let _ = black_box(encoding.object::<PersistentVolumeClaim>(raw));
    let _ = black_box(encoding.object::<VolumeAttachment>(raw));
    let _ = black_box(encoding.object::<StorageClass>(raw));
    let _ = black_box(encoding.object::<CsiDriver>(raw));
    let _ = black_box(encoding.object::<VolumeAttributesClass>(raw));
    let _ = black_box(encoding.head(raw));
    let _ = black_box(encoding.status(raw));
    let _ = black_box(encoding.watch_event(raw));
    let _ = black_box(encoded::list_parts(encoding, raw));
    let mut splitter = encoding.splitter();
    splitter.push(raw);
    while let Ok(Some(frame)) = splitter.next_frame() {
        if let Ok(event) = encoding.watch_event(&frame) {
            let _ = black_box(encoding.object::<Pod>(&event.object));
        }
    }
    let _ = black_box(splitter.finish());
}

fn check(name: &str, encoding: Encoding, raw: &Bytes) {
    let region = Region::new(ALLOCATOR);
    read(encoding, raw);
    let allocated = region.change().bytes_allocated;
    let limit = PER_BYTE * raw.len() + BESIDES;
    assert!(
        allocated <= limit,
        "{name}, {encoding:?}, {} bytes: {allocated} allocated; {raw:02x?}",
        raw.len()
    );
}

/// The input as it comes, and without the envelope, where what is inside begins.
fn inputs() -> Vec<(&'static str, Encoding, Bytes)> {
    let mut inputs = Vec::new();
    for case in encoded::cases() {
        inputs.push((case.name, Encoding::Json, case.json));
        if case.what == "object" && case.kind != "Status" {
            // Prefix, then `runtime.Unknown`, whose second field is the object: its key is the last 0x12 before it.
            let plain = (0..case.protobuf.len()).map(|begin| case.protobuf.slice(begin..));
            let plain = plain.filter(|raw| raw.starts_with(&[0x0a]) && Encoding::Protobuf.head(raw).is_ok());
            inputs.extend(plain.take(2).map(|raw| (case.name, Encoding::Protobuf, raw)));
        }
        inputs.push((case.name, Encoding::Protobuf, case.protobuf));
    }
    inputs
}

// One test: what others allocate would count.
#[test]
fn nothing_on_the_wire_ends_the_process_or_fills_its_memory() {
    let inputs = inputs();
    for (name, encoding, raw) in &inputs {
        for end in 0..=raw.len() {
            check(name, *encoding, &raw.slice(..end));
        }
    }
    for seed in SEEDS {
        let mut rng = Rng::with_seed(seed);
        for (name, encoding, raw) in &inputs {
            for _ in 0..CHANGES {
                check(name, *encoding, &changed(&mut rng, raw));
            }
        }
        for _ in 0..2_000 {
            let noise: Vec<u8> = (0..rng.usize(0..200)).map(|_| rng.u8(..)).collect();
            check("noise", Encoding::Protobuf, &Bytes::from(noise.clone()));
            check("noise in an envelope", Encoding::Protobuf, &Bytes::from([b"k8s\0", &noise[..]].concat()));
            check("noise", Encoding::Json, &Bytes::from(noise));
        }
    }
    for announced in [
        &[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f][..],
        &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
    ] {
        check("announced", Encoding::Protobuf, &Bytes::copy_from_slice(announced));
        check("announced", Encoding::Protobuf, &Bytes::from([b"k8s\0", announced].concat()));
    }
    // What is nested deeper than anything of ours ends the reading, not the stack.
    let deep = Bytes::from(vec![0x0b; 1 << 20]);
    check("groups", Encoding::Protobuf, &deep);
    check("arrays", Encoding::Json, &Bytes::from("[".repeat(1 << 20)));
    check("objects", Encoding::Json, &Bytes::from("{\"spec\":".repeat(1 << 17)));
}

/// A copy in which some bytes are others, are missing, or come twice.
fn changed(rng: &mut Rng, raw: &[u8]) -> Bytes {
    let mut raw = raw.to_vec();
    for _ in 0..rng.usize(1..4) {
        let at = rng.usize(0..raw.len().max(1));
        let end = (at + rng.usize(1..9)).min(raw.len());
        match rng.u32(0..5) {
            0 if at < raw.len() => raw[at] = rng.u8(..),
            1 if at < raw.len() => raw[at] ^= 1 << rng.u32(0..8),
            2 => drop(raw.drain(at.min(end)..end)),
            3 => {
                let twice = raw[at.min(end)..end].to_vec();
                raw.splice(at.min(end)..at.min(end), twice);
            }
            _ => raw.truncate(at),
        }
    }
    Bytes::from(raw)
}
