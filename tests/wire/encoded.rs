//! The cases as they are committed.

use apiserver::wire::{DecodeError, Encoding, ListPart, ListReader};
use bytes::Bytes;

/// What is in the repository.
pub const COMMITTED: &str = include_str!("../cases/wire/encoded.txt");

/// One case in both encodings.
pub struct Case {
    /// Name.
    pub name: &'static str,
    /// `object`, `list` or `event`.
    pub what: &'static str,
    /// As JSON.
    pub json: Bytes,
    /// As protobuf.
    pub protobuf: Bytes,
    /// `kind` of the object, also of an event's.
    pub kind: String,
}

/// All of them.
pub fn cases() -> Vec<Case> {
    let lines = COMMITTED.lines().filter(|line| !line.starts_with('#'));
    let cases: Vec<Case> = lines.map(case).collect();
    assert!(cases.len() > 50, "the file is whole");
    cases
}

/// All parts of a page.
pub fn list_parts(encoding: Encoding, body: &[u8]) -> Result<Vec<ListPart>, DecodeError> {
    let mut reader = ListReader::new(encoding);
    reader.push(body);
    let mut parts = Vec::new();
    while let Some(part) = reader.next_part()? {
        parts.push(part);
    }
    reader.end()?;
    while let Some(part) = reader.next_part()? {
        parts.push(part);
    }
    Ok(parts)
}

fn case(line: &'static str) -> Case {
    let [name, what, json, protobuf] = line.split('\t').collect::<Vec<_>>().try_into().expect("four parts");
    let parsed: serde_json::Value = serde_json::from_str(json).unwrap();
    let kind = parsed["object"]["kind"].as_str().or(parsed["kind"].as_str()).unwrap().to_owned();
    Case { name, what, json: Bytes::from(json), protobuf: Bytes::from(from_hex(protobuf)), kind }
}

fn from_hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
