use super::*;
use crate::pulse::beat;

#[tokio::test(start_paused = true)]
async fn l14_no_lease_is_held_or_taken_for_a_thread_that_stands_still() {
    let server = Server::default();
    let leadership = Leadership::new(Term::None).with_reserve(TIMING.reserve());
    let pulse = Progress::default();
    let beating = tokio::spawn(beat(pulse.clone(), Some(TIMING)));
    let run = |identity| {
        let shared = Surroundings { pulse: Some(pulse.clone()), ..Surroundings::default() };
        let elector = server.elector(identity, &leadership, TIMING, shared);
        tokio::spawn(elector.run(ready(()), async {}, CancellationToken::new()))
    };
    let first = run("a");
    timeout(Duration::from_secs(FIRST + 1), leadership.acquired()).await.expect("it leads");
    seconds(600).await;
    assert_eq!(server.holder(), "a");

    beating.abort();
    let stopped = Instant::now();
    let error = timeout(Duration::from_mins(1), first).await.expect("it ends").unwrap().unwrap_err();
    let expected =
        "lease kube-system/mooring given back: the thread that watches and decides has stood still for ";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert!(stopped.elapsed() + Duration::from_secs(5) < TIMING.lease_duration, "{:?}", stopped.elapsed());
    assert_eq!((server.holder().as_str(), leadership.term()), ("", Term::None));

    let second = run("b");
    seconds(600).await;
    assert_eq!(server.holder(), "");
    second.abort();
}
