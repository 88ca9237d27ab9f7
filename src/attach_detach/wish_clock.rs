//! Wish clock: since when volumes on nodes that are not Ready have not been wanted, kept where a successor of
//! this process finds it, so that a restart begins no wait anew (S6). Pure.
//!
//! In: which detaches wait for such a node, and what became of our requests. Out: the one request that is
//! needed, if any. It is a ConfigMap beside the lease, by [`WaitKey`], written only while a detach waits in this
//! way. When the node became not Ready its own status tells; this does not.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    actual_state::Pair,
    retry::Retry,
    volume_name::{VolumeId, VolumeKind, hashed},
};
use crate::kube_api::{
    call::{CallError, Request, Verb},
    ids::{NodeName, Uid},
    kinds::Meta,
};

/// Entries that are kept, at most. A ConfigMap may hold 1 MiB, and one entry is a key of 36 or 37 bytes and a
/// time of up to 30.
const MOST: usize = 10_000;

/// Bytes of a key that is a hash: about those of a UID.
const HASH_KEY: usize = 37;

/// What a wait is known by. It must be valid as a key of a ConfigMap, which a unique volume name is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitKey(String);

impl WaitKey {
    /// The key of what is attached, or may be.
    #[must_use]
    pub(super) fn of(volume: &VolumeId, node: &NodeName, pair: &Pair) -> Option<Self> {
        match volume.kind() {
            VolumeKind::Csi => Some(Self::from(&pair.attachment.as_ref()?.metadata.uid)),
            VolumeKind::NoOp => pair.held.then(|| Self::of_entry(volume, node)),
        }
    }

    /// The key of an entry in a node's list, which is all there is of a volume without attachments.
    #[must_use]
    pub fn of_entry(volume: &VolumeId, node: &NodeName) -> Self {
        let mut key = hashed("list-", &[volume.as_str(), "\0", node.as_str()]);
        key.truncate(HASH_KEY);
        Self(key)
    }

    /// The key as the ConfigMap has it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for WaitKey {
    fn from(key: &str) -> Self {
        Self(key.to_owned())
    }
}

impl From<&Uid> for WaitKey {
    fn from(attachment: &Uid) -> Self {
        Self(attachment.to_string())
    }
}

/// A ConfigMap by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClockPlace {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The ConfigMap as read.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    metadata: Meta,
    data: BTreeMap<String, String>,
}

/// What is remembered, and what of it is written.
#[derive(Debug, Default)]
pub struct WishClock {
    place: Option<ClockPlace>,
    since: BTreeMap<WaitKey, Timestamp>,
    written: Written,
    /// Whether what is written may differ from what is remembered.
    changed: bool,
    /// How many of those did not fit when it was written last.
    left_out: usize,
    /// Whether what predecessors wrote has been taken.
    inherited: bool,
    /// What was forgotten before that: what they wrote of it is about an earlier wait.
    forgotten: HashSet<WaitKey>,
    busy: bool,
    retry: Retry,
}

/// The ConfigMap, as far as known.
#[derive(Debug, Default)]
enum Written {
    /// To be read.
    #[default]
    Unknown,
    Absent,
    Present(Box<ConfigMap>),
}

impl WishClock {
    /// A clock that is kept there.
    #[must_use]
    pub fn kept_in(place: ClockPlace) -> Self {
        Self { place: Some(place), ..Self::default() }
    }

    /// Since when a volume has not been wanted, if it is known.
    #[must_use]
    pub fn since(&self, key: &WaitKey) -> Option<Timestamp> {
        self.since.get(key).copied()
    }

    /// A detach waits for a node that is not Ready.
    pub fn note(&mut self, key: &WaitKey, since: Timestamp) {
        if !self.since.contains_key(key) {
            self.since.insert(key.clone(), since);
            self.changed = true;
        }
    }

    /// The volume is wanted again, or being detached.
    pub fn forget(&mut self, key: &WaitKey) {
        self.changed |= self.since.remove(key).is_some();
        if !self.inherited && self.place.is_some() {
            self.forgotten.insert(key.clone());
        }
    }

