//! What tells two states of a history apart: everything that has a say in what can happen next, printed, with
//! numbers that mean nothing but their order (revisions, moments, places in a sequence) replaced by their rank
//! and made-up names by the order in which they appear.
//!
//! Moments count by rank alone: of two states that differ only in how far apart timers are, one is explored.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
    hash::{DefaultHasher, Hash, Hasher},
};

use mooring::kube_api::{ids::NodeName, kinds::Narrow};

use super::{
    daemon::{Daemon, KINDS, kind},
    server::{Delivery, NODES, Object, Server, VOLUMES, id},
};

/// Hash of the state.
pub fn fingerprint(server: &Server, daemon: &Daemon, more: &impl std::fmt::Debug) -> u64 {
    let mut text = String::with_capacity(16_384);
    write_state(&mut text, server, daemon).expect("a String takes everything");
    let _ = write!(text, "{more:?}");
    let mut hasher = DefaultHasher::new();
    hash_normalised(&text, &owners(server), &mut hasher);
    hasher.finish()
}

/// What each revision is compared with: those of the same object. Of attachments, which come and go, those of
/// all: their table compares an answer with what the watch has delivered of any.
fn owners(server: &Server) -> HashMap<u128, String> {
    let owner = |event: &Delivery| match &event.object {
        Object::Attachment(_) => "attachments".to_owned(),
        Object::Node(node) => node.key().to_string(),
        Object::Pod(pod) => pod.key().to_string(),
        object => object.metadata().name.to_string(),
    };
    let revision = |event: &Delivery| u128::from(event.object.metadata().resource_version.0);
    let present =
        server.nodes.values().map(|node| (node.metadata.resource_version, format!("{}", node.key())));
    let present = present.map(|(revision, owner)| (u128::from(revision.0), owner));
    server.history.iter().map(|event| (revision(event), owner(event))).chain(present).collect()
}

fn write_state(text: &mut String, server: &Server, daemon: &Daemon) -> std::fmt::Result {
    write!(text, "{:?}{:?}{:?}", server.nodes, server.pods, server.attachments)?;
    write!(text, "{:?}{:?}{:?}", server.mounted, server.unpublished, server.silent)?;
    write!(text, "{:?}{:?}", server.unwanted_since, server.seen_unwanted_since)?;
    write!(text, "{:?}{}", server.unready_since, server.wall())?;
    for wanted in KINDS {
        let undelivered = server.history.iter().skip(daemon.delivered[wanted]);
        for event in undelivered.filter(|event| kind(&event.key) == wanted) {
            write!(text, "{event:?}")?;
        }
        text.push(';');
    }
    write!(text, "{:?}", daemon.objects.nodes.snapshot())?;
    write!(text, "{:?}", daemon.objects.pods.snapshot())?;
    write!(text, "{:?}", daemon.objects.attachments.snapshot())?;
    let actual = daemon.controller.actual();
    for (volume, _) in VOLUMES {
        write!(text, "{:?}", actual.volume(&id(volume)))?;
    }
    for node in NODES {
        write!(text, "{:?}", actual.node(&NodeName::from(node)))?;
    }
    // In whatever order they were sent, any can arrive next.
    let mut under_way: Vec<String> = daemon.on_their_way.iter().map(|call| format!("{call:?}")).collect();
    under_way.extend(daemon.answered.iter().map(|outcome| format!("{outcome:?}")));
    under_way.extend(daemon.late.iter().map(|call| format!("late {call:?}")));
    under_way.sort_by_key(|text| text.split_once("), ").map_or(text.clone(), |(_, call)| call.to_owned()));
    text.push_str(&under_way.join(";"));
    write!(text, "{:?}{:?}", daemon.now, daemon.controller.wake_at())
}

/// What a token of the text is ordered by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Scale {
    Revision,
    Sequence,
    Instant,
    Wall,
}

