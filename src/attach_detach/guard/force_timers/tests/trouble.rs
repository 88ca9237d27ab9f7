//! What becomes of a ConfigMap that cannot be read or written.

use super::*;

#[test]
fn l16_s40_after_silence_it_is_tried_again_soon_and_after_refusals_ever_later() {
    for in_vain in [Verb::Get, Verb::Patch] {
        let cases = [(CallError::Unknown("cut".to_owned()), 4), (refused(), 122)];
        for (error, longest) in cases {
            let (mut store, mut process) = (Store::default(), Process::started(0));
            process.waits(1, "a");
            process.works_for(seconds(20), &mut store);
            if in_vain == Verb::Get {
                process = Process::started(0);
            }
            process.waits(2, "a");
            let mut pause = Duration::ZERO;
            for _ in 0..20 {
                let due = process.timers.due_at().unwrap_or(process.now).max(process.now);
                pause = due - process.now;
                process.pass(pause);
                while let Some(request) = process.next() {
                    let is_in_vain = request.verb == in_vain;
                    let answer = if is_in_vain { Err(error.clone()) } else { store.serve(request) };
                    process.take(answer);
                    if is_in_vain {
                        break;
                    }
                }
            }
            assert_eq!(pause, seconds(longest), "{in_vain:?}: {error}");
        }
    }
}

#[test]
fn s6_that_it_cannot_be_kept_stands_as_an_alarm_until_it_can() {
    let error = || CallError::Unknown("cut".to_owned());
    // What is in vain, how often until the alarm stands.
    let cases = [
        (Verb::Get, refused(), 1),
        (Verb::Create, refused(), 1),
        (Verb::Create, CallError::Conflict("stale".to_owned()), usize::MAX),
        (Verb::Get, error(), 3),
        (Verb::Create, error(), 3),
    ];
    for (in_vain, error, expected) in cases {
        let (mut store, mut process) = (Store::default(), Process::started(0));
        process.waits(1, "a");
        let mut count = 0;
        while process.timers.alarm().is_none() && count < 20 {
            process.pass(seconds(122));
            let request = process.next().expect("a request");
            let is_in_vain = request.verb == in_vain;
            count += usize::from(is_in_vain);
            let answer = if is_in_vain { Err(error.clone()) } else { store.serve(request) };
            process.take(answer);
        }
        assert_eq!(count, expected.min(20), "{in_vain:?}: {error}");
        if let Some(alarm) = process.timers.alarm() {
            assert!(alarm.starts_with("ConfigMap ns/c cannot be kept ("), "{alarm}");
        }
        process.pass(seconds(122));
        process.works(&mut store);
        assert_eq!((process.timers.alarm(), kept(&store).len()), (None, 1), "{in_vain:?}: {error}");
    }
}

#[test]
fn s6_that_it_cannot_be_written_is_no_alarm_any_more_once_nothing_is_left_to_write() {
    for was_written in [false, true] {
        let (mut store, mut process) = (Store::default(), Process::started(0));
        if was_written {
            process.waits(2, "a");
            process.works(&mut store);
        }
        store.refuses = true;
        process.waits(1, "a");
        process.works_for(seconds(10), &mut store);
        assert!(process.timers.alarm().is_some());
        process.timers.forget(&lun(1), &node());
        process.works_for(seconds(600), &mut store);
        // What is still to be written, such as a stamp, is still in vain.
        assert_eq!(process.timers.alarm().is_some(), was_written);
        process.waits(1, "a");
        process.works_for(seconds(600), &mut store);
        assert!(process.timers.alarm().is_some(), "and begins anew with the next wait");
    }
}

#[test]
fn s40_who_asks_to_wait_is_waited_for() {
    let mut process = Process::started(0);
    process.next().unwrap();
    process.take(Err(CallError::Throttled { message: String::new(), after: seconds(7) }));
    assert_eq!(process.timers.due_at(), Some(process.now + seconds(7)));
    assert_eq!(process.timers.alarm(), None);
}

#[test]
fn l16_after_a_write_whose_answer_was_lost_nothing_is_due_once_nothing_is_left_to_write() {
    let (mut store, mut process) = (Store::default(), Process::started(0));
    process.waits(1, UID);
    process.works(&mut store);
    process.timers.forget(&lun(1), &node());
    process.pass(WRITE_PERIOD);
    let request = process.next().unwrap();
    assert_eq!(request.verb, Verb::Patch);
    store.serve(request).unwrap();
    process.take(Err(CallError::Unknown("lost".to_owned())));
    process.works_for(seconds(60), &mut store);
    assert!(kept(&store).is_empty());
    assert_eq!(process.timers.due_at(), None);
}

#[test]
fn l16_after_a_refused_write_nothing_is_due_once_nothing_waits() {
    let (mut store, mut process) = (Store::default(), Process::started(0));
    process.waits(1, UID);
    let read = process.next().unwrap();
    let answer = store.serve(read);
    process.take(answer);
    assert_eq!(process.next().map(|request| request.verb), Some(Verb::Create));
    process.take(Err(refused()));
    process.timers.forget(&lun(1), &node());
    process.works_for(seconds(60), &mut store);
    assert_eq!(process.timers.due_at(), None);
}
