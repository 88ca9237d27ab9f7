use super::*;

#[tokio::test(start_paused = true)]
async fn s37_the_lease_is_not_released_before_every_write_is_over() {
    for (under_way, holder) in [(4, ""), (12, "a")] {
        let (server, running) = led().await;
        let began = Instant::now();
        running.leadership.landing().leaves(began + Duration::from_secs(under_way));
        running.released().await;
        assert_eq!(server.holder(), holder, "{under_way}");
        assert!(began.elapsed() >= Duration::from_secs(under_way.min(5)));
    }
}

#[tokio::test(start_paused = true)]
async fn l14_the_lease_is_released_by_a_later_try_where_the_first_is_not_answered() {
    for mood in [Mood::Failing, Mood::Vain] {
        let (server, running) = led().await;
        server.set(mood);
        running.release.cancel();
        seconds(3).await;
        assert_eq!(server.holder(), "a", "{mood:?}");
        server.set(Mood::Well);
        running.end().await.unwrap();
        assert_eq!(server.holder(), "", "{mood:?}");
    }
}
