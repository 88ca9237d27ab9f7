//! The ways of who cannot hold kube-controller-manager's lease, or need not, and what others do meanwhile.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::{
    is_without_ruler,
    observe::{Renewals, restart},
    step::{Direction, FenceStanding, ManagerRestart, SwitchOrder, SwitchSeen, SwitchStep, next},
    tests::{Case, check, holding, order, ruled_by_mooring, ruled_by_the_manager, stopped},
};
use crate::preflight::facts::whole_server;

#[expect(clippy::too_many_lines, reason = "a table")]
#[test]
fn who_cannot_hold_the_managers_lease_goes_one_way_or_restarts_it() {
    use ManagerRestart::{Other, Same, Unseen};
    use SwitchStep::{
        AwaitLeader, AwaitRestart, AwaitStop, Done, Drain, FindManager, LowerFence, ProveOpen, RaiseFence,
        RecordManager, Stop, StopDaemon,
    };
    fn unwritable(seen: &mut SwitchSeen) {
        seen.manager.unwritable = Some("leases is forbidden".into());
    }
    let cases: Vec<Case> = vec![
        ("the fence stays down", unwritable, Stop("leases is forbidden; get the rights".into())),
        (
            "the fence is up already",
            |seen| {
                unwritable(seen);
                seen.fence = FenceStanding::Up { proven: true };
            },
            AwaitLeader,
        ),
    ];
    check(order(Direction::Mooring), ruled_by_the_manager, cases);
    let one_way = SwitchOrder { one_way: true, ..order(Direction::Mooring) };
    check(one_way, ruled_by_the_manager, vec![("one way", unwritable, RaiseFence)]);

    let cases: Vec<Case> = vec![
        (
            "mooring goes on ruling",
            |seen| {
                unwritable(seen);
                seen.daemon.drains = false;
            },
            Drain(Vec::new()),
        ),
        ("it has finished what it began", unwritable, StopDaemon),
        (
            "it has stopped",
            |seen| {
                unwritable(seen);
                stopped(seen);
            },
            RecordManager,
        ),
        (
            "it has stopped, and nobody has the lease",
            |seen| {
                unwritable(seen);
                stopped(seen);
                (seen.manager.renews, seen.manager.may_lead) = (false, false);
            },
            RecordManager,
        ),
        (
            "who leads is on record",
            |seen| {
                unwritable(seen);
                stopped(seen);
                seen.manager.restart = Same;
            },
            Stop("leases is forbidden; run this again with --manager-was-restarted".into()),
        ),
        (
            "nothing is fenced off",
            |seen| {
                unwritable(seen);
                (seen.daemon.leads, seen.daemon.may_lead, seen.daemon.has_led) = (false, false, false);
                seen.fence = FenceStanding::Absent { proven: true };
            },
            StopDaemon,
        ),
    ];
    check(order(Direction::KubeControllerManager), ruled_by_mooring, cases);

    let restarted = SwitchOrder { manager_restarted: true, ..order(Direction::KubeControllerManager) };
    let cases: Vec<Case> = vec![
        ("restarted too early", |_| {}, Stop("counts after mooring has stopped".into())),
        ("the last leader finishes", |seen| seen.daemon.replicas = Some(0), AwaitStop),
        ("nobody has recorded who led", stopped, RecordManager),
        (
            "not restarted yet",
            |seen| {
                stopped(seen);
                (seen.manager.restart, seen.manager.led) = (Same, Some(Duration::ZERO));
            },
            AwaitRestart,
        ),
        (
            "the same holder, who may be gone",
            |seen| {
                stopped(seen);
                (seen.manager.restart, seen.manager.renews) = (Same, false);
            },
            FindManager,
        ),
        (
            "another holder, which leads since a moment ago",
            |seen| {
                unwritable(seen);
                stopped(seen);
                (seen.manager.restart, seen.manager.led) = (Other, Some(Duration::from_secs(4)));
            },
            LowerFence,
        ),
        (
            "another holder, which has led behind the fence",
            |seen| {
                stopped(seen);
                (seen.manager.restart, seen.manager.led) = (Other, Some(Duration::from_secs(5)));
            },
            AwaitRestart,
        ),
        (
            "likewise, and a run that was cut off had begun to free it",
            |seen| {
                stopped(seen);
                (seen.manager.restart, seen.manager.led) = (Other, Some(Duration::from_mins(3)));
                seen.manager.is_being_freed = true;
            },
            LowerFence,
        ),
        (
            "likewise, so long ago that it may take volumes off by force",
            |seen| {
                stopped(seen);
                (seen.manager.restart, seen.manager.led) = (Other, Some(Duration::from_mins(4)));
                seen.manager.is_being_freed = true;
            },
            AwaitRestart,
        ),
        (
            "another holder, nobody knows since when",
            |seen| {
                stopped(seen);
                seen.manager.restart = Other;
            },
            AwaitRestart,
        ),
        (
            "this run has taken the fence down for it, and a server denies yet",
            |seen| {
                stopped(seen);
                (seen.manager.restart, seen.manager.led) = (Other, Some(Duration::from_secs(6)));
                seen.fence = FenceStanding::Partial("its objects are gone".into());
            },
            LowerFence,
        ),
        (
            "somebody else takes the fence down, and it was not restarted",
            |seen| {
                stopped(seen);
                (seen.manager.restart, seen.manager.led) = (Same, Some(Duration::from_hours(1)));
                seen.fence = FenceStanding::Partial("its objects are gone".into());
            },
            AwaitRestart,
        ),
        (
            "nobody renews the lease",
            |seen| {
                stopped(seen);
                seen.manager.restart = Unseen;
            },
            LowerFence,
        ),
        (
            "nobody does, and nobody has recorded that",
            |seen| {
                stopped(seen);
                (seen.manager.renews, seen.manager.may_lead) = (false, false);
            },
            LowerFence,
        ),
        (
            "the fence was taken down by hand",
            |seen| {
                stopped(seen);
                seen.daemon.has_led = true;
                seen.fence = FenceStanding::Absent { proven: true };
            },
            LowerFence,
        ),
        (
            "the fence was taken down by hand, and the process leads that led before",
            |seen| {
                stopped(seen);
                (seen.daemon.has_led, seen.manager.restart) = (true, Same);
                seen.fence = FenceStanding::Absent { proven: true };
            },
            AwaitRestart,
        ),
        (
            "one server still denies",
            |seen| {
                stopped(seen);
                seen.fence = FenceStanding::Absent { proven: false };
            },
            ProveOpen,
        ),
        (
            "none does",
            |seen| {
                stopped(seen);
                seen.fence = FenceStanding::Absent { proven: true };
                seen.manager.leads = false;
            },
            Done,
        ),
    ];
    check(restarted, ruled_by_mooring, cases);
}

