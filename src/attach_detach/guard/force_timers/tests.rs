use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::kube_api::kinds::{Node, NodeCondition};

mod succession;
mod trouble;

const PATIENCE: Duration = Duration::from_mins(6);
/// A UID as long as they are.
const UID: &str = "01234567-89ab-cdef-0123-456789abcdef";

/// The API server, as far as ConfigMaps go.
#[derive(Clone, Default)]
struct Store {
    maps: BTreeMap<String, Value>,
    revision: u64,
    /// What it was asked.
    asked: Vec<(Verb, Value)>,
    /// Bytes of all that etcd has stored.
    stored: usize,
    /// Whether some policy refuses all writes.
    refuses: bool,
    /// What the lease tells.
    told: Option<Tally>,
}

impl Store {
    fn data(&self) -> BTreeMap<String, String> {
        let map = self.maps.get("/api/v1/namespaces/ns/configmaps/c");
        map.map(|map| serde_json::from_value(map["data"].clone()).unwrap()).unwrap_or_default()
    }

    fn serve(&mut self, request: Request) -> Result<Option<ConfigMap>, CallError> {
        let Request { verb, path, body } = request;
        let body = body.unwrap_or_default();
        self.asked.push((verb, body.clone()));
        if self.refuses && verb != Verb::Get {
            return Err(refused());
        }
        let (path, known) = match verb {
            Verb::Create => {
                let path = format!("{path}/{}", body["metadata"]["name"].as_str().unwrap());
                let mut map = json!({"metadata": {"namespace": "ns", "uid": "u"}});
                json_patch::merge(&mut map, &body);
                if self.maps.contains_key(&path) {
                    return Err(CallError::AlreadyExists("there".to_owned()));
                }
                self.maps.insert(path.clone(), map);
                (path, true)
            }
            _ => (path.clone(), self.maps.contains_key(&path)),
        };
        let map = self.maps.get_mut(&path).filter(|_| known);
        let Some(map) = map else { return Err(CallError::NotFound("none".to_owned())) };
        if verb == Verb::Delete {
            let expected = json!({"uid": "u", "resourceVersion": map["metadata"]["resourceVersion"]});
            assert_eq!(body["preconditions"], expected);
            self.maps.remove(&path);
            return Ok(None);
        }
        if verb == Verb::Patch {
            assert_eq!(body["metadata"]["uid"], "u");
            if body["metadata"]["resourceVersion"] != map["metadata"]["resourceVersion"] {
                return Err(CallError::Conflict("stale".to_owned()));
            }
            json_patch::merge(map, &body);
        }
        if verb != Verb::Get {
            self.revision += 1;
            map["metadata"]["resourceVersion"] = json!(self.revision.to_string());
            self.stored += map.to_string().len();
        }
        Ok(Some(serde_json::from_value(map.clone()).unwrap()))
    }
}

/// A process with clocks of its own, of which the one on the wall shows anything.
#[derive(Clone)]
struct Process {
    identity: String,
    timers: ForceTimers,
    now: Instant,
    wall: Timestamp,
    candidates: Vec<Candidate>,
    inherited: Vec<Inherited>,
}