    /// Whether a request is in flight.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.busy
    }

    /// When to ask for the next request although nothing happened.
    #[must_use]
    pub fn retry_at(&self) -> Option<Instant> {
        self.retry.at().filter(|_| !self.busy)
    }

    /// The request to send now, which then is in flight.
    pub fn next(&mut self, now: Instant) -> Option<Request> {
        let is_due = self.changed || matches!(self.written, Written::Unknown);
        if !is_due || self.busy || self.retry.pending(now).is_some() {
            return None;
        }
        let place = self.place.as_ref()?;
        let collection = format!("/api/v1/namespaces/{}/configmaps", place.namespace);
        let name = place.name.clone();
        let path = format!("{collection}/{name}");
        let wanted = self.kept();
        self.changed = false;
        let request = match &self.written {
            Written::Unknown => Request { verb: Verb::Get, path, body: None },
            Written::Absent if wanted.is_empty() => return None,
            Written::Absent => Request {
                verb: Verb::Create,
                path: collection,
                body: Some(json!({
                    "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": wanted,
                })),
            },
            Written::Present(map) if map.data == wanted => return None,
            Written::Present(map) => {
                let gone = map.data.keys().filter(|key| !wanted.contains_key(*key));
                let mut data: BTreeMap<&String, Value> = gone.map(|key| (key, Value::Null)).collect();
                let changed = wanted.iter().filter(|(key, value)| map.data.get(*key) != Some(*value));
                data.extend(changed.map(|(key, value)| (key, json!(value))));
                let metadata = json!({
                    "uid": map.metadata.uid, "resourceVersion": map.metadata.resource_version,
                });
                Request { verb: Verb::Patch, path, body: Some(json!({ "metadata": metadata, "data": data })) }
            }
        };
        self.busy = true;
        Some(request)
    }

    /// What is to be written: if there is more than fits, what began first. A successor begins those waits
    /// anew that it does not find, which is safe, and lengthens the youngest least.
    fn kept(&mut self) -> BTreeMap<String, String> {
        let mut all: Vec<(&Timestamp, &WaitKey)> =
            self.since.iter().map(|(key, since)| (since, key)).collect();
        let left_out = all.len().saturating_sub(MOST);
        if left_out > 0 {
            all.sort_unstable();
            all.truncate(MOST);
        }
        if left_out > 0 && self.left_out == 0 {
            tracing::warn!(
                left_out,
                "more detaches wait for nodes that are not Ready than can be kept for a successor, which would \
                 begin the latest anew"
            );
        }
        self.left_out = left_out;
        all.into_iter().map(|(since, key)| (key.0.clone(), since.to_string())).collect()
    }

    /// Takes what became of the request. Returns whether that told of what predecessors knew; of that only
    /// what is about attachments and list entries that `exist` is kept. They are asked for only then.
    pub fn take(
        &mut self,
        result: Result<ConfigMap, CallError>,
        exist: impl FnOnce() -> HashSet<WaitKey>,
        jitter: f64,
        now: Instant,
    ) -> bool {
        self.busy = false;
        let read = match result {
            Ok(map) => Written::Present(Box::new(map)),
            Err(CallError::NotFound(_)) if matches!(self.written, Written::Unknown) => Written::Absent,
            Err(error) => {
                // Whatever it is now, it is not what we took it for.
                self.written = Written::Unknown;
                if error != CallError::NotLeader {
                    tracing::warn!(%error, "the times since when volumes are not wanted could not be kept");
                    self.retry = if error.is_certain() {
                        self.retry.after_failure(now, jitter, Duration::ZERO)
                    } else {
                        self.retry.after_silence(now, jitter)
                    };
                }
                return false;
            }
        };
        self.retry = Retry::default();
        self.written = read;
        // It may hold what is not wanted, or lack what came meanwhile.
        self.changed = true;
        let (false, Written::Present(map)) = (self.inherited, &self.written) else {
            self.inherited = true;
            self.forgotten.clear();
            return false;
        };
        self.inherited = true;
        let forgotten = std::mem::take(&mut self.forgotten);
        let exist = exist();
        for (key, since) in &map.data {
            let key = WaitKey::from(key.as_str());
            if let Ok(since) = since.parse::<Timestamp>()
                && exist.contains(&key)
                && !forgotten.contains(&key)
            {
                let known = self.since.entry(key).or_insert(since);
                *known = since.min(*known);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn map(revision: u64, data: &[(&str, &str)]) -> ConfigMap {
        let data: BTreeMap<&str, &str> = data.iter().copied().collect();
        let metadata = json!({ "name": "c", "uid": "u", "resourceVersion": revision.to_string() });
        serde_json::from_value(json!({ "metadata": metadata, "data": data })).unwrap()
    }

    fn clock() -> WishClock {
        WishClock::kept_in(ClockPlace { namespace: "ns".to_owned(), name: "c".to_owned() })
    }

    fn absent() -> Result<ConfigMap, CallError> {
        Err(CallError::NotFound("none".to_owned()))
    }

    /// Method, path and body of the next request.
    fn next(clock: &mut WishClock, now: Instant) -> Option<(Verb, String, Value)> {
        let request = clock.next(now)?;
        Some((request.verb, request.path, request.body.unwrap_or_default()))
    }

    const ALL: fn() -> HashSet<WaitKey> = || ["mine", "other", "1", "2"].map(WaitKey::from).into();

    #[test]
    fn s6_it_is_written_when_a_detach_waits_and_removed_when_it_ends() {
        let (now, mut clock) = (Instant::now(), clock());
        let path = "/api/v1/namespaces/ns/configmaps/c".to_owned();
        assert_eq!(next(&mut clock, now), Some((Verb::Get, path.clone(), Value::Null)));
        assert_eq!(next(&mut clock, now), None, "one at a time");
        clock.take(absent(), ALL, 0.0, now);
        assert_eq!(next(&mut clock, now), None, "nothing waits, nothing is written");

        clock.note(&"1".into(), at(60));
        clock.note(&"1".into(), at(70));
        let (verb, collection, body) = next(&mut clock, now).unwrap();
        assert_eq!((verb, collection.as_str()), (Verb::Create, "/api/v1/namespaces/ns/configmaps"));
        assert_eq!(body["data"], json!({ "1": "1970-01-01T00:01:00Z" }));
        clock.take(Ok(map(5, &[("1", "1970-01-01T00:01:00Z")])), ALL, 0.0, now);
        assert_eq!(next(&mut clock, now), None, "S39 what is written is not written again");

        clock.note(&"2".into(), at(0));
        clock.forget(&"1".into());
        let expected = json!({
            "metadata": { "uid": "u", "resourceVersion": "5" },
            "data": { "1": null, "2": "1970-01-01T00:00:00Z" },
        });
        assert_eq!(next(&mut clock, now), Some((Verb::Patch, path, expected)));
    }

    #[test]
    fn s6_a_successor_goes_on_where_it_stopped() {
        let (now, mut clock) = (Instant::now(), clock());
        clock.note(&"mine".into(), at(500));
        clock.next(now);
        let earlier = map(
            5,
            &[
                ("mine", "1970-01-01T00:01:00Z"),
                ("other", "1970-01-01T00:02:00Z"),
                ("gone", "1970-01-01T00:03:00Z"),
                ("rubbish", "yesterday"),
            ],
        );
        assert!(clock.take(Ok(earlier), ALL, 0.0, now));
        assert_eq!(clock.since(&"mine".into()), Some(at(60)));
        assert_eq!(clock.since(&"other".into()), Some(at(120)));
        assert_eq!(clock.since(&"gone".into()), None);
        let (_, _, body) = next(&mut clock, now).unwrap();
        assert_eq!(body["data"], json!({ "gone": null, "rubbish": null }));
    }

    #[test]
    fn s4_a_wait_that_ended_before_a_predecessors_times_were_read_is_not_gone_on_with() {
        let (now, mut clock) = (Instant::now(), clock());
        clock.next(now);
        clock.forget(&"mine".into());
        clock.forget(&"other".into());
        clock.note(&"mine".into(), at(500));
        let earlier = [("mine", "1970-01-01T00:01:00Z"), ("other", "1970-01-01T00:02:00Z")];
        clock.take(Ok(map(5, &earlier)), ALL, 0.0, now);
        assert_eq!([clock.since(&"mine".into()), clock.since(&"other".into())], [Some(at(500)), None]);
        let (_, _, body) = next(&mut clock, now).unwrap();
        assert_eq!(body["data"], json!({ "mine": at(500).to_string(), "other": null }));
    }

    #[test]
    fn what_could_not_be_written_is_read_and_tried_again_later() {
        let (now, mut clock) = (Instant::now(), clock());
        clock.next(now);
        clock.take(absent(), ALL, 0.0, now);
        clock.note(&"1".into(), at(60));
        clock.next(now);
        clock.take(Err(CallError::Unknown("cut".to_owned())), ALL, 0.0, now);
        assert_eq!(next(&mut clock, now), None);
        let later = clock.retry_at().unwrap();
        assert_eq!(next(&mut clock, later).map(|(verb, ..)| verb), Some(Verb::Get));
        // It had arrived. What we know ourselves is not overwritten by it.
        assert!(!clock.take(Ok(map(5, &[("1", "1970-01-01T00:00:01Z")])), ALL, 0.0, later));
        assert_eq!(clock.since(&"1".into()), Some(at(60)));
        assert_eq!(next(&mut clock, later).map(|(verb, ..)| verb), Some(Verb::Patch));
    }

    #[test]
    fn s6_of_more_than_fits_the_youngest_are_not_kept_until_there_is_room() {
        let (now, mut clock) = (Instant::now(), clock());
        clock.next(now);
        clock.take(absent(), ALL, 0.0, now);
        // Keys sort the other way round.
        let most = i64::try_from(MOST).unwrap();
        let key = |second: i64| WaitKey::from(format!("{:037}", most - second).as_str());
        for second in 0..=most {
            clock.note(&key(second), at(second));
        }
        let (_, _, body) = next(&mut clock, now).unwrap();
        let data = body["data"].as_object().unwrap();
        assert_eq!(data.len(), MOST);
        assert!(!data.contains_key(key(most).as_str()), "the youngest is left out");
        assert!(body.to_string().len() < 1 << 20, "it fits into a ConfigMap");
        clock.take(Ok(serde_json::from_value(body).unwrap()), ALL, 0.0, now);
        assert_eq!(next(&mut clock, now), None, "S39 it is left out once");
        clock.forget(&key(0));
        let (_, _, body) = next(&mut clock, now).unwrap();
        let expected = json!({ key(0).as_str(): null, key(most).as_str(): at(most).to_string() });
        assert_eq!(body["data"], expected);
        assert_eq!(clock.since(&key(most)), Some(at(most)), "of itself it forgets nothing");
    }

    #[test]
    fn the_key_of_a_list_entry_is_one_of_a_config_map_and_its_own() {
        let mut keys = HashSet::new();
        for (volume, node) in [("a", "n"), ("b", "n"), ("a", "m"), ("an", "")] {
            let volume = VolumeId::iscsi("10.0.0.1:3260", volume, 0);
            let key = WaitKey::of_entry(&volume, &node.into());
            assert!(key.as_str().len() <= HASH_KEY);
            assert!(key.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)));
            assert_eq!(key, WaitKey::of_entry(&volume, &node.into()), "a successor finds it again");
            assert!(keys.insert(key));
        }
    }

    #[test]
    fn without_a_place_nothing_is_asked() {
        let mut clock = WishClock::default();
        clock.note(&"1".into(), at(0));
        assert_eq!(next(&mut clock, Instant::now()), None);
    }

    #[test]
    fn s6_what_ends_alone_is_removed_and_what_never_was_changes_nothing() {
        let (now, mut clock) = (Instant::now(), clock());
        clock.note(&"1".into(), at(60));
        clock.forget(&"2".into());
        clock.next(now);
        clock.take(absent(), ALL, 0.0, now);
        assert!(!clock.is_busy());
        assert_eq!(next(&mut clock, now).map(|(verb, ..)| verb), Some(Verb::Create));
        assert!(clock.is_busy());
        clock.take(Ok(map(5, &[("1", "1970-01-01T00:01:00Z")])), ALL, 0.0, now);
        assert_eq!(next(&mut clock, now), None);
        clock.forget(&"2".into());
        assert_eq!(next(&mut clock, now), None);
        clock.forget(&"1".into());
        assert_eq!(next(&mut clock, now).map(|(.., body)| body["data"].clone()), Some(json!({ "1": null })));
        // Somebody removed it meanwhile: whatever it is now is read before it is written.
        clock.note(&"2".into(), at(60));
        clock.take(absent(), ALL, 0.0, now);
        assert_eq!(next(&mut clock, now), None);
        let later = clock.retry_at().unwrap();
        assert_eq!(next(&mut clock, later).map(|(verb, ..)| verb), Some(Verb::Get));
    }
}