/// A stretch of the text.
enum Piece<'a> {
    Plain(&'a str),
    Ordered(Scale, u128),
    Named(&'a str),
}

fn hash_normalised(text: &str, owners: &HashMap<u128, String>, hasher: &mut DefaultHasher) {
    let pieces = pieces(text);
    let family = |scale: Scale, value: u128| match scale {
        Scale::Revision => owners.get(&value).map_or("", String::as_str),
        _ => "",
    };
    let mut values: BTreeMap<(Scale, &str), BTreeSet<u128>> = BTreeMap::new();
    for piece in &pieces {
        if let Piece::Ordered(scale, value) = piece {
            values.entry((*scale, family(*scale, *value))).or_default().insert(*value);
        }
    }
    let mut names: HashMap<&str, usize> = HashMap::new();
    for piece in &pieces {
        match piece {
            Piece::Plain(text) => text.hash(hasher),
            Piece::Ordered(scale, value) => {
                values[&(*scale, family(*scale, *value))].range(..value).count().hash(hasher);
            }
            Piece::Named(name) => {
                let next = names.len();
                names.entry(name).or_insert(next).hash(hasher);
            }
        }
    }
}

/// Marks in the printed text, and what follows them.
const MARKS: [(&str, Scale); 4] = [
    ("ResourceVersion(", Scale::Revision),
    ("Sequence(", Scale::Sequence),
    ("Instant { tv_sec: ", Scale::Instant),
    ("\\\"resourceVersion\\\": String(\\\"", Scale::Revision),
];

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut plain, mut at) = (0, 0);
    let bytes = text.as_bytes();
    while at < text.len() {
        let found = match bytes[at] {
            b'R' | b'S' | b'I' => ordered(text, at),
            b'"' => quoted(text, at),
            b'1' | b'2' => wall(text, at).map(|(value, end)| (Piece::Ordered(Scale::Wall, value), end)),
            _ => None,
        };
        match found {
            None => at += 1,
            Some((piece, end)) => {
                pieces.push(Piece::Plain(&text[plain..at]));
                pieces.push(piece);
                (plain, at) = (end, end);
            }
        }
    }
    pieces.push(Piece::Plain(&text[plain..]));
    pieces
}

fn number(text: &str) -> Option<(u128, usize)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().ok().map(|value| (value, digits))
}

fn ordered(text: &str, at: usize) -> Option<(Piece<'_>, usize)> {
    let (mark, scale) = MARKS.iter().find(|(mark, _)| text[at..].starts_with(mark))?;
    let start = at + mark.len();
    let (mut value, digits) = number(&text[start..])?;
    let mut end = start + digits;
    if *scale == Scale::Instant {
        let rest = text[end..].strip_prefix(", tv_nsec: ")?;
        let (nanoseconds, digits) = number(rest)?;
        value = value * 1_000_000_000 + nanoseconds;
        end = text.len() - rest.len() + digits;
    }
    Some((Piece::Ordered(*scale, value), end))
}

/// A made-up name (`"va-7"`), or the revision in the body of a patch (`"123"`).
fn quoted(text: &str, at: usize) -> Option<(Piece<'_>, usize)> {
    let inner = &text[at + 1..];
    let length = inner.find('"')?;
    let (inner, end) = (&inner[..length], at + length + 2);
    if let Some((value, digits)) = number(inner) {
        return (digits == length).then_some((Piece::Ordered(Scale::Revision, value), end));
    }
    let is_made_up = ["va-", "pod-", "node-", "boot-"].iter().any(|prefix| inner.starts_with(prefix));
    is_made_up.then_some((Piece::Named(inner), end))
}

/// A timestamp such as `1970-01-12T13:46:40.5Z`, as a number of the same order.
fn wall(text: &str, at: usize) -> Option<(u128, usize)> {
    let length =
        text[at..].bytes().take_while(|byte| byte.is_ascii_digit() || b"-:.TZ".contains(byte)).count();
    let found = text[at..at + length].strip_suffix('Z')?;
    let (seconds, fraction) = found.split_once('.').unwrap_or((found, ""));
    if seconds.len() != 19 {
        return None;
    }
    let digits: String =
        seconds.chars().filter(char::is_ascii_digit).chain(format!("{fraction:0<9}").chars()).collect();
    digits.parse().ok().map(|value| (value, at + length))
}
