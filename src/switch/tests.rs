//! What is next, as a table for each direction; and a course over and back in which each step does what it is for.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    observe::FenceView,
    step::{
        DaemonStanding, Direction, FenceStanding, ManagerStanding, SwitchOrder, SwitchSeen, SwitchStep, next,
    },
};
use crate::fence::{
    policies::FENCES,
    state::{FenceLook, FenceState},
};

/// A cluster that kube-controller-manager rules, with mooring standing by.
pub(super) fn ruled_by_the_manager() -> SwitchSeen {
    SwitchSeen {
        fence: FenceStanding::Absent { proven: true },
        is_by_time: false,
        daemon: DaemonStanding {
            replicas: Some(2),
            ready: 2,
            running: 2,
            is_fenced: true,
            ..DaemonStanding::default()
        },
        manager: ManagerStanding {
            leads: true,
            renews: true,
            may_lead: true,
            lasts: Duration::from_secs(15),
            ..ManagerStanding::default()
        },
        unlisted: Vec::new(),
        holds: false,
        servers: (1, 1),
        remembers: true,
        unneeded: Vec::new(),
    }
}

/// A cluster that mooring rules.
pub(super) fn ruled_by_mooring() -> SwitchSeen {
    let mut seen = ruled_by_the_manager();
    (seen.fence, seen.holds) = (FenceStanding::Up { proven: true }, true);
    (seen.daemon.leads, seen.daemon.may_lead, seen.daemon.has_led) = (true, true, true);
    (seen.daemon.is_asked, seen.daemon.drains) = (true, true);
    seen
}

