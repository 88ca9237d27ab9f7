use super::*;

const KCM: &str = "kube-controller-manager";
const FIELD: OwnedField = OwnedField::VolumesAttached;

/// Each object is a place of its own, but for those whose names begin alike: `n1`, `n1/a`. What begins so with `agent`
/// the agent of its place can write.
impl Target for &'static str {
    type Place = &'static str;

    fn place(&self) -> &'static str {
        self.split('/').next().unwrap_or_default()
    }

    fn is_beyond_agents(&self) -> bool {
        !self.starts_with("agent")
    }
}

impl Target for usize {
    type Place = Self;

    fn place(&self) -> Self {
        *self
    }

    fn is_beyond_agents(&self) -> bool {
        true
    }
}

/// Plays acts, each `(second, object, manager)`, every read being answered at once, and returns what stands off when,
/// as `+object`, `-object`, with `*` for everywhere.
fn play(acts: &[(u64, &'static str, &str)]) -> Vec<(u64, String)> {
    let start = Instant::now();
    let mut writers = SecondWriters::<&'static str>::default();
    let end = acts.last().map_or(0, |(second, ..)| *second) + 1_300;
    let mut seen = Vec::new();
    let mut acts = acts.iter().peekable();
    for second in 0..end {
        let now = start + Duration::from_secs(second);
        let note = |changes: Changes<&'static str>, sign: char, seen: &mut Vec<(u64, String)>| {
            seen.extend(changes.begun.iter().map(|object| (second, format!("+{object}"))));
            seen.extend(changes.ended.iter().map(|object| (second, format!("-{object}"))));
            if changes.everywhere {
                seen.push((second, format!("{sign}*")));
            }
        };
        note(writers.settle(now), '-', &mut seen);
        while let Some((_, object, manager)) = acts.next_if(|(when, ..)| *when == second) {
            let changes = match writers.note(object, FIELD, now) {
                Asks::Read => {
                    let managers: Vec<String> = manager.split_whitespace().map(str::to_owned).collect();
                    writers.learn(object, &Owner::of(&managers), now)
                }
                Asks::Judged(changes) => changes,
                Asks::Later => panic!("every read is answered"),
            };
            note(changes, '+', &mut seen);
        }
        assert_eq!(
            writers.ends_at().is_some(),
            writers.everywhere().is_some() || writers.stand_offs().next().is_some()
        );
    }
    seen
}

#[test]
fn s14_the_consequence_is_as_local_as_the_evidence() {
    type Acts = &'static [(u64, &'static str, &'static str)];
    type Case = (&'static str, Acts, &'static [(u64, &'static str)]);
    let cases: [Case; 15] = [
        ("an administrator's once", &[(0, "n1", "kubectl-edit")], &[]),
        ("and again", &[(0, "n1", "kubectl-edit"), (60, "n1", "kubectl-edit")], &[]),
        (
            "a node's own agent, three times and more",
            &[(0, "n9", "agent"), (10, "n9", "agent"), (20, "n9", "agent"), (300, "n9", "agent")],
            &[(20, "+n9"), (620, "-n9")],
        ),
        ("many nodes' agents, each once", &[(0, "n1", "agent"), (1, "n2", "agent"), (2, "n3", "agent")], &[]),
        (
            "nobody knows who, three times",
            &[(0, "n9", ""), (10, "n9", ""), (20, "n9", "")],
            &[(20, "+n9"), (620, "-n9")],
        ),
        (
            "long ago does not count",
            &[(0, "n9", "agent"), (300, "n9", "agent"), (600, "n9", "agent"), (1_200, "n9", "agent")],
            &[],
        ),
        ("KCM on one object", &[(0, "n1", KCM)], &[(0, "+n1"), (600, "-n1")]),
        (
            "KCM on one object, again and again, also unread",
            &[(0, "n1", KCM), (10, "n1", KCM), (500, "n1", KCM)],
            &[(0, "+n1"), (1_100, "-n1")],
        ),
        (
            "KCM on several",
            &[(0, "n1", KCM), (10, "n2", KCM), (400, "n2", KCM)],
            &[(0, "+n1"), (10, "+n2"), (10, "+*"), (600, "-n1"), (1_000, "-n2"), (1_000, "-*")],
        ),
        (
            "KCM among others",
            &[(0, "n1", "agent kube-controller-manager"), (10, "n2", "k3s")],
            &[(0, "+n1"), (10, "+n2"), (10, "+*"), (600, "-n1"), (610, "-n2"), (610, "-*")],
        ),
        (
            "KCM on several, at long intervals",
            &[(0, "n1", KCM), (700, "n2", KCM)],
            &[(0, "+n1"), (600, "-n1"), (700, "+n2"), (1_300, "-n2")],
        ),
        (
            "agents that give themselves KCM's name",
            &[(0, "agent1", KCM), (1, "agent2", KCM)],
            &[(0, "+agent1"), (1, "+agent2"), (600, "-agent1"), (601, "-agent2")],
        ),
        (
            "KCM on several objects of one place",
            &[(0, "n1", KCM), (1, "n1/a", KCM)],
            &[(0, "+n1"), (1, "+n1/a"), (600, "-n1"), (601, "-n1/a")],
        ),
        (
            "agents that give themselves our name",
            &[(0, "agent1", "mooring"), (1, "agent2", "mooring"), (2, "agent3", "mooring")],
            &[],
        ),
        (
            "another one of our name",
            &[(0, "n1", "mooring"), (1, "n2", "mooring"), (2, "n3", "mooring")],
            &[(2, "+*"), (602, "-*")],
        ),
    ];
    for (name, acts, expected) in cases {
        let expected: Vec<(u64, String)> =
            expected.iter().map(|(at, what)| (*at, (*what).to_owned())).collect();
        assert_eq!(play(acts), expected, "{name}");
    }
}

#[test]
fn s14_the_last_writes_of_the_predecessor_are_no_acts() {
    let start = Instant::now();
    for (seconds, owner, is_act) in [
        (59, Owner::OurName, false),
        (60, Owner::OurName, true),
        (0, Owner::Controller(KCM.to_owned()), true),
    ] {
        let mut writers = SecondWriters::default();
        writers.take_over(start);
        let now = start + Duration::from_secs(seconds);
        for object in ["va1", "va2", "va3"] {
            assert_eq!(writers.note(&object, OwnedField::AttachmentSpec, now), Asks::Read);
            writers.learn(&object, &owner, now);
        }
        assert_eq!(writers.everywhere().is_some(), is_act, "{owner:?} after {seconds} s");
    }
}

#[test]
fn s14_reads_are_few_however_many_acts_there_are() {
    let start = Instant::now();
    let mut writers = SecondWriters::default();
    let at = |second| start + Duration::from_secs(second);
    let reads = |writers: &mut SecondWriters<usize>, now| {
        (0..5_000).filter(|node| writers.note(node, FIELD, now) == Asks::Read).count()
    };
    assert_eq!(reads(&mut writers, at(0)), READS);
    assert_eq!(reads(&mut writers, at(59)), 0);
    assert_eq!(reads(&mut writers, at(60)), READS);
    assert!(writers.acts.len() <= OBJECTS, "{}", writers.acts.len());
}

#[test]
fn s14_no_more_objects_stand_off_than_are_remembered_and_a_controllers_outlast_all_others() {
    let start = Instant::now();
    let mut writers = SecondWriters::<usize>::default();
    let mut act = |object, manager: &str, second| {
        let now = start + Duration::from_secs(second);
        match writers.note(&object, FIELD, now) {
            Asks::Read => writers.learn(&object, &Owner::of(&[manager.to_owned()]), now),
            Asks::Judged(changes) => changes,
            Asks::Later => panic!("every read is answered"),
        }
    };
    act(0, KCM, 0);
    let mut ended = Vec::new();
    for object in 1..=STAND_OFFS + 10 {
        let second = if object == 2 { 40 } else { 50 + u64::from(object > 5) };
        for _ in 0..PATTERN {
            ended.extend(act(object, "agent", second).ended);
        }
    }
    assert_eq!(ended.len(), 11);
    assert_eq!(ended[0], 2, "it was to end first");
    assert_eq!(writers.here.len(), STAND_OFFS);
    assert!(writers.here(&0).is_some_and(StandOff::is_proven));
    assert!(writers.here(&(STAND_OFFS + 10)).is_some(), "the last one stands off");
    assert!(writers.acts.len() <= OBJECTS + STAND_OFFS);
    // The one that gave way takes a pattern again.
    let later = start + Duration::from_secs(55);
    assert_eq!(writers.note(&2, FIELD, later), Asks::Judged(Changes { acts: 1, ..Changes::default() }));
}

#[test]
fn s14_one_object_is_not_read_again_before_it_is_time_nor_while_it_is_read() {
    let start = Instant::now();
    let at = |second| start + Duration::from_secs(second);
    let mut writers = SecondWriters::default();
    assert_eq!(writers.note(&"n1", FIELD, at(0)), Asks::Read);
    assert_eq!(writers.note(&"n1", FIELD, at(1)), Asks::Later);
    assert_eq!(writers.note(&"n1", FIELD, at(2)), Asks::Later);
    // What was not read at the time is judged with the answer, and counted.
    let changes = writers.learn(&"n1", &Owner::Unknown, at(3));
    assert_eq!((changes.begun, changes.acts), (vec!["n1"], 3));
    assert!(writers.learn(&"n1", &Owner::Controller(KCM.to_owned()), at(4)).is_empty(), "nobody asked");
    assert_eq!(writers.note(&"n1", FIELD, at(32)), Asks::Judged(Changes { acts: 1, ..Changes::default() }));
    assert_eq!(writers.note(&"n1", FIELD, at(33)), Asks::Read);
    // An answer that never came.
    assert_eq!(writers.note(&"n1", FIELD, at(93)), Asks::Read);
}

#[test]
fn s41_a_stand_off_says_who_wrote_what() {
    let stand_off =
        |owner| StandOff { object: "node/n1".to_owned(), field: FIELD, owner, until: Instant::now() };
    let known = stand_off(Owner::Controller(KCM.to_owned()));
    assert_eq!(known.to_string(), "kube-controller-manager wrote status.volumesAttached of node/n1");
    assert_eq!(
        known.act(),
        "kube-controller-manager wrote status.volumesAttached",
        "S41: the object may be another's"
    );
    assert!(known.is_proven());
    let shown = known.json("2026-01-01T00:00:00.5Z".parse().unwrap());
    assert_eq!(shown["until"], "2026-01-01T00:00:00Z");
    assert_eq!(shown["manager"], KCM);
    let unknown = stand_off(Owner::Unknown);
    assert_eq!(unknown.to_string(), "an unknown manager wrote status.volumesAttached of node/n1");
    assert!(!unknown.is_proven());
}