impl Process {
    fn started(wall: i64) -> Self {
        static STARTED: AtomicU64 = AtomicU64::new(0);
        let identity = format!("host_{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let timers = ForceTimers::kept_in(place(), identity.clone(), PATIENCE);
        let candidates = (1..=9).map(candidate).collect();
        Self { identity, timers, now: Instant::now(), wall: at(wall), candidates, inherited: Vec::new() }
    }

    /// It leads next, by the lease.
    fn succeeding(store: &Store, wall: i64) -> Self {
        let mut process = Self::started(wall);
        process.timers.succeed(store.told.clone());
        process
    }

    fn renews(&self, store: &mut Store) {
        store.told = Some(Tally { by: self.identity.clone(), count: self.timers.broken_off() });
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.wall = self.wall.checked_add(time).unwrap();
    }

    fn take(&mut self, result: Result<Option<ConfigMap>, CallError>) {
        let candidates = self.candidates.clone();
        self.inherited.extend(self.timers.take(result, || candidates, 0.0, (self.now, self.wall)));
    }

    fn next(&mut self) -> Option<Request> {
        self.timers.next(self.now, self.wall)
    }

    /// Asks what there is to ask now.
    fn works(&mut self, store: &mut Store) {
        while let Some(request) = self.next() {
            assert!(self.timers.is_busy() && self.next().is_none(), "one at a time");
            let answer = store.serve(request);
            self.take(answer);
        }
    }

    /// Works whenever it needs to, for so long.
    fn works_for(&mut self, time: Duration, store: &mut Store) {
        let end = self.now + time;
        self.works(store);
        while let Some(due) = self.timers.due_at().filter(|due| *due <= end) {
            assert!(due > self.now, "it does not spin");
            self.pass(due - self.now);
            self.works(store);
        }
        self.pass(end - self.now);
    }

    /// A volume has not been desired from now on.
    fn waits(&mut self, number: usize, attachment: &str) {
        let wait = Wait {
            since: self.wall,
            failure: failure(0),
            attachment: (!attachment.is_empty()).then(|| attachment.into()),
        };
        self.timers.note(key(number), wait);
    }
}

fn place() -> TimersConfigMap {
    TimersConfigMap { namespace: "ns".to_owned(), name: "c".to_owned(), earlier_name: None }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

const fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A volume, which is on the only node.
fn lun(number: usize) -> VolumeId {
    VolumeId::iscsi("10.0.0.1:3260", "iqn", i32::try_from(number).unwrap())
}

fn node() -> NodeName {
    "n".into()
}

fn key(number: usize) -> WaitKey {
    WaitKey::new(&lun(number), &node())
}

/// The failure that began with that transition.
fn failure(second: i64) -> Option<Failure> {
    let mut node = Node::default();
    node.status.conditions.push(NodeCondition {
        r#type: "Ready".into(),
        status: "Unknown".into(),
        last_transition_time: Some(at(second)),
    });
    Failure::of(&node)
}

fn candidate(number: usize) -> Candidate {
    Candidate {
        volume: lun(number),
        node: node(),
        failure: failure(0),
        attachment: Some("a".into()),
        desired_until: None,
    }
}

/// Which volumes are kept, and for how long they have waited.
fn kept(store: &Store) -> Vec<(usize, u64)> {
    let data = store.data();
    let kept = (0..10).filter_map(|number| {
        let waited = Waited::parse(data.get(key(number).as_str())?).expect("a wait");
        Some((number, waited.elapsed.as_secs()))
    });
    kept.collect()
}

fn verbs(store: &mut Store) -> Vec<Verb> {
    store.asked.drain(..).map(|(verb, _)| verb).collect()
}

fn refused() -> CallError {
    CallError::Refused { code: 403, message: "no".to_owned() }
}

#[test]
fn s6_it_is_written_when_a_detach_waits_and_stamped_until_that_ends() {
    let (mut store, mut process) = (Store::default(), Process::started(60));
    process.works_for(seconds(100), &mut store);
    assert_eq!(verbs(&mut store), [Verb::Get], "nothing waits, nothing is written");
    process.waits(1, "a");
    process.works(&mut store);
    assert_eq!(verbs(&mut store), [Verb::Create]);
    process.waits(2, "");
    process.works_for(seconds(1), &mut store);
    assert_eq!(verbs(&mut store), [Verb::Patch]);
    assert_eq!(kept(&store), [(1, 1), (2, 1)]);
    process.works_for(seconds(50), &mut store);
    assert_eq!(verbs(&mut store), [Verb::Patch; 10], "every five seconds");
    assert_eq!(kept(&store), [(1, 51), (2, 51)]);
    process.timers.forget(&lun(1), &node());
    process.timers.forget(&lun(3), &node());
    process.works_for(seconds(1), &mut store);
    assert_eq!(kept(&store), [(2, 52)]);
    process.timers.forget(&lun(2), &node());
    process.works_for(seconds(1_000), &mut store);
    assert_eq!(verbs(&mut store), [Verb::Patch; 2]);
    assert_eq!(kept(&store), []);
}

#[test]
fn s39_what_has_waited_for_long_enough_is_not_stamped_any_more() {
    let (mut store, mut process) = (Store::default(), Process::started(0));
    process.waits(1, "a");
    process.works_for(PATIENCE, &mut store);
    assert_eq!(kept(&store), [(1, 360)]);
    store.asked.clear();
    process.works_for(Duration::from_hours(1), &mut store);
    assert_eq!(verbs(&mut store), []);
}

#[test]
fn s4_s6_e10_a_successor_goes_on_from_the_last_stamp_whatever_its_clock_shows() {
    let hour = 3_600;
    for wall in [10 * hour, 9 * hour, 11 * hour, 10 * hour + 600] {
        let (mut store, mut process) = (Store::default(), Process::started(10 * hour));
        process.waits(1, "a");
        process.works_for(seconds(43), &mut store);
        // No replica leads for some time, of which nothing is known.
        let mut successor = Process::started(wall);
        successor.works(&mut store);
        let proven =
            Inherited { volume: lun(1), node: node(), elapsed: seconds(40), is_unready_as_long: true };
        assert_eq!(successor.inherited, [proven], "at {wall}");
        successor.works_for(seconds(7), &mut store);
        assert_eq!(kept(&store), [(1, 45)], "noted at once, and stamped from then on");
    }
}

#[test]
fn s4_s6_a_wait_is_gone_on_with_for_its_own_attachment_and_for_what_that_leaves_in_a_list() {
    // What was written of, what is attached now, as what the node is not Ready now, and what is inherited: for how
    // long no pod has needed it, and whether the node has not been Ready for as long.
    let cases = [
        ("the same", "a", Some("a"), failure(0), Some(true)),
        ("S4 another attachment", "a", Some("b"), failure(0), None),
        ("the attachment is gone", "a", None, failure(0), Some(true)),
        ("there was none", "", None, failure(0), Some(true)),
        ("S4 there was none, and is one", "", Some("b"), failure(0), None),
        ("S4 it may have been Ready in between", "a", Some("a"), failure(9), Some(false)),
        ("S4 its object is gone", "a", Some("a"), None, Some(false)),
    ];
    for (name, written, attachment, failure, expected) in cases {
        let (mut store, mut process) = (Store::default(), Process::started(0));
        process.waits(1, written);
        process.works_for(seconds(20), &mut store);
        let mut successor = Process::started(0);
        successor.candidates =
            vec![Candidate { failure, attachment: attachment.map(Into::into), ..candidate(1) }];
        successor.works(&mut store);
        let inherited: Vec<_> = successor.inherited.iter().map(|proven| proven.is_unready_as_long).collect();
        assert_eq!(inherited, Vec::from_iter(expected), "{name}");
    }
}

#[test]
fn s4_of_a_wait_that_a_pod_interrupted_while_nobody_led_only_what_came_after_it_is_inherited() {
    let started = 1_000;
    for (ended, expected) in
        [(None, 40), (Some(started - 100), 40), (Some(started - 7), 7), (Some(started + 5), 0)]
    {
        let (mut store, mut process) = (Store::default(), Process::started(0));
        process.waits(1, "a");
        process.works_for(seconds(43), &mut store);
        let mut successor = Process::started(started);
        successor.candidates = vec![Candidate { desired_until: ended.map(at), ..candidate(1) }];
        successor.works(&mut store);
        let inherited: Vec<_> = successor.inherited.iter().map(|proven| proven.elapsed).collect();
        assert_eq!(inherited, [seconds(expected)], "a pod ceased to want it at {ended:?}");
    }
}

#[test]
fn s4_what_nobody_waits_for_any_more_is_not_inherited_but_removed() {
    let (mut store, mut process) = (Store::default(), Process::started(0));
    for number in [1, 2, 3] {
        process.waits(number, "a");
    }
    process.works_for(seconds(20), &mut store);
    let data = &mut store.maps.values_mut().next().unwrap()["data"];
    data[key(2).as_str()] = json!("1970-01-01T00:00:00Z a");
    let mut successor = Process::started(0);
    // The first was desired again before this was read, and is not desired now.
    successor.candidates.retain(|candidate| candidate.volume != lun(1));
    successor.waits(1, "a");
    successor.works(&mut store);
    let inherited: Vec<_> = successor.inherited.iter().map(|proven| proven.volume.clone()).collect();
    assert_eq!(inherited, [lun(3)]);
    assert_eq!(kept(&store), [(1, 0), (3, 20)]);
}

#[test]
fn s4_more_than_the_patience_is_not_believed_and_nothing_is_inherited_twice() {
    let (mut store, mut process) = (Store::default(), Process::started(0));
    process.waits(1, "a");
    process.works(&mut store);
    let text = store.data()[key(1).as_str()].clone();
    let data = &mut store.maps.values_mut().next().unwrap()["data"];
    data[key(1).as_str()] = json!(text.replacen('0', "18446744073709551615", 1));
    let mut successor = Process::started(0);
    successor.works(&mut store);
    assert_eq!(successor.inherited.iter().map(|proven| proven.elapsed).collect::<Vec<_>>(), [PATIENCE]);
    successor.inherited.clear();
    // A user edits it meanwhile, and it is read again.
    store.revision += 1;
    store.maps.values_mut().next().unwrap()["metadata"]["resourceVersion"] = json!("77");
    successor.waits(2, "a");
    successor.works_for(seconds(10), &mut store);
    assert_eq!(successor.inherited, []);
    assert!(kept(&store).iter().any(|(number, _)| *number == 2));
}

#[test]
fn s4_s36_of_two_that_write_the_later_reads_what_the_other_wrote_and_inherits_nothing_of_it() {
    let (mut store, mut zombie) = (Store::default(), Process::started(0));
    zombie.waits(1, "a");
    zombie.works(&mut store);
    let mut leader = Process::started(0);
    leader.works(&mut store);
    leader.waits(2, "a");
    leader.works_for(seconds(6), &mut store);
    zombie.pass(seconds(300));
    let stale = zombie.next().expect("a stamp");
    let answer = store.serve(stale);
    assert!(matches!(answer, Err(CallError::Conflict(_))), "{answer:?}");
    assert_eq!(kept(&store), [(1, 6), (2, 6)]);
}

#[test]
fn s6_of_more_than_fits_the_youngest_are_not_kept_until_there_is_room() {
    let (mut store, mut process) = (Store::default(), Process::started(0));
    for number in 0..=MOST {
        process.waits(number, UID);
        process.wall = process.wall.checked_add(Duration::from_nanos(1)).unwrap();
    }
    process.pass(seconds(100));
    process.works(&mut store);
    let data = store.data();
    assert_eq!(data.len(), MOST + 1, "and by whom it is stamped");
    assert!(!data.contains_key(key(MOST).as_str()), "the youngest is left out");
    let size: usize = data.iter().map(|(key, value)| key.len() + value.len()).sum();
    assert!(size < 1 << 20, "{size}: it fits into a ConfigMap");
    process.timers.forget(&lun(0), &node());
    process.works_for(seconds(1), &mut store);
    let data = store.data();
    assert!(data.contains_key(key(MOST).as_str()) && !data.contains_key(key(0).as_str()));
}

#[test]
fn s6_two_thousand_waits_that_begin_one_after_the_other_cost_etcd_little() {
    const WAITS: usize = 2_000;
    let (mut store, mut process) = (Store::default(), Process::started(0));
    process.works(&mut store);
    for number in 0..WAITS {
        process.waits(number, UID);
        process.works_for(Duration::from_millis(10), &mut store);
    }
    process.works_for(PATIENCE, &mut store);
    let writes = store.asked.len() - 1;
    assert!(writes <= 20 + 72 + 2, "{writes} writes: one a second at most, and a stamp every five");
    // What a single write of all of them takes, as often as they are stamped, and half of that as they come.
    assert!(store.stored < 20 << 20, "{} bytes", store.stored);
    let before = store.stored;
    for number in 0..WAITS {
        process.timers.forget(&lun(number), &node());
        process.works_for(Duration::from_millis(10), &mut store);
    }
    process.works_for(seconds(10), &mut store);
    assert!(store.stored - before < 5 << 20, "{} bytes", store.stored - before);
    assert!(store.data().is_empty());
}

#[test]
fn what_an_earlier_version_kept_is_read_once_and_deleted_as_it_was_read() {
    let earlier_name = Some("old".to_owned());
    let old = "/api/v1/namespaces/ns/configmaps/old";
    let map = json!({
        "metadata": {"name": "old", "namespace": "ns", "uid": "u", "resourceVersion": "5"},
        "data": {key(1).as_str(): "1970-01-01T00:00:00Z a"},
    });
    for is_there in [true, false] {
        let (mut store, mut process) = (Store::default(), Process::started(3_600));
        if is_there {
            store.maps.insert(old.to_owned(), map.clone());
        }
        let place = TimersConfigMap { earlier_name: earlier_name.clone(), ..place() };
        process.timers = ForceTimers::kept_in(place, process.identity.clone(), PATIENCE);
        process.waits(1, "a");
        process.works(&mut store);
        assert_eq!(process.inherited, [], "E10 its times are another clock's");
        let deletion = is_there.then_some(Verb::Delete);
        let expected = [Verb::Get, Verb::Get].into_iter().chain(deletion).chain([Verb::Create]);
        assert_eq!(verbs(&mut store), expected.collect::<Vec<_>>());
        assert!(!store.maps.contains_key(old));
    }
    // It may be neither read nor deleted: it is left, and nothing else suffers.
    for in_vain in [1, 2] {
        let (mut store, mut process) = (Store::default(), Process::started(0));
        store.maps.insert(old.to_owned(), map.clone());
        let place = TimersConfigMap { earlier_name: earlier_name.clone(), ..place() };
        process.timers = ForceTimers::kept_in(place, process.identity.clone(), PATIENCE);
        process.waits(1, "a");
        for number in 0.. {
            let Some(request) = process.next() else { break };
            let answer = if number == in_vain { Err(refused()) } else { store.serve(request) };
            process.take(answer);
        }
        assert_eq!((kept(&store), process.timers.alarm()), (vec![(1, 0)], None));
        assert!(store.maps.contains_key(old));
    }
}

#[test]
fn who_inherits_nothing_looks_at_nothing_for_it() {
    let mut process = Process::started(0);
    process.next().unwrap();
    let absent = Err(CallError::NotFound("none".to_owned()));
    let inherited = process.timers.take(
        absent,
        || panic!("every volume on every node"),
        0.0,
        (process.now, process.wall),
    );
    assert_eq!(inherited, []);
}

#[test]
fn without_a_place_nothing_is_asked() {
    let mut process = Process::started(0);
    process.timers = ForceTimers::default();
    process.waits(1, "a");
    process.timers.forget(&lun(2), &node());
    assert_eq!((process.next(), process.timers.due_at()), (None, None));
}

#[test]
fn who_does_not_lead_any_more_raises_no_alarm() {
    let mut process = Process::started(0);
    process.next().unwrap();
    process.take(Err(CallError::NotLeader));
    assert_eq!((process.timers.alarm(), process.timers.due_at()), (None, None));
}