pub(super) type Case = (&'static str, fn(&mut SwitchSeen), SwitchStep);

pub(super) fn order(to: Direction) -> SwitchOrder {
    SwitchOrder { to, one_way: false, replace_fence: false, max_pause: None, manager_restarted: false }
}

pub(super) fn check(order: SwitchOrder, base: fn() -> SwitchSeen, cases: Vec<Case>) {
    for (name, change, expected) in cases {
        let mut seen = base();
        change(&mut seen);
        let found = next(order, &seen);
        match (&found, &expected) {
            (SwitchStep::Stop(why), SwitchStep::Stop(part))
            | (SwitchStep::StartAgain(why), SwitchStep::StartAgain(part)) => {
                assert!(why.contains(part), "{name}: {why}");
            }
            _ => assert_eq!(found, expected, "{name}"),
        }
    }
}

#[expect(clippy::too_many_lines, reason = "a table")]
#[test]
fn over_mooring_stands_by_before_the_fence_goes_up_and_leads_only_behind_it() {
    use SwitchStep::{
        AwaitDaemon, AwaitLeader, AwaitRollout, Done, FindManager, LowerUnneeded, ProveFence, RaiseFence,
        ReachServers, Resume, StartDaemon, Stop,
    };
    let cases: Vec<Case> = vec![
        ("nothing is there", |seen| seen.daemon = DaemonStanding::default(), Stop("no Deployment".into())),
        ("it would not wait", |seen| seen.daemon.is_fenced = false, Stop("without --fence".into())),
        ("it would rule unseen", |seen| seen.daemon.has_no_lease = true, Stop("--leader-elect=false".into())),
        (
            "the fence is another version's",
            |seen| {
                *seen = ruled_by_mooring();
                seen.fence =
                    FenceStanding::Other("it is of another version, raised by jane with mooring 0.1".into());
            },
            Stop(concat!("jane with mooring 0.1; this is mooring ", env!("CARGO_PKG_VERSION")).into()),
        ),
        ("it was stopped", |seen| seen.daemon.replicas = Some(0), StartDaemon),
        ("it is not ready", |seen| seen.daemon.ready = 0, AwaitDaemon),
        (
            "it starts behind the fence",
            |seen| (seen.daemon.ready, seen.fence) = (0, FenceStanding::Up { proven: false }),
            AwaitDaemon,
        ),
        (
            "it leads, and is not ready",
            |seen| {
                *seen = ruled_by_mooring();
                (seen.daemon.is_asked, seen.daemon.ready) = (false, 0);
            },
            Done,
        ),
        (
            "it waits for the rest of the fence, so it is not ready",
            |seen| (seen.daemon.ready, seen.fence) = (0, FenceStanding::Partial("x".into())),
            RaiseFence,
        ),
        ("nobody renews the lease", |seen| seen.manager.renews = false, FindManager),
        (
            "not every server was asked",
            |seen| seen.fence = FenceStanding::Absent { proven: false },
            ReachServers,
        ),
        ("it stands by", |_| {}, RaiseFence),
        ("a raise was cut off", |seen| seen.fence = FenceStanding::Partial("x".into()), RaiseFence),
        ("not every server is seen", |seen| seen.fence = FenceStanding::Up { proven: false }, ProveFence),
        ("it may lead", |seen| seen.fence = FenceStanding::Up { proven: true }, AwaitLeader),
        (
            "it leads",
            |seen| {
                *seen = ruled_by_mooring();
                seen.daemon.is_asked = false;
            },
            Done,
        ),
        (
            "it leads, and does not run a loop any more that is fenced off",
            |seen| {
                *seen = ruled_by_mooring();
                seen.daemon.is_asked = false;
                seen.unneeded = vec![&FENCES[1], &FENCES[5]];
            },
            LowerUnneeded(vec![&FENCES[1], &FENCES[5]]),
        ),
        (
            "likewise, and a leader of before may run it",
            |seen| {
                *seen = ruled_by_mooring();
                (seen.daemon.is_asked, seen.daemon.rolls) = (false, true);
                seen.unneeded = vec![&FENCES[2]];
            },
            AwaitRollout,
        ),
        (
            "a leader of before may not run a loop that was fenced off since",
            |seen| {
                *seen = ruled_by_mooring();
                (seen.daemon.is_asked, seen.daemon.rolls) = (false, true);
            },
            AwaitRollout,
        ),
        (
            "it does not run one that has to be a new process",
            |seen| {
                *seen = ruled_by_mooring();
                seen.unneeded = vec![&FENCES[2], &FENCES[0]];
            },
            Stop(
                "persistentvolume-attach-detach-controller is fenced off, and mooring does not run it".into(),
            ),
        ),
        ("a switch back was cut off", |seen| *seen = ruled_by_mooring(), Resume),
        ("nothing can be told", |seen| seen.fence = FenceStanding::Unknown("403".into()), Stop("403".into())),
    ];
    check(order(Direction::Mooring), ruled_by_the_manager, cases);
    let replacing = SwitchOrder { replace_fence: true, ..order(Direction::Mooring) };
    let cases: Vec<Case> = vec![
        ("it is replaced", |seen| seen.fence = FenceStanding::Other("x".into()), RaiseFence),
        (
            "it is replaced for a daemon that waits for it",
            |seen| (seen.daemon.ready, seen.fence) = (0, FenceStanding::Other("x".into())),
            RaiseFence,
        ),
    ];
    check(replacing, ruled_by_mooring, cases);
}

#[test]
fn what_only_time_speaks_for_is_told() {
    let lease = |second: u64| Some([("x".to_owned(), second.to_string())].into());
    for (to, state) in [
        (Direction::Mooring, FenceState::Enforced),
        (Direction::Mooring, FenceState::Absent),
        (Direction::KubeControllerManager, FenceState::Absent),
    ] {
        for (server, is_by_time) in [(Some("a".to_owned()), false), (None, true)] {
            let (mut view, start) = (FenceView::new(to), Instant::now());
            for second in [0, 1, 120] {
                let (states, server) = (vec![state.clone()], server.clone());
                let look = FenceLook { states, server, leases: lease(second), ..FenceLook::default() };
                view.take(&look, start + Duration::from_secs(second));
            }
            assert_eq!(view.is_by_time, is_by_time, "{to:?} {state:?}");
        }
    }
}

/// What a look shows, over and back, two seconds and two minutes after it was shown first.
#[test]
fn a_probe_that_others_refuse_shows_nothing_of_a_server() {
    let up = |proven| Some(FenceStanding::Up { proven });
    let open = |proven| Some(FenceStanding::Absent { proven });
    let (gone, other) = (|| FenceState::Gone("g".into()), || FenceState::Other("o".into()));
    // None is that it is not known, or not as it should be.
    let cases = [
        (vec![FenceState::Enforced, FenceState::Enforced], [up(true), up(true)], [up(true), up(true)]),
        (vec![FenceState::Absent, FenceState::Absent], [open(true), open(true)], [open(true), open(true)]),
        (vec![FenceState::Enforced, FenceState::Unknown("a webhook".into())], [None, None], [None, None]),
        (vec![FenceState::Enforced, FenceState::NotEnforced], [up(false), up(false)], [up(true), up(true)]),
        (vec![gone(), FenceState::Absent], [None, None], [up(true), up(true)]),
        (vec![other(), FenceState::Enforced], [None, None], [up(true), up(true)]),
        (vec![FenceState::Absent, FenceState::Unknown("u".into())], [None, None], [None, None]),
        (vec![FenceState::Absent, FenceState::HalfRead("u".into())], [None, None], [None, None]),
    ];
    for (states, over, back) in cases {
        for (to, expected) in [(Direction::Mooring, over), (Direction::KubeControllerManager, back)] {
            let (mut view, start) = (FenceView::new(to), Instant::now());
            let mut look = |seconds: u64| {
                let leases = Some([("x".to_owned(), seconds.to_string())].into());
                let look = FenceLook {
                    states: states.clone(),
                    server: Some("a".to_owned()),
                    leases,
                    ..FenceLook::default()
                };
                let standing = view.take(&look, start + Duration::from_secs(seconds)).0;
                let is_unread = states.iter().any(FenceState::is_unread);
                assert_eq!(matches!(standing, FenceStanding::Unknown(_)), is_unread, "{to:?} {states:?}");
                let is_known = matches!(standing, FenceStanding::Up { .. } | FenceStanding::Absent { .. });
                is_known.then_some(standing)
            };
            assert_eq!([look(0), look(120)], expected, "{to:?} {states:?}");
        }
    }
}

#[expect(clippy::too_many_lines, reason = "a table")]
#[test]
fn back_the_manager_is_freed_only_when_no_process_of_it_was_ever_denied() {
    use SwitchStep::{
        AwaitManager, AwaitStop, Done, Drain, FindManager, GiveLeaseUp, HoldLease, LowerFence, ProveOpen,
        ReachServers, StartAgain, Stop, StopDaemon,
    };
    let unlisted = || vec!["v1 on n1".to_owned()];
    let cases: Vec<Case> = vec![
        ("it rules", |_| {}, StopDaemon),
        ("nobody renews the lease", |seen| seen.manager.renews = false, FindManager),
        ("not every server is seen", |seen| seen.fence = FenceStanding::Up { proven: false }, ReachServers),
        (
            "whether it has ended cannot be seen",
            |seen| seen.daemon.has_no_lease = true,
            Stop("--leader-elect=false".into()),
        ),
        ("it was not asked to begin nothing new", |seen| seen.daemon.drains = false, Drain(Vec::new())),
        ("a volume is under way", |seen| seen.unlisted = vec!["v1 on n1".into()], Drain(unlisted())),
        (
            "there is no fence, and mooring has not ruled behind one: nothing is waited for",
            |seen| {
                seen.fence = FenceStanding::Absent { proven: true };
                (seen.daemon.leads, seen.daemon.may_lead, seen.daemon.has_led) = (false, false, false);
                seen.unlisted = vec!["v1 on n1".into()];
            },
            StopDaemon,
        ),
        (
            "it rules without a fence, beside a kube-controller-manager that has its loops off",
            |seen| {
                seen.fence = FenceStanding::Absent { proven: true };
                seen.daemon.is_fenced = false;
                seen.manager.off = vec!["persistentvolume-binder-controller"];
            },
            Stop("mooring rules without a fence".into()),
        ),
        (
            "likewise, and what a fresh kube-controller-manager would attach twice is named",
            |seen| {
                seen.fence = FenceStanding::Absent { proven: true };
                seen.daemon.is_fenced = false;
                seen.unlisted = vec!["v1 on n1".into()];
            },
            Stop("attach them a second time: v1 on n1; stop mooring".into()),
        ),
        (
            "likewise, and the pods of kube-controller-manager show its loops on",
            |seen| {
                seen.fence = FenceStanding::Absent { proven: true };
                (seen.daemon.is_fenced, seen.manager.is_on) = (false, true);
            },
            Stop("two rule now: stop mooring".into()),
        ),
        (
            "its flags switch a loop off that would be freed",
            |seen| seen.manager.off = vec!["persistentvolume-binder-controller"],
            Stop("nobody would do their work: persistentvolume-binder-controller".into()),
        ),
        (
            "likewise, where nothing is fenced off and mooring does not lead",
            |seen| {
                seen.fence = FenceStanding::Absent { proven: true };
                (seen.daemon.leads, seen.daemon.may_lead) = (false, false);
                seen.manager.off = vec!["persistentvolume-binder-controller"];
            },
            Stop("nobody would do their work".into()),
        ),
        (
            "it rules without a fence and without a lease that shows it",
            |seen| {
                seen.fence = FenceStanding::Absent { proven: true };
                (seen.daemon.is_fenced, seen.daemon.has_no_lease) = (false, true);
                (seen.daemon.leads, seen.daemon.may_lead) = (false, false);
                seen.manager.off = vec!["persistentvolume-binder-controller"];
            },
            Stop("mooring rules without a fence".into()),
        ),
        (
            "it has ruled, its fence is gone, and no replica leads at this moment",
            |seen| {
                seen.fence = FenceStanding::Absent { proven: true };
                (seen.daemon.leads, seen.daemon.may_lead) = (false, false);
            },
            Stop("may have been denied writes".into()),
        ),
        (
            "it has stopped, the objects are gone, and a server denies yet",
            |seen| {
                stopped(seen);
                seen.fence = FenceStanding::Partial("denies yet".into());
            },
            HoldLease,
        ),
        (
            "it has stopped, and this run has not reached each server",
            |seen| {
                stopped(seen);
                seen.fence = FenceStanding::Up { proven: false };
            },
            ReachServers,
        ),
        ("the last leader finishes", |seen| seen.daemon.replicas = Some(0), AwaitStop),
        (
            "it may lead on a node that is out of reach",
            |seen| {
                stopped(seen);
                seen.daemon.may_lead = true;
            },
            AwaitStop,
        ),
        (
            "a replica is left that does not lead",
            |seen| {
                stopped(seen);
                seen.daemon.running = 1;
            },
            AwaitStop,
        ),
        (
            "it runs from elsewhere",
            |seen| seen.daemon = DaemonStanding::default(),
            Stop("no Deployment".into()),
        ),
        ("it has stopped", stopped, HoldLease),
        (
            "it has stopped, and the lease is one that nobody renews",
            |seen| {
                stopped(seen);
                seen.manager.renews = false;
            },
            FindManager,
        ),
        (
            "the lease is ours, and this run has seen nobody else renew it",
            |seen| {
                holding(seen, 3);
                seen.manager.renews = false;
            },
            HoldLease,
        ),
        (
            "it has left something under way",
            |seen| {
                stopped(seen);
                (seen.unlisted, seen.daemon.has_led) = (vec!["v1 on n1".into()], true);
            },
            StartAgain("v1 on n1; mooring starts again".into()),
        ),
        (
            "likewise, and its lease is gone",
            |seen| {
                stopped(seen);
                seen.unlisted = vec!["v1 on n1".into()];
            },
            Stop("with --leave for each of them".into()),
        ),
        (
            "likewise, and without its fence it would not lead",
            |seen| {
                stopped(seen);
                seen.unlisted = vec!["v1 on n1".into()];
                seen.holds = false;
            },
            Stop("v1 on n1".into()),
        ),
        ("the lease is held, not for long enough", |seen| holding(seen, 19), HoldLease),
        ("the old leader has exited", |seen| holding(seen, 20), LowerFence),
        (
            "a lease of a minute is held, and its leader may try for nearly twice as long",
            |seen| {
                holding(seen, 119);
                seen.manager.lasts = Duration::from_mins(1);
            },
            HoldLease,
        ),
        (
            "it has exited, too",
            |seen| {
                holding(seen, 120);
                seen.manager.lasts = Duration::from_mins(1);
            },
            LowerFence,
        ),
        (
            "a lowering was cut off",
            |seen| {
                holding(seen, 3);
                seen.fence = FenceStanding::Partial("x".into());
            },
            HoldLease,
        ),
        ("one server still denies", |seen| open(seen, false), ProveOpen),
        ("none does", |seen| open(seen, true), GiveLeaseUp),
        (
            "somebody has taken it down before the old leader has exited",
            |seen| {
                open(seen, true);
                (seen.daemon.has_led, seen.manager.held) = (true, Some(Duration::from_secs(19)));
            },
            HoldLease,
        ),
        (
            "the old leader has exited, and nobody has noted it",
            |seen| {
                open(seen, true);
                (seen.daemon.has_led, seen.manager.held) = (true, Some(Duration::from_secs(20)));
            },
            LowerFence,
        ),
        (
            "mooring has stopped, and somebody has taken the fence down by hand",
            |seen| {
                open(seen, true);
                (seen.daemon.has_led, seen.manager) = (true, ruled_by_the_manager().manager);
            },
            Stop("run this again with --manager-was-restarted".into()),
        ),
        (
            "the lease is free",
            |seen| {
                open(seen, true);
                seen.manager.held = None;
            },
            AwaitManager,
        ),
        (
            "it leads",
            |seen| {
                open(seen, true);
                seen.manager = ruled_by_the_manager().manager;
            },
            Done,
        ),
        (
            "the lease was lost before it was proven",
            |seen| {
                open(seen, false);
                seen.manager = ruled_by_the_manager().manager;
            },
            ProveOpen,
        ),
        (
            "a server denies, and it leads",
            |seen| {
                stopped(seen);
                seen.fence = FenceStanding::Up { proven: true };
                seen.manager = ruled_by_the_manager().manager;
            },
            HoldLease,
        ),
        (
            "mooring is not installed any more",
            |seen| {
                *seen = ruled_by_the_manager();
                seen.daemon = DaemonStanding::default();
            },
            Done,
        ),
        (
            "it is not installed any more, has ruled, and somebody has taken the fence down by hand",
            |seen| {
                *seen = ruled_by_the_manager();
                seen.daemon = DaemonStanding { has_led: true, ..DaemonStanding::default() };
            },
            Stop("may have been denied writes".into()),
        ),
        (
            "it has ruled, was stopped and lost its flag, and somebody has taken the fence down by hand",
            |seen| {
                *seen = ruled_by_the_manager();
                seen.daemon =
                    DaemonStanding { replicas: Some(0), has_led: true, ..DaemonStanding::default() };
            },
            Stop("may have been denied writes".into()),
        ),
    ];
    check(order(Direction::KubeControllerManager), ruled_by_mooring, cases);
}

pub(super) fn stopped(seen: &mut SwitchSeen) {
    seen.daemon = DaemonStanding { replicas: Some(0), is_fenced: true, ..DaemonStanding::default() };
}

pub(super) fn holding(seen: &mut SwitchSeen, seconds: u64) {
    stopped(seen);
    (seen.manager.leads, seen.manager.held) = (false, Some(Duration::from_secs(seconds)));
}

pub(super) fn open(seen: &mut SwitchSeen, proven: bool) {
    holding(seen, 21);
    seen.fence = FenceStanding::Absent { proven };
}

#[test]
fn what_does_not_come_is_waited_for_a_while() {
    let seen = SwitchSeen { servers: (1, 3), ..ruled_by_mooring() };
    let after = |step: &SwitchStep, seconds: u64| step.given_up(Duration::from_secs(seconds), &seen);
    let cases = [
        (SwitchStep::AwaitLeader, 60, "logs deployment/mooring"),
        (SwitchStep::AwaitRollout, 180, "rollout status"),
        (SwitchStep::FindManager, 60, "--manager-was-restarted"),
        (SwitchStep::AwaitRestart, 180, "while it waits"),
        (SwitchStep::ProveFence, 180, "(1 of 3)"),
        (SwitchStep::ProveOpen, 180, "(1 of 3)"),
        (SwitchStep::ReachServers, 180, "(1 of 3)"),
        (SwitchStep::Drain(vec!["v1 on n1".into()]), 180, "v1 on n1"),
    ];
    for (step, seconds, part) in cases {
        assert_eq!(after(&step, seconds - 1), None, "{step:?}");
        assert!(after(&step, seconds).unwrap().contains(part), "{step:?}");
    }
    assert_eq!(after(&SwitchStep::AwaitStop, 600), None);
    let mut held = seen.clone();
    for (seconds, step) in [(199, SwitchStep::ProveOpen), (200, SwitchStep::LowerFence)] {
        holding(&mut held, seconds);
        let told = step.given_up(Duration::ZERO, &held);
        assert_eq!(told.is_some_and(|told| told.contains("left to expire")), seconds == 200, "{seconds}");
    }
}

#[test]
fn a_pause_that_would_be_too_long_is_refused_before_anything_is_stopped() {
    let after = |seconds: u64| {
        let max_pause = Some(Duration::from_secs(seconds));
        let order = SwitchOrder { max_pause, ..order(Direction::KubeControllerManager) };
        next(order, &ruled_by_mooring())
    };
    assert!(matches!(after(24), SwitchStep::Stop(why) if why.contains("for about 25 s")));
    assert_eq!(after(25), SwitchStep::StopDaemon);
    // Servers that cannot be told apart are proven by two minutes.
    let max_pause = Some(Duration::from_secs(144));
    let order = SwitchOrder { max_pause, ..order(Direction::KubeControllerManager) };
    let seen = SwitchSeen { servers: (0, 3), ..ruled_by_mooring() };
    assert!(matches!(next(order, &seen), SwitchStep::Stop(why) if why.contains("for about 145 s")));
}
