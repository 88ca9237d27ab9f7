use std::collections::BTreeSet;

use super::*;

const KCM: &str = "kube-controller-manager";

impl WrittenObject for &'static str {
    fn field(&self) -> &'static str {
        "status.volumesAttached"
    }

    fn kind(&self) -> &'static str {
        "changed"
    }
}

impl WrittenObject for usize {
    fn field(&self) -> &'static str {
        "status.phase"
    }

    fn kind(&self) -> &'static str {
        "changed"
    }
}

fn learn(writers: &mut SecondWriters<&'static str>, object: &'static str, manager: &str, now: Instant) {
    let managers: Vec<String> = manager.split_whitespace().map(str::to_owned).collect();
    let had = writers.signal().is_some();
    let begins = writers.learn(&object, &managers, now);
    assert_eq!(begins, !had && writers.signal().is_some());
}

/// Plays acts, each `(second, object, manager)`, every read being answered at once, and returns when the signal begins
/// and ends.
fn play(acts: &[(u64, &'static str, &str)]) -> Vec<u64> {
    let start = Instant::now();
    let mut writers = SecondWriters::<&'static str>::default();
    let end = acts.last().map_or(0, |(second, ..)| *second) + 1_300;
    let mut seen = Vec::new();
    let mut acts = acts.iter().peekable();
    for second in 0..end {
        let now = start + Duration::from_secs(second);
        let had = writers.signal().is_some();
        assert_eq!(writers.settle(now), had && writers.signal().is_none());
        while let Some((_, object, manager)) = acts.next_if(|(when, ..)| *when == second) {
            writers.note(object, &"u".into(), now);
            while let Some((object, _)) = writers.take_read(|_| true) {
                learn(&mut writers, object, manager, now);
            }
        }
        if had != writers.signal().is_some() {
            seen.push(second);
        }
        assert!(writers.ends_at().is_none_or(|at| at > now), "what is past is forgotten");
    }
    assert_eq!((writers.ends_at(), writers.evidence().count()), (None, 0));
    seen
}

#[test]
fn s14_a_controller_of_our_role_on_several_objects_is_a_signal_for_ten_minutes_and_nobody_else_is() {
    type Acts = &'static [(u64, &'static str, &'static str)];
    type Case = (&'static str, Acts, &'static [u64]);
    let cases: [Case; 17] = [
        ("an administrator's", &[(0, "n1", "kubectl-edit"), (60, "n2", "kubectl-edit")], &[]),
        (
            "a node's own agent, again and again",
            &[(0, "n9", "agent"), (40, "n9", "agent"), (80, "n9", "agent"), (300, "n9", "agent")],
            &[],
        ),
        ("many nodes' agents", &[(0, "n1", "agent"), (1, "n2", "agent"), (2, "n3", "agent")], &[]),
        ("nobody knows who", &[(0, "n1", ""), (10, "n2", ""), (20, "n3", "")], &[]),
        ("KCM on one object, again and again", &[(0, "n1", KCM), (40, "n1", KCM), (500, "n1", KCM)], &[]),
        ("KCM on several", &[(0, "n1", KCM), (10, "n2", KCM)], &[10, 610]),
        ("it goes on", &[(0, "n1", KCM), (10, "n2", KCM), (400, "n2", KCM)], &[10, 1_000]),
        (
            "it goes on, on one object",
            &[(0, "n1", KCM), (10, "n2", KCM), (500, "n2", KCM), (1_050, "n2", KCM)],
            &[10, 1_650],
        ),
        (
            "a person does not make it last",
            &[(0, "n1", KCM), (10, "n2", KCM), (400, "n3", "kubectl")],
            &[10, 610],
        ),
        ("nor does one of our name", &[(0, "n1", KCM), (10, "n2", KCM), (400, "n3", "mooring")], &[10, 610]),
        (
            "nor does one of our name on several take its place",
            &[
                (0, "n1", KCM),
                (10, "n2", KCM),
                (550, "n1", KCM),
                (560, "n3", "mooring"),
                (561, "n4", "mooring"),
                (562, "n5", "mooring"),
                (1_100, "n1", KCM),
            ],
            &[10, 1_700],
        ),
        (
            "nor is it forgotten for a person",
            &[(0, "n1", KCM), (40, "n1", "kubectl-edit"), (50, "n2", KCM)],
            &[50, 650],
        ),
        ("nor for one of our name", &[(0, "n1", KCM), (40, "n1", "mooring"), (50, "n2", KCM)], &[50, 650]),
        ("KCM among others", &[(0, "n1", "agent kube-controller-manager"), (10, "n2", "k3s")], &[10, 610]),
        ("KCM on several, at long intervals", &[(0, "n1", KCM), (700, "n2", KCM)], &[]),
        ("one of our name on two", &[(0, "n1", "mooring"), (1, "n2", "mooring")], &[]),
        (
            "another one of our name",
            &[(0, "n1", "mooring"), (1, "n2", "mooring"), (2, "n3", "mooring")],
            &[2, 602],
        ),
    ];
    for (name, acts, expected) in cases {
        assert_eq!(play(acts), expected, "{name}");
    }
}

#[test]
fn s14_the_last_writes_of_the_predecessor_are_no_acts() {
    let start = Instant::now();
    for (seconds, manager, is_act) in [(59, "mooring", false), (60, "mooring", true), (0, KCM, true)] {
        let mut writers = SecondWriters::default();
        writers.lead(start);
        let now = start + Duration::from_secs(seconds);
        for object in ["va1", "va2", "va3"] {
            learn(&mut writers, object, manager, now);
        }
        assert_eq!(writers.signal().is_some(), is_act, "{manager} after {seconds} s");
        let counted = writers.take_news().map_or(0, |news| news.counted("changed"));
        assert_eq!(counted, if is_act { 3 } else { 0 }, "{manager} after {seconds} s");
    }
}

#[test]
fn s14_reads_are_few_however_many_acts_there_are_and_each_act_is_counted() {
    let start = Instant::now();
    let mut writers = SecondWriters::<usize>::default();
    let mut read = |second| {
        let now = start + Duration::from_secs(second);
        (0..5_000).for_each(|node| writers.note(&node, &"u".into(), now));
        let mut read = BTreeSet::new();
        while let Some((object, _)) = writers.take_read(|_| true) {
            writers.learn(&object, &[KCM.to_owned()], now);
            read.insert(object);
        }
        (read.len(), writers.take_news().unwrap().counted("changed"))
    };
    assert_eq!(read(0), (READS, 5_000));
    assert_eq!(read(29), (0, 5_000));
    assert_eq!(read(30), (READS, 5_000));
}

#[test]
fn s14_an_object_is_read_before_it_is_written_to_unless_it_is_gone() {
    let now = Instant::now();
    let mut writers = SecondWriters::<&'static str>::default();
    for object in ["n1", "n2"] {
        writers.note(&object, &"u".into(), now);
        assert!(writers.has_to_read(&object));
    }
    writers.gone(&"n1");
    assert!(!writers.has_to_read(&"n1"));
    assert_eq!(writers.take_read(|object| *object == "n1"), None);
    assert_eq!(writers.take_read(|_| true), Some(("n2", "u".into())));
    assert!(!writers.has_to_read(&"n2"));
}

#[test]
fn s41_what_is_told_says_who_wrote_what() {
    let mut writers = SecondWriters::<&'static str>::default();
    assert_eq!(writers.take_news(), None);
    writers.learn(&"node/n1", &[KCM.to_owned()], Instant::now());
    let news = writers.take_news().unwrap();
    assert_eq!(news.counted("changed"), 1);
    assert_eq!(writers.take_news(), None);
    let [known] = &news.seen[..] else { panic!("{news:?}") };
    assert_eq!(known.to_string(), "kube-controller-manager wrote status.volumesAttached of node/n1");
    let act = "kube-controller-manager wrote status.volumesAttached";
    assert_eq!(known.act(), act, "S41: the object may be another's");
    let unknown = ForeignWrite { manager: None, ..known.clone() };
    assert_eq!(unknown.to_string(), "an unknown manager wrote status.volumesAttached of node/n1");
}
