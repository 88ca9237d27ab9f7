use super::*;

/// Where the note of a leader is.
const NOTE: &str = "example.com/note";

const TIMING: Timing = Timing {
    lease_duration: Duration::from_secs(15),
    renew_deadline: Duration::from_secs(10),
    retry_period: Duration::from_secs(2),
};

/// Long past by the wall clock.
const OLD: &str = "1999-01-01T00:00:00.000000Z";

fn lease(holder: &str, renew_time: &str) -> Value {
    json!({
        "metadata": { "name": "mooring", "resourceVersion": "7", "labels": { "team": "storage" } },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "acquireTime": "2020-01-01T00:00:00.000000Z",
            "renewTime": renew_time,
            "leaseTransitions": 3,
            "strategy": "unknown to us",
        },
    })
}

fn given_up(renew_time: &str) -> Value {
    let mut lease = lease("", renew_time);
    lease["spec"]["leaseDurationSeconds"] = json!(1);
    lease
}

fn wall() -> Timestamp {
    "2026-01-02T03:04:05.000678Z".parse().unwrap()
}

/// What was read: whose lease, when it was renewed by the wall clock if not long ago, or what else.
fn read(words: &str) -> Option<Value> {
    match (words, words.strip_suffix(" in 2099")) {
        ("absent", _) => None,
        ("given up", _) => Some(given_up(OLD)),
        ("blank", _) => Some(lease("", OLD)),
        (_, Some(holder)) => Some(lease(holder, "2099-01-01T00:00:00.000000Z")),
        (holder, None) => Some(lease(holder, OLD)),
    }
}

/// Rows: a name; what was read in which second since start; the second in which it is judged; the action.
fn judge<const ROWS: usize>(rows: [(&str, &str, u64, Action); ROWS]) {
    let start = Instant::now();
    for (name, looks, now, expected) in rows {
        let mut observed = None;
        for look in looks.split(", ") {
            let (seconds, words) = look.split_once(' ').unwrap();
            let at = start + Duration::from_secs(seconds.parse().unwrap());
            observed = Some(Observed::update(observed.as_ref(), read(words), at));
        }
        let now = start + Duration::from_secs(now);
        assert_eq!(evaluate(&observed.unwrap(), now, "me", &TIMING, Fitness::Fit), expected, "{name}");
    }
}

/// Our own, seen now.
fn ours() -> Observed {
    Observed::update(None, Some(lease("me", OLD)), Instant::now())
}

fn wait(holder: &str) -> Action {
    Action::Wait { holder: holder.to_owned() }
}

fn take(from: &str) -> Action {
    Action::TakeOver { from: from.to_owned() }
}

#[test]
fn who_may_lead() {
    judge([
        ("absent: perhaps deleted a moment ago, and its holder leads on", "0 absent", 14, wait("")),
        ("absent for as long as a lease lasts: create", "0 absent, 9 absent", 15, Action::Create),
        ("ours: renew", "0 me", 0, Action::Renew),
        ("ours after a restart, expired: renew", "0 me", 60, Action::Renew),
        ("given up: take", "0 given up", 0, take("")),
        (
            "first look, long past by the wall clock: wait, we saw it change just now",
            "0 other",
            0,
            wait("other"),
        ),
        ("just before expiry", "0 other", 14, wait("other")),
        ("expired, although renewTime lies in the future", "0 other in 2099", 15, take("other")),
        ("looking again does not prolong it", "0 other, 10 other", 15, take("other")),
        ("a renewal does", "0 other, 10 other in 2099", 24, wait("other")),
        (
            "a renewal by a holder whose clock went back does, too",
            "0 other in 2099, 10 other",
            24,
            wait("other"),
        ),
        ("lost to another", "0 me, 10 other in 2099", 10, wait("other")),
    ]);
}

#[test]
fn s10_a_lease_that_was_deleted_or_blanked_is_left_to_its_holder_for_a_whole_lease() {
    judge([
        ("blanked by hand: its holder does not know yet", "0 blank", 14, wait("")),
        ("blanked long ago: take", "0 blank", 15, take("")),
        ("blanked by hand while another held it", "0 other, 1 blank", 15, wait("")),
        ("blanked by hand, then deleted", "0 other, 1 blank, 2 absent", 16, wait("")),
        ("blanked by hand while another held it, whose time is over", "0 other, 1 blank", 16, take("")),
        ("blanked by hand while it was ours: lost", "0 me, 1 blank", 1, wait("")),
        ("deleted: its holder does not know yet", "0 other, 1 absent", 15, wait("")),
        (
            "deleted, looked at again, and its holder's time is over: create",
            "0 other, 1 absent, 9 absent",
            16,
            Action::Create,
        ),
        ("deleted after it was given up: another may have led since", "0 given up, 1 absent", 15, wait("")),
        ("deleted and created by a third", "0 other, 1 absent, 2 third in 2099", 16, wait("third")),
    ]);
}

