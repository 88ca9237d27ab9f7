//! Wish clock: since when volumes on nodes that are not Ready have not been wanted, kept where a successor of
//! this process finds it, so that a restart begins no wait anew (S6). Pure.
//!
//! In: which detaches wait for such a node, and what became of our requests. Out: the one request that is
//! needed, if any. It is a ConfigMap beside the lease, by [`WaitKey`], written only while a detach waits in this
//! way. When the node became not Ready its own status tells; this does not.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt::{self, Display},
    time::Duration,
};

use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    retry::Retry,
    volume_name::{VolumeId, hashed},
};
use crate::kube_api::{
    call::{CallError, Request, Verb},
    ids::{NodeName, Uid},
    kinds::Meta,
};

/// Entries that are kept, at most. A ConfigMap may hold 1 MiB, and one entry is a key of 32 bytes, a time of
/// up to 30 and a UID of 36.
const MOST: usize = 9_000;

/// Bytes of a key.
const KEY: usize = 32;

/// What a wait is known by: a volume on a node. It must be valid as a key of a ConfigMap, which a unique volume
/// name is not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitKey(String);

impl WaitKey {
    /// The key of a volume on a node.
    #[must_use]
    pub fn new(volume: &VolumeId, node: &NodeName) -> Self {
        let mut key = hashed("", &[volume.as_str(), "\0", node.as_str()]);
        key.truncate(KEY);
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

/// A detach that waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wait {
    /// Since when nobody wants the volume.
    pub since: Timestamp,
    /// The attachment that is to go, if there is more than an entry in the node's list.
    pub attachment: Option<Uid>,
}

impl Wait {
    /// The wait as the ConfigMap has it.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (since, attachment) = match text.split_once(' ') {
            Some((since, uid)) => (since, Some(Uid::from(uid))),
            None => (text, None),
        };
        Some(Self { since: since.parse().ok()?, attachment })
    }

    /// Whether it is the wait of what is, or may be, attached now. With another attachment it is not: somebody may
    /// have wanted that one. Without any it is: the attachment is gone, and the node's list is left.
    #[must_use]
    pub fn is_for(&self, attachment: Option<&Uid>) -> bool {
        attachment.is_none_or(|attachment| self.attachment.as_ref() == Some(attachment))
    }
}

impl Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.attachment {
            Some(uid) => write!(f, "{} {uid}", self.since),
            None => self.since.fmt(f),
        }
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
#[derive(Clone, Debug, Default)]
pub struct WishClock {
    place: Option<ClockPlace>,
    waits: HashMap<WaitKey, Wait>,
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
#[derive(Clone, Debug, Default)]
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
    pub fn since(&self, volume: &VolumeId, node: &NodeName, attachment: Option<&Uid>) -> Option<Timestamp> {
        if self.waits.is_empty() {
            return None;
        }
        let wait = self.waits.get(&WaitKey::new(volume, node))?;
        wait.is_for(attachment).then_some(wait.since)
    }

    /// A detach waits for a node that is not Ready.
    pub fn note(&mut self, key: WaitKey, wait: Wait) {
        if self.waits.get(&key) != Some(&wait) {
            self.waits.insert(key, wait);
            self.changed = true;
        }
    }

