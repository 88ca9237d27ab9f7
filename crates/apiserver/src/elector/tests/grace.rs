//! The grace after a restore of etcd, between replicas.

use super::*;

#[tokio::test(start_paused = true)]
async fn e11_a_lease_that_goes_back_in_time_begins_a_grace_that_successors_keep() {
    let (server, first) = led().await;
    seconds(20).await;
    assert_eq!(first.grace.left(Instant::now()), None);
    // A backup from before the last renewals.
    server.with(|store| store.revision -= 4);
    server.edit(|_| ());
    seconds(5).await;
    assert!(first.leads());
    let left = first.grace.left(Instant::now()).unwrap();
    assert!(left > Duration::from_secs(290), "{left:?}");
    let note = |server: &Server| {
        let lease = server.lease();
        lease["metadata"]["annotations"][lease::note::RESTORE_GRACE]
            .as_str()
            .map(|text| text.parse::<u64>().unwrap())
    };
    assert!(note(&server).unwrap() > 290);

    // A replica that was started since then, and saw nothing.
    seconds(100).await;
    first.released().await;
    let second = start(&server, "b", async {});
    second.wins_within(5).await;
    let left = second.grace.left(Instant::now()).unwrap().as_secs();
    assert!((185..=200).contains(&left), "{left}");
    seconds(205).await;
    assert_eq!(second.grace.left(Instant::now()), None);
    assert_eq!(note(&server), None);
}

#[tokio::test(start_paused = true)]
async fn e11_a_lease_that_a_backup_lacks_is_made_anew_and_begins_a_grace() {
    let (server, leader) = led().await;
    seconds(20).await;
    server.with(|store| {
        store.revision -= 4;
        store.lease = None;
    });
    seconds(5).await;
    assert!(leader.leads() && leader.grace.left(Instant::now()).is_some());
}

#[tokio::test(start_paused = true)]
async fn e11_a_standby_that_saw_a_restore_tells_the_leader() {
    let (server, leader) = led().await;
    let standby = start(&server, "b", async {});
    seconds(3).await;
    standby.grace.begin(Instant::now());
    seconds(6).await;
    assert!(leader.leads());
    assert!(leader.grace.left(Instant::now()).unwrap() > Duration::from_secs(280));
}

/// However often another client changes the lease, and makes the holder read what it noted there itself.
#[tokio::test(start_paused = true)]
async fn e11_a_grace_ends_for_two_replicas_that_look_often() {
    let server = Server::default();
    let timing = Timing { retry_period: Duration::from_millis(200), ..TIMING };
    let begin = |identity| start_as(&server, identity, timing, ready(()), ready(()));
    let leader = begin("a");
    leader.wins_within(FIRST + 1).await;
    let standby = begin("b");
    leader.grace.begin(Instant::now());
    let label = |count: u64| {
        server.edit(|lease| lease["metadata"]["labels"] = json!({ "count": count.to_string() }));
    };
    for count in 0..900 {
        label(count);
        sleep(Duration::from_millis(350)).await;
    }
    let left = [&leader, &standby].map(|replica| replica.grace.left(Instant::now()));
    assert_eq!(left, [None, None]);
    let lease = server.lease();
    assert_eq!(lease["metadata"]["annotations"], json!({}));
}