#[test]
fn s36_the_holders_own_duration_counts_if_it_is_longer_and_not_what_a_person_makes_shorter() {
    let start = Instant::now();
    // what the record says, from when on the lease is free
    for (recorded, free) in [(1, 15), (14, 15), (40, 40)] {
        let mut edited = lease("other", OLD);
        let observed = Observed::update(None, Some(edited.clone()), start);
        edited["spec"]["leaseDurationSeconds"] = json!(recorded);
        let at = |seconds| start + Duration::from_secs(seconds);
        let observed = Observed::update(Some(&observed), Some(edited), at(2));
        let after = |seconds: u64| evaluate(&observed, at(2 + seconds), "me", &TIMING, Fitness::Fit);
        assert_eq!(after(free - 1), wait("other"), "{recorded}");
        assert_eq!(after(free), take("other"), "{recorded}");
        let deleted = Observed::update(Some(&observed), None, at(3));
        assert_eq!(deleted.free_at(&TIMING), at(3 + free), "{recorded}");
    }
}

#[test]
fn a_renewal_changes_nothing_but_its_time() {
    let observed = ours();
    let mut expected = lease("me", "2026-01-02T03:04:05.000678Z");
    assert_eq!(renewal(&observed, "me", &TIMING, Notes::default(), wall()), Some(expected.clone()));

    // Taken by another: holder, acquisition and number of transitions, too.
    expected["spec"]["holderIdentity"] = json!("you");
    expected["spec"]["acquireTime"] = json!("2026-01-02T03:04:05.000678Z");
    expected["spec"]["leaseTransitions"] = json!(4);
    assert_eq!(renewal(&observed, "you", &TIMING, Notes::default(), wall()), Some(expected));
}

#[test]
fn a_renewal_is_a_change_although_the_wall_clock_stands_still() {
    let mut observed = ours();
    let mut times = Vec::new();
    for _ in 0..4 {
        let body = renewal(&observed, "me", &TIMING, Notes::default(), wall()).unwrap();
        times.push(body["spec"]["renewTime"].as_str().unwrap().to_owned());
        observed = Observed::update(Some(&observed), Some(body), Instant::now());
    }
    assert!(times.windows(2).all(|pair| pair[0] != pair[1]), "{times:?}");
}

#[test]
fn a_release_leaves_nobody_and_only_gives_up_what_is_ours() {
    let observed = ours();
    let body = released(&observed, "me", Notes::default(), wall()).unwrap();
    assert_eq!(body["spec"]["holderIdentity"], json!(""));
    assert_eq!(body["spec"]["leaseDurationSeconds"], json!(1));
    assert_eq!(body["spec"]["leaseTransitions"], json!(3));
    assert_eq!(body["metadata"]["resourceVersion"], json!("7"));
    assert_eq!(released(&observed, "you", Notes::default(), wall()), None);
}

#[test]
fn a_lease_without_a_spec_can_be_taken() {
    let start = Instant::now();
    let observed = Observed::update(None, Some(json!({"metadata": {"name": "mooring"}})), start);
    assert_eq!(evaluate(&observed, start + TIMING.lease_duration, "me", &TIMING, Fitness::Fit), take(""));
    let body = renewal(&observed, "me", &TIMING, Notes::default(), wall()).unwrap();
    assert_eq!(body["spec"]["holderIdentity"], json!("me"));
    assert_eq!(body["spec"]["leaseTransitions"], json!(1));
}

#[test]
fn m2_who_is_not_fit_leaves_the_lease_to_others() {
    let start = Instant::now();
    let aside = Action::StandAside;
    // the lease, seconds since it was seen, what one does that has not seen what there is or no fence, and a blind one
    let cases = [
        (None, 15, aside.clone(), aside.clone()),
        (None, 30, aside.clone(), Action::Create),
        (Some(given_up(OLD)), 14, aside.clone(), aside.clone()),
        (Some(given_up(OLD)), 15, aside.clone(), take("")),
        (Some(lease("other", OLD)), 15, aside.clone(), aside.clone()),
        (Some(lease("other", OLD)), 30, aside.clone(), take("other")),
        (Some(lease("me", OLD)), 0, Action::Renew, Action::Renew),
    ];
    for (object, seconds, unready, blind) in cases {
        let observed = Observed::update(None, object.clone(), start);
        let at = start + Duration::from_secs(seconds);
        let judge = |fitness| evaluate(&observed, at, "me", &TIMING, fitness);
        assert_eq!(judge(Fitness::Unready), unready, "{object:?} {seconds}");
        assert_eq!(judge(Fitness::Unfenced), unready, "{object:?} {seconds}");
        assert_eq!(judge(Fitness::Blind), blind, "{object:?} {seconds}");
    }
}

