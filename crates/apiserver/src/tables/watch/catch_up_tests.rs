//! A table is brought up to now: by what the watch brings, by a watch that is opened for it, or by a list.

use super::*;

fn bookmark(revision: u64) -> Value {
    event("BOOKMARK", &json!({"kind": "StorageClass", "metadata": {"resourceVersion": revision.to_string()}}))
}

/// More than a page of classes, at revision 20.
fn large() -> Answer {
    Answer::Page(20, "", (0..=FEW).map(|number| class(&format!("c{number}"), 10)).collect())
}

/// The page of one object that tells the revision of now.
fn now(revision: u64) -> Answer {
    Answer::Page(revision, "more", vec![class("c0", 10)])
}

/// A watch that brings nothing, as long as it may.
fn idle() -> Answer {
    open(vec![])
}

impl Stage {
    /// Catches up within so many seconds. Returns after how many.
    async fn catches_up_within(&self, seconds: u64) -> Option<u64> {
        let started = Instant::now();
        let limit = started + Duration::from_secs(seconds);
        let caught_up = catch_up::<StorageClass>(self.fetcher.clone(), &self.objects, &self.catch_ups);
        timeout_at(limit, caught_up).await.ok().map(|()| started.elapsed().as_secs())
    }

    fn asked(&self) -> Vec<String> {
        let script = self.script.lock();
        script.asked.iter().map(|(_, uri)| uri.split_once('?').unwrap().1.to_owned()).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn s19_a_bookmark_or_event_at_the_revision_of_now_proves_that_nothing_is_missing() {
    for told in [bookmark(30), event("MODIFIED", &class("c1", 31))] {
        let stage = stage(vec![large(), now(30)], vec![idle(), open(vec![told])]);
        stage.objects_listed().await;
        assert_eq!(stage.catches_up_within(5).await, Some(0));
        let asked = stage.asked();
        assert_eq!(asked[2], "limit=1");
        assert!(asked[3].contains("resourceVersion=20&timeoutSeconds=3"), "{asked:?}");
        assert_eq!(stage.lists().len(), 1, "what is large is not listed again");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_not_behind_is_left_alone() {
    let stage = stage(vec![large(), now(30)], vec![open(vec![bookmark(30)])]);
    stage.objects_listed().await;
    stage.pass(Duration::from_secs(1)).await;
    assert_eq!(stage.catches_up_within(5).await, Some(0));
    assert_eq!(stage.watches().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_about_to_bring_it_is_not_closed() {
    let stage = stage(vec![large(), now(30)], vec![Answer::Later(event("MODIFIED", &class("c1", 30)))]);
    stage.objects_listed().await;
    stage.pass(Answer::LATER.mul_f64(0.98)).await;
    assert_eq!(stage.catches_up_within(5).await, Some(0));
    assert_eq!(stage.watches().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kind_of_one_page_is_listed() {
    let lists =
        vec![Answer::Page(20, "", vec![class("a", 10)]), now(30), Answer::Page(33, "", vec![class("b", 32)])];
    let stage = stage(lists, vec![idle()]);
    stage.objects_listed().await;
    stage.pass(Duration::from_secs(2)).await;
    assert_eq!(stage.catches_up_within(5).await, Some(0));
    assert_eq!(stage.names(), ["b"]);
    assert!(stage.shows("mooring_watch_lists_total{cause=\"behind\",resource=\"storageclasses\"} 1"));
}

/// Most pods have no volume and are not kept, and a list has them all.
#[tokio::test(start_paused = true)]
async fn l14_what_is_large_to_list_is_not_listed_because_few_of_it_are_kept() {
    let gone = (0..10).map(|number| event("DELETED", &class(&format!("c{number}"), 21))).collect();
    let stage = stage(vec![large(), now(30)], vec![open(gone), open(vec![bookmark(30)])]);
    stage.objects_listed().await;
    stage.pass(Duration::from_secs(1)).await;
    assert!(stage.names().len() < FEW);
    assert_eq!(stage.catches_up_within(5).await, Some(0));
    assert_eq!(stage.lists().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_watch_cannot_prove_is_listed() {
    let short = || Answer::Watch(vec![], false);
    // A server without bookmarks, one that no longer knows the events, and one whose bookmark is behind, too.
    for watches in [
        vec![idle(), short()],
        vec![idle(), Answer::Error(410, "Expired", 0)],
        vec![idle(), Answer::Watch(vec![bookmark(25)], false), short()],
    ] {
        let stage = stage(vec![large(), now(30), Answer::Page(30, "", vec![class("c", 28)])], watches);
        stage.objects_listed().await;
        assert!(stage.catches_up_within(5).await.is_some());
        assert_eq!((stage.names(), stage.lists().len()), (vec!["c".to_owned()], 2));
    }
}

#[tokio::test(start_paused = true)]
async fn events_that_take_longer_than_one_watch_are_no_reason_to_list() {
    let cut = |revision| Answer::Watch(vec![event("MODIFIED", &class("c1", revision))], false);
    let watches = vec![idle(), cut(22), cut(24), cut(30), idle()];
    let stage = stage(vec![large(), now(30)], watches);
    stage.objects_listed().await;
    assert!(stage.catches_up_within(5).await.is_some());
    assert_eq!(stage.lists().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn one_api_server_of_several_that_hangs_costs_seconds() {
    // The revision, the watch, and a page of the list hang once each.
    let lists = vec![
        large(),
        Answer::Silence,
        now(30),
        Answer::Page(30, "next", vec![]),
        Answer::Silence,
        Answer::Page(30, "", vec![class("c", 28)]),
    ];
    let stage = stage(lists, vec![idle(), Answer::Hole, Answer::Watch(vec![], false), idle()]);
    stage.objects_listed().await;
    let progress = stage.catch_ups.progress();
    let caught_up = stage.catches_up_within(40).await.unwrap();
    assert!((18..22).contains(&caught_up), "{caught_up} s");
    assert_eq!(stage.names(), ["c"]);
    assert!(progress.last().elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn nobody_catches_up_with_a_server_that_does_not_answer_and_there_is_no_progress() {
    let stage = stage(vec![large(), Answer::Silence], vec![idle(), Answer::Silence]);
    stage.objects_listed().await;
    let progress = stage.catch_ups.progress();
    assert_eq!(stage.catches_up_within(300).await, None);
    assert!(progress.last().elapsed() >= Duration::from_mins(5));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_no_progress() {
    let lists = vec![large(), now(30), Answer::Error(500, "InternalError", 0)];
    let stage = stage(lists, vec![idle(), Answer::Error(410, "Expired", 0)]);
    stage.objects_listed().await;
    let progress = stage.catch_ups.progress();
    assert_eq!(stage.catches_up_within(300).await, None);
    assert!(progress.last().elapsed() > Duration::from_mins(4));
}

#[tokio::test(start_paused = true)]
async fn e11_a_revision_of_now_below_what_was_watched_proves_a_restore() {
    let stage = stage(vec![large(), now(15)], vec![open(vec![bookmark(25)]), idle()]);
    stage.objects_listed().await;
    stage.pass(Duration::from_secs(1)).await;
    assert_eq!(stage.catches_up_within(60).await, None);
    assert!(stage.objects.restore_grace().left(Instant::now()).is_some());
}