#[test]
fn no_lease_is_taken_whose_holder_is_the_whole_server() {
    // RKE2 runs it as a static pod, as kubeadm does; MicroK8s is one process, as k3s is.
    let whole = |programs: &[&str]| {
        let entries: Vec<_> = programs.iter().map(|program| json!({ "manager": program })).collect();
        whole_server(&json!({ "metadata": { "managedFields": entries } })).is_some()
    };
    let found =
        [&["k3s"][..], &["kubelite"], &["mooring", "k3s"], &["kube-controller-manager"], &[]].map(whole);
    assert_eq!(found, [true, true, true, false, false]);
}

#[test]
fn a_restart_is_seen_by_another_holder_since_mooring_led_last() {
    use ManagerRestart::{Other, Same, Unrecorded, Unseen};
    // What was recorded, holder and last write of mooring's lease now, whether the lease is held, and what that shows.
    let cases = [
        (None, "m1_a 7", true, Unrecorded),
        (Some("m1_a 7"), "m1_a 7", true, Same),
        (Some("m1_a 7"), "m1_b 7", true, Other),
        (Some("m1_a 7"), "m1_b 9", true, Unrecorded),
        (Some("m1_a 7"), "m1_a 7", false, Unseen),
        (None, " 7", false, Unrecorded),
        (Some(" 7"), " 7", false, Unseen),
        (Some(" 7"), "m1_a 7", true, Other),
    ];
    for (recorded, mark, may_lead, expected) in cases {
        assert_eq!(restart(recorded, mark, may_lead), expected, "{recorded:?} {mark}");
    }
}

#[test]
fn how_long_a_holder_has_led_is_known_once_it_renews_and_needs_no_clock_of_ours() {
    let lease = |holder: &str, acquired: &str, renewed: &str| {
        let time = |seconds: &str| format!("2020-01-01T00:00:{seconds}Z");
        json!({ "spec": {
            "holderIdentity": holder, "acquireTime": time(acquired), "renewTime": time(renewed), "leaseDurationSeconds": 15,
        } })
    };
    let (start, mut renewals) = (Instant::now(), Renewals::default());
    // When it is looked at, what is found, and for how long the holder has led.
    let cases = [
        (0, lease("a", "00.000000", "30.000000"), None),
        (1, lease("a", "00.000000", "30.000000"), None),
        (2, lease("a", "00.000000", "32.000000"), Some(32)),
        (3, lease("a", "00.000000", "32.000000"), Some(33)),
        (4, lease("b", "40.500000", "40.500000"), Some(0)),
        (6, lease("b", "40.500000", "42.500000"), Some(2)),
        (30, lease("b", "40.500000", "42.500000"), None),
        (31, json!({ "spec": { "holderIdentity": "" } }), None),
        (32, lease("c", "50.000000", "52.000000"), None),
        (33, lease("c", "55.000000", "53.000000"), None),
        (34, json!({ "spec": { "holderIdentity": "c", "renewTime": "2020-01-01T00:00:54Z" } }), None),
    ];
    for (seconds, lease, led) in cases {
        let now = start + Duration::from_secs(seconds);
        renewals.note(&lease, now);
        assert_eq!(renewals.led(&lease, now), led.map(Duration::from_secs), "{lease}");
    }
}