#[test]
fn e11_m2_notes_come_and_go_and_leave_others_alone() {
    let now = Instant::now();
    let see = |object: &Value| Observed::update(None, Some(object.clone()), now);
    let mut object = lease("me", OLD);
    object["metadata"]["annotations"] = json!({ "team": "storage" });
    let plain = object["metadata"]["annotations"].clone();
    let renew = |object: &Value, identity: &str, notes| {
        renewal(&see(object), identity, &TIMING, notes, wall()).unwrap()
    };
    let all =
        Notes { grace: Some(Duration::from_millis(61_200)), seeks_successor: true, for_successor: None };
    let noted = renew(&object, "me", all.clone());
    let annotations = json!({
        "team": "storage",
        "mooring.dev/restore-grace-seconds": "62",
        "mooring.dev/restore-grace-by": "me",
        "mooring.dev/successor-sought-by": "me",
    });
    assert_eq!(noted["metadata"]["annotations"], annotations);
    assert_eq!(see(&noted).grace_for("you"), Some(Duration::from_secs(62)));
    assert_eq!(see(&noted).grace_for("me"), None, "nobody inherits from itself");
    assert!(see(&noted).seeks_successor());

    // A standby answers, and does not do so twice.
    let answer = answered(&see(&noted), "you").unwrap();
    assert_eq!(answer["spec"], noted["spec"]);
    assert_eq!((see(&answer).successor(), see(&answer).seeks_successor()), (Some("you"), false));
    assert_eq!(see(&renew(&answer, "me", all.clone())).successor(), Some("you"));
    assert_eq!(renew(&answer, "me", Notes::default())["metadata"]["annotations"], plain);

    // Who takes it begins anew; who gives it up leaves what is left of the grace.
    let taken = renew(&answer, "you", Notes { seeks_successor: false, ..all.clone() });
    assert_eq!(see(&taken).successor(), None);
    assert!(see(&taken).grace_for("me").is_some() && !see(&taken).seeks_successor());
    let left = Notes { grace: Some(Duration::from_secs(5)), ..all.clone() };
    let released = released(&see(&answer), "me", left, wall()).unwrap();
    assert_eq!(
        (see(&released).grace_for("you"), see(&released).successor()),
        (Some(Duration::from_secs(5)), None)
    );

    // What an earlier holder asked for does not count.
    let mut stale = noted.clone();
    stale["spec"]["holderIdentity"] = json!("third");
    assert!(!see(&stale).seeks_successor());

    // Who saw a restore tells the holder, once.
    let warning = warned(&see(&object), "you", Duration::from_mins(5)).unwrap();
    assert_eq!(see(&warning).grace_for("me"), Some(Duration::from_mins(5)));
    assert_eq!(warned(&see(&warning), "you", Duration::from_mins(5)), None);
    let created = creation("ns", "mooring", "me", &TIMING, all, wall());
    assert_eq!(see(&created).grace_for("you"), Some(Duration::from_secs(62)));
    assert_eq!(
        creation("ns", "mooring", "me", &TIMING, Notes::default(), wall())["metadata"],
        json!({
            "name": "mooring", "namespace": "ns",
        })
    );
}

#[test]
fn s6_what_is_told_a_successor_is_of_the_last_term_or_proves_nothing() {
    let now = Instant::now();
    let see = |object: &Value| Observed::update(None, Some(object.clone()), now);
    let tells = |text: Option<&str>| Notes {
        for_successor: text.map(|text| (NOTE, Arc::from(text))),
        ..Notes::default()
    };
    let object = lease("me", OLD);
    assert_eq!(see(&object).told(NOTE, wall()), None);
    let renewed = renewal(&see(&object), "me", &TIMING, tells(Some("a b")), wall()).unwrap();
    assert_eq!(see(&renewed).told(NOTE, wall()), Some("a b"));
    let given_up = released(&see(&renewed), "me", tells(Some("c")), wall()).unwrap();
    assert_eq!(see(&given_up).told(NOTE, wall()), Some("c"));
    let hour = SignedDuration::from_hours(1);
    for clock in [wall() + hour, wall() - hour] {
        assert_eq!(
            (see(&renewed).told(NOTE, clock), see(&renewed).is_told_in_vain(NOTE, clock)),
            (None, true),
            "{clock}"
        );
    }
    // Who takes the lease and says nothing, as every other program does, makes what stands there one of the past.
    let taken = renewal(&see(&given_up), "you", &TIMING, tells(None), wall()).unwrap();
    assert_eq!((see(&taken).told(NOTE, wall()), see(&taken).is_told_in_vain(NOTE, wall())), (None, true));
    let none = renewal(&see(&taken), "you", &TIMING, tells(Some("")), wall()).unwrap();
    assert_eq!((see(&none).told(NOTE, wall()), see(&none).is_told_in_vain(NOTE, wall())), (None, false));
    for by_hand in ["", "a b", "-1 a", "4294967296000000000000 a", "1.0 a"] {
        let mut edited = renewed.clone();
        edited["metadata"]["annotations"][NOTE] = json!(by_hand);
        assert_eq!(
            (see(&edited).told(NOTE, wall()), see(&edited).is_told_in_vain(NOTE, wall())),
            (None, true),
            "{by_hand:?}"
        );
    }
}