    /// The volume is wanted again, or being detached, or gone.
    pub fn forget(&mut self, volume: &VolumeId, node: &NodeName) {
        let is_to_inherit = !self.inherited && self.place.is_some();
        if self.waits.is_empty() && !is_to_inherit {
            return;
        }
        let key = WaitKey::new(volume, node);
        self.changed |= self.waits.remove(&key).is_some();
        if is_to_inherit {
            self.forgotten.insert(key);
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
        let mut all: Vec<(&Wait, &WaitKey)> = self.waits.iter().map(|(key, wait)| (wait, key)).collect();
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
        all.into_iter().map(|(wait, key)| (key.0.clone(), wait.to_string())).collect()
    }

    /// Takes what became of the request. Returns whether that told of what predecessors knew; of that only
    /// what is about what `exists` is kept, which is asked for only then.
    pub fn take(
        &mut self,
        result: Result<ConfigMap, CallError>,
        exists: impl FnOnce() -> HashMap<WaitKey, Option<Uid>>,
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
                        std::mem::take(&mut self.retry).after_failure(now, jitter, Duration::ZERO)
                    } else {
                        std::mem::take(&mut self.retry).after_silence(now, jitter)
                    };
                }
                return false;
            }
        };
        self.retry = Retry::default();
        self.written = read;
        // It may hold what is not wanted, or lack what came meanwhile.
        self.changed = true;
        let inherited = std::mem::replace(&mut self.inherited, true);
        let forgotten = std::mem::take(&mut self.forgotten);
        let data = match &self.written {
            Written::Present(map) if !inherited && !map.data.is_empty() => &map.data,
            _ => return false,
        };
        let exists = exists();
        for (key, wait) in data {
            let key = WaitKey::from(key.as_str());
            if let (Some(wait), Some(attachment)) = (Wait::parse(wait), exists.get(&key))
                && wait.is_for(attachment.as_ref())
                && !forgotten.contains(&key)
            {
                let since = wait.since;
                let known = self.waits.entry(key).or_insert(wait);
                known.since = known.since.min(since);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::SignedDuration;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A volume, which is on the only node.
    fn lun(number: i32) -> VolumeId {
        VolumeId::iscsi("10.0.0.1:3260", "iqn", number)
    }

    fn node() -> NodeName {
        "n".into()
    }

    fn key(number: i32) -> WaitKey {
        WaitKey::new(&lun(number), &node())
    }

    /// A wait for that attachment, or for an entry in a list.
    fn wait(second: i64, attachment: &str) -> Wait {
        Wait { since: at(second), attachment: (!attachment.is_empty()).then(|| attachment.into()) }
    }

    fn map(revision: u64, data: &[(i32, &str)]) -> ConfigMap {
        let data: BTreeMap<String, &str> =
            data.iter().map(|(number, wait)| (key(*number).0, *wait)).collect();
        let metadata = json!({ "name": "c", "uid": "u", "resourceVersion": revision.to_string() });
        serde_json::from_value(json!({ "metadata": metadata, "data": data })).unwrap()
    }

    /// What a patch says, by volume.
    fn data(expected: &[(i32, Value)]) -> Value {
        expected
            .iter()
            .map(|(number, wait)| (key(*number).0, wait.clone()))
            .collect::<serde_json::Map<_, _>>()
            .into()
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

    /// Volumes 1 to 9 with the attachment "a".
    fn all() -> HashMap<WaitKey, Option<Uid>> {
        (1..=9).map(|number| (key(number), Some("a".into()))).collect()
    }

    #[test]
    fn s6_it_is_written_when_a_detach_waits_and_removed_when_it_ends() {
        let (now, mut clock) = (Instant::now(), clock());
        let path = "/api/v1/namespaces/ns/configmaps/c".to_owned();
        assert_eq!(next(&mut clock, now), Some((Verb::Get, path.clone(), Value::Null)));
        assert_eq!(next(&mut clock, now), None, "one at a time");
        clock.take(absent(), all, 0.0, now);
        assert_eq!(next(&mut clock, now), None, "nothing waits, nothing is written");

        clock.note(key(1), wait(60, "a"));
        let (verb, collection, body) = next(&mut clock, now).unwrap();
        assert_eq!((verb, collection.as_str()), (Verb::Create, "/api/v1/namespaces/ns/configmaps"));
        assert_eq!(body["data"], data(&[(1, json!("1970-01-01T00:01:00Z a"))]));
        clock.take(Ok(map(5, &[(1, "1970-01-01T00:01:00Z a")])), all, 0.0, now);
        clock.note(key(1), wait(60, "a"));
        assert_eq!(next(&mut clock, now), None, "S39 what is written is not written again");

        clock.note(key(2), wait(0, ""));
        clock.forget(&lun(1), &node());
        let expected = json!({
            "metadata": { "uid": "u", "resourceVersion": "5" },
            "data": data(&[(1, Value::Null), (2, json!("1970-01-01T00:00:00Z"))]),
        });
        assert_eq!(next(&mut clock, now), Some((Verb::Patch, path, expected)));
    }

    #[test]
    fn s6_a_successor_goes_on_where_it_stopped() {
        let (now, mut clock) = (Instant::now(), clock());
        clock.note(key(1), wait(500, "a"));
        clock.next(now);
        let earlier = map(
            5,
            &[
                (1, "1970-01-01T00:01:00Z a"),
                (2, "1970-01-01T00:02:00Z a"),
                (3, "yesterday"),
                (11, "1970-01-01T00:03:00Z a"),
            ],
        );
        assert!(clock.take(Ok(earlier), all, 0.0, now));
        let since = |number| clock.since(&lun(number), &node(), Some(&"a".into()));
        assert_eq!([since(1), since(2), since(3), since(11)], [Some(at(60)), Some(at(120)), None, None]);
        let (_, _, body) = next(&mut clock, now).unwrap();
        assert_eq!(body["data"], data(&[(3, Value::Null), (11, Value::Null)]));
    }

    #[test]
    fn s4_s6_a_wait_is_gone_on_with_for_its_own_attachment_and_for_what_that_leaves_in_a_list() {
        // What the clock says, which attachment there is now, since when a successor takes it to wait.
        let cases = [
            ("1970-01-01T00:01:00Z a", "a", Some(60)),
            ("1970-01-01T00:01:00Z a", "b", None),
            ("1970-01-01T00:01:00Z a", "", Some(60)),
            ("1970-01-01T00:01:00Z", "", Some(60)),
            ("1970-01-01T00:01:00Z", "b", None),
        ];
        for (written, there, expected) in cases {
            let (now, mut clock) = (Instant::now(), clock());
            let there = wait(0, there).attachment;
            clock.next(now);
            let exists = || [(key(1), there.clone())].into();
            clock.take(Ok(map(5, &[(1, written)])), exists, 0.0, now);
            let since = clock.since(&lun(1), &node(), there.as_ref());
            assert_eq!(since, expected.map(at), "{written}, then {there:?}");
            assert_eq!(clock.since(&lun(1), &node(), Some(&"c".into())), None, "{written}, then another");
        }
    }

    #[test]
    fn who_inherits_nothing_looks_at_nothing_for_it() {
        let (now, mut clock) = (Instant::now(), clock());
        clock.next(now);
        assert!(!clock.take(Ok(map(5, &[])), || panic!("every volume on every node"), 0.0, now));
    }

    #[test]
    fn s4_a_wait_that_ended_before_a_predecessors_times_were_read_is_not_gone_on_with() {
        let (now, mut clock) = (Instant::now(), clock());
        clock.next(now);
        clock.forget(&lun(1), &node());
        clock.forget(&lun(2), &node());
        clock.note(key(1), wait(500, "a"));
        let earlier = [(1, "1970-01-01T00:01:00Z a"), (2, "1970-01-01T00:02:00Z a")];
        clock.take(Ok(map(5, &earlier)), all, 0.0, now);
        let since = |number| clock.since(&lun(number), &node(), Some(&"a".into()));
        assert_eq!([since(1), since(2)], [Some(at(500)), None]);
        let (_, _, body) = next(&mut clock, now).unwrap();
        assert_eq!(body["data"], data(&[(1, json!(wait(500, "a").to_string())), (2, Value::Null)]));
    }

    #[test]
    fn what_could_not_be_written_is_read_and_tried_again_later() {
        let (now, mut clock) = (Instant::now(), clock());
        clock.next(now);
        clock.take(absent(), all, 0.0, now);
        clock.note(key(1), wait(60, "a"));
        clock.next(now);
        clock.take(Err(CallError::Unknown("cut".to_owned())), all, 0.0, now);
        assert_eq!(next(&mut clock, now), None);
        let later = clock.retry_at().unwrap();
        assert_eq!(next(&mut clock, later).map(|(verb, ..)| verb), Some(Verb::Get));
        // It had arrived. What we know ourselves is not overwritten by it.
        assert!(!clock.take(Ok(map(5, &[(1, "1970-01-01T00:00:01Z a")])), all, 0.0, later));
        assert_eq!(clock.since(&lun(1), &node(), None), Some(at(60)));
        assert_eq!(next(&mut clock, later).map(|(verb, ..)| verb), Some(Verb::Patch));
    }

    #[test]
    fn l16_s40_after_silence_it_is_tried_again_soon_and_after_refusals_ever_later() {
        let refused = || CallError::Refused { code: 403, message: "no".to_owned() };
        let cases = [(CallError::Unknown("cut".to_owned()), 4), (refused(), 122)];
        for (error, longest) in cases {
            let (mut now, mut clock) = (Instant::now(), clock());
            let mut pause = Duration::ZERO;
            for _ in 0..10 {
                clock.next(now).expect("a request");
                clock.take(Err(error.clone()), all, 0.0, now);
                let later = clock.retry_at().unwrap();
                (pause, now) = (later - now, later);
            }
            assert_eq!(pause, Duration::from_secs(longest), "{error}");
        }
    }

    #[test]
    fn s6_of_more_than_fits_the_youngest_are_not_kept_until_there_is_room() {
        let (now, mut clock) = (Instant::now(), clock());
        clock.next(now);
        clock.take(absent(), all, 0.0, now);
        let uid = "01234567-89ab-cdef-0123-456789abcdef";
        let at = |number: i32| wait(i64::from(number), uid).since + SignedDuration::from_nanos(1);
        let most = i32::try_from(MOST).unwrap();
        for number in 0..=most {
            clock.note(key(number), Wait { since: at(number), ..wait(0, uid) });
        }
        let (_, _, body) = next(&mut clock, now).unwrap();
        let written = body["data"].as_object().unwrap();
        assert_eq!(written.len(), MOST);
        assert!(!written.contains_key(key(most).as_str()), "the youngest is left out");
        assert!(body.to_string().len() < 1 << 20, "it fits into a ConfigMap");
        clock.take(Ok(serde_json::from_value(body).unwrap()), all, 0.0, now);
        assert_eq!(next(&mut clock, now), None, "S39 it is left out once");
        clock.forget(&lun(0), &node());
        let (_, _, body) = next(&mut clock, now).unwrap();
        assert_eq!(body["data"], data(&[(0, Value::Null), (most, json!(format!("{} {uid}", at(most))))]));
        assert_eq!(clock.since(&lun(most), &node(), None), Some(at(most)), "of itself it forgets nothing");
    }

    #[test]
    fn the_key_of_a_wait_is_one_of_a_config_map_and_its_own() {
        let mut keys = HashSet::new();
        for (volume, node) in [("a", "n"), ("b", "n"), ("a", "m"), ("an", "")] {
            let volume = VolumeId::iscsi("10.0.0.1:3260", volume, 0);
            let key = WaitKey::new(&volume, &node.into());
            assert_eq!(key.as_str().len(), KEY);
            assert!(key.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric()));
            assert_eq!(key, WaitKey::new(&volume, &node.into()), "a successor finds it again");
            assert!(keys.insert(key));
        }
    }

    #[test]
    fn without_a_place_nothing_is_asked() {
        let mut clock = WishClock::default();
        clock.note(key(1), wait(0, "a"));
        clock.forget(&lun(1), &node());
        assert!(clock.forgotten.is_empty());
        assert_eq!(next(&mut clock, Instant::now()), None);
    }

    #[test]
    fn s6_what_ends_alone_is_removed_and_what_never_was_changes_nothing() {
        let (now, mut clock) = (Instant::now(), clock());
        clock.note(key(1), wait(60, "a"));
        clock.forget(&lun(2), &node());
        clock.next(now);
        clock.take(absent(), all, 0.0, now);
        assert!(!clock.is_busy());
        assert_eq!(next(&mut clock, now).map(|(verb, ..)| verb), Some(Verb::Create));
        assert!(clock.is_busy());
        clock.take(Ok(map(5, &[(1, "1970-01-01T00:01:00Z a")])), all, 0.0, now);
        assert_eq!(next(&mut clock, now), None);
        clock.forget(&lun(2), &node());
        assert_eq!(next(&mut clock, now), None);
        clock.forget(&lun(1), &node());
        let expected = data(&[(1, Value::Null)]);
        assert_eq!(next(&mut clock, now).map(|(.., body)| body["data"].clone()), Some(expected));
        assert!(clock.forgotten.is_empty(), "that is asked once, of the predecessors");
        // Somebody removed it meanwhile: whatever it is now is read before it is written.
        clock.note(key(2), wait(60, "a"));
        clock.take(absent(), all, 0.0, now);
        assert_eq!(next(&mut clock, now), None);
        let later = clock.retry_at().unwrap();
        assert_eq!(next(&mut clock, later).map(|(verb, ..)| verb), Some(Verb::Get));
    }
}