/// The binder of kube-controller-manager writes what each object asks for, at the revision that it has seen.
#[test]
fn without_attach_detach_no_process_has_to_end_and_nobody_needs_the_lease() {
    use SwitchStep::{AwaitStop, Done, LowerFence, ProveOpen, RaiseFence, ReachServers, StopDaemon};
    fn unheld(seen: &mut SwitchSeen) {
        seen.remembers = false;
        (seen.manager.renews, seen.manager.unwritable) = (false, Some("403".into()));
    }
    let over: Vec<Case> = vec![("it stands by", unheld, RaiseFence)];
    check(order(Direction::Mooring), ruled_by_the_manager, over);
    let back: Vec<Case> = vec![
        (
            "it rules, and has not drained",
            |seen| {
                unheld(seen);
                seen.daemon.drains = false;
            },
            StopDaemon,
        ),
        (
            "it rules, and not every server is seen",
            |seen| {
                unheld(seen);
                seen.fence = FenceStanding::Up { proven: false };
            },
            ReachServers,
        ),
        (
            "its last leader finishes",
            |seen| {
                unheld(seen);
                seen.daemon.replicas = Some(0);
            },
            AwaitStop,
        ),
        (
            "it has stopped",
            |seen| {
                unheld(seen);
                stopped(seen);
            },
            LowerFence,
        ),
        (
            "a server denies yet",
            |seen| {
                unheld(seen);
                stopped(seen);
                (seen.fence, seen.daemon.has_led) = (FenceStanding::Absent { proven: false }, true);
            },
            ProveOpen,
        ),
        (
            "none does",
            |seen| {
                unheld(seen);
                stopped(seen);
                (seen.fence, seen.daemon.has_led) = (FenceStanding::Absent { proven: true }, true);
            },
            Done,
        ),
        (
            "none does, and kube-controller-manager has no lease",
            |seen| {
                unheld(seen);
                stopped(seen);
                (seen.fence, seen.daemon.has_led) = (FenceStanding::Absent { proven: true }, true);
                seen.manager.leads = false;
            },
            Done,
        ),
        (
            "it rules without --fence behind the fence",
            |seen| {
                unheld(seen);
                seen.daemon.is_fenced = false;
            },
            StopDaemon,
        ),
    ];
    let order =
        SwitchOrder { max_pause: Some(Duration::from_secs(1)), ..order(Direction::KubeControllerManager) };
    check(order, ruled_by_mooring, back);
}

#[test]
fn back_what_others_do_meanwhile_ends_it_and_who_never_led_leaves_nothing_under_way() {
    use SwitchStep::{HoldLease, Stop, StopDaemon};
    let cases: Vec<Case> = vec![
        (
            "the Deployment has its replicas back, whoever holds the lease",
            |seen| {
                holding(seen, 5);
                (seen.daemon.replicas, seen.daemon.is_restored) = (Some(2), true);
            },
            Stop("given the Deployment its replicas back".into()),
        ),
        (
            "the Deployment has lost its flag",
            |seen| (seen.daemon.is_fenced, seen.daemon.drains) = (false, false),
            Stop("nobody hears that it is to begin nothing new".into()),
        ),
        (
            "mooring never came to lead",
            |seen| {
                (seen.daemon.leads, seen.daemon.may_lead, seen.daemon.has_led) = (false, false, false);
                seen.daemon.drains = false;
            },
            StopDaemon,
        ),
        (
            "it has stopped, and had never come to lead",
            |seen| {
                stopped(seen);
                seen.daemon.has_led = false;
            },
            HoldLease,
        ),
    ];
    check(order(Direction::KubeControllerManager), ruled_by_mooring, cases);
}

#[test]
fn over_with_one_more_loop_nobody_runs_that_until_the_rollout_is_over() {
    let mut seen = ruled_by_mooring();
    // Whether it rolls out, what is next, whether this run has raised the fence, and whether a loop stands still.
    let cases = [
        (true, SwitchStep::RaiseFence, false, true),
        (true, SwitchStep::AwaitRollout, true, true),
        (false, SwitchStep::Done, true, false),
        (true, SwitchStep::AwaitRollout, false, false),
    ];
    for (rolls, step, has_raised, expected) in cases {
        seen.daemon.rolls = rolls;
        let stands_still = is_without_ruler(Direction::Mooring, &seen, (&step, has_raised));
        assert_eq!(stands_still, expected, "{step:?}");
    }
}

#[test]
fn a_fence_that_is_gone_is_raised_again_before_the_way_back() {
    let seen = SwitchSeen { fence: FenceStanding::Absent { proven: true }, ..ruled_by_mooring() };
    let step = next(order(Direction::KubeControllerManager), &seen);
    assert!(matches!(&step, SwitchStep::Stop(why) if why.contains("a fence that is gone")), "{step:?}");
}
