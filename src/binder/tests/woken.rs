//! Whom a change of another object wakes, and whom it does not.

use apiserver::kinds::StorageClass;

use super::*;

const MINUTE: Duration = Duration::from_mins(1);

fn class(name: &str, mode: &str, revision: u64) -> StorageClass {
    decode(&json!({
        "metadata": {"name": name, "resourceVersion": revision.to_string()},
        "provisioner": "vendor.com/v", "volumeBindingMode": mode,
    }))
}

fn comes(planner: &mut Recording, class: &StorageClass, now: Instant) {
    planner.state.objects.apply(class.clone());
    planner.changed(&ObjectRef::Class(class.key()), now);
}

fn goes(planner: &mut Recording, class: &StorageClass, now: Instant) {
    planner.state.objects.delete(class.clone());
    planner.changed(&ObjectRef::Class(class.key()), now);
}

/// Its fields cannot be changed: who wants it otherwise deletes it and makes it anew. Also of a claim that comes meanwhile.
#[test]
fn s28_a_class_that_is_away_for_a_moment_delays_the_bind_of_its_claims_as_before() {
    let mut free = volume("pv");
    free.spec.storage_class_name = Some("local".into());
    let of_class = |name| {
        let mut claim = claim(name);
        claim.spec.storage_class_name = Some("local".into());
        claim
    };
    for is_back in [true, false] {
        let (objects, mut planner) = planner(vec![], vec![of_class("c")]);
        let (local, mut now) = (class("local", "WaitForFirstConsumer", 5), Instant::now());
        comes(&mut planner, &local, now);
        objects.apply(free.clone());
        planner.changed(&ObjectRef::Volume("pv".into()), now);
        assert_eq!(planner.plan(now).ops, []);
        goes(&mut planner, &local, now);
        objects.apply(of_class("d"));
        planner.changed(&ObjectRef::Claim(ClaimKey::new("ns", "d")), now);
        let plan = planner.plan(now);
        assert_eq!((plan.ops, plan.wake_at), (vec![], Some(now + MINUTE)));
        assert_eq!(planner.waiting(), [("WaitingForFirstConsumer", 2)].into());
        now += MINUTE / 2;
        if is_back {
            comes(&mut planner, &class("local", "WaitForFirstConsumer", 6), now);
        }
        now += MINUTE;
        let plan = planner.plan(now);
        if is_back {
            assert_eq!((plan.ops, planner.waiting()["WaitingForFirstConsumer"]), (vec![], 2));
            continue;
        }
        planner.answered(only(plan), Err(CallError::NotFound("local".into())), now, 0.0);
        assert_eq!(only(planner.plan(now)).call.write_kind(), Some(WriteKind::ReserveVolume));
    }
}
