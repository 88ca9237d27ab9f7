//! When a kind counts as blind: nothing shows that what is watched is told.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_watch_that_opens_and_delivers_nothing_leaves_the_kind_blind_until_one_does() {
    let bookmark = || open(vec![event("BOOKMARK", &json!({"metadata": {"resourceVersion": "20"}}))]);
    let error = event("ERROR", &json!({"kind": "Status", "code": 500, "reason": "InternalError"}));
    let fails = || open(vec![error.clone()]);
    let ends = || Answer::Watch(vec![], false);
    // the watches; whether the kind is blind after 5, 80 and 100 s, and after 5 min; how many watches at most by then
    let cases = [
        ("nothing ever comes", vec![Answer::Hole], [false, false, true, true], 30),
        ("each breaks at once", vec![fails()], [true; 4], 250),
        ("it breaks once", vec![fails(), bookmark()], [false; 4], 12),
        ("it breaks, and then nothing happens", vec![fails(), open(vec![])], [false; 4], 12),
        ("nothing comes twice", vec![Answer::Hole, Answer::Hole, bookmark()], [false; 4], 12),
        ("nothing comes, then it ends", vec![Answer::Hole, Answer::Hole, open(vec![])], [false; 4], 12),
        ("nothing comes, then it ends at once", vec![Answer::Hole, Answer::Hole, ends()], [false; 4], 200),
        ("it is cut", vec![Answer::Cut(60, None)], [false, true, true, true], 60),
        (
            "it is cut with an error",
            vec![Answer::Cut(60, Some(error.clone()))],
            [false, true, true, true],
            60,
        ),
        ("it cannot be opened", vec![Answer::Silence], [false, true, true, true], 60),
    ];
    for (name, watches, expected, most) in cases {
        let stage = stage(vec![Answer::Page(20, "", vec![class("a", 10)])], watches);
        let mut blind = Vec::new();
        for pause in [5, 75, 20, 200] {
            stage.pass(Duration::from_secs(pause)).await;
            blind.push(stage.objects.statuses().iter().any(|(_, status)| status.blind_since.is_some()));
        }
        assert_eq!(blind, expected, "{name}");
        assert!(stage.watches().len() <= most, "{name}: {}", stage.watches().len());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_froze_leaves_the_kind_blind_until_it_can_be_watched_again() {
    let lists = vec![Answer::Page(20, "", vec![])];
    let stage = stage(lists, vec![open(vec![]), Answer::Silence]);
    let blind = || stage.objects.statuses().iter().any(|(_, status)| status.blind_since.is_some());
    stage.pass(Duration::from_secs(80)).await;
    assert!(!blind(), "it was opened anew a moment ago");
    stage.pass(Duration::from_secs(10)).await;
    assert!(blind(), "and did not open");
    stage.script.lock().watches = vec![open(vec![])].into();
    stage.pass(Duration::from_secs(15)).await;
    assert!(!blind());
}
