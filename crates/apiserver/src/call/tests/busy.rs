//! A server that is too busy, and the limit on this side.

use super::*;

/// A server that is too busy for everything, and ten thousand requests that wait.
#[tokio::test(start_paused = true)]
async fn s40_a_server_that_is_too_busy_is_asked_no_more_than_the_window_until_it_says() {
    const WAITING: usize = 10_000;
    let start = Instant::now();
    let sent = Arc::new(Mutex::new(Vec::new()));
    let sending = Arc::clone(&sent);
    let service = tower::service_fn(move |_: http::Request<Body>| {
        sending.lock().unwrap().push(start.elapsed());
        let is_busy = start.elapsed() < Duration::from_secs(3);
        async move {
            // The way there and back.
            sleep(Duration::from_millis(1)).await;
            let response = http::Response::builder().header("retry-after", "1");
            let status = if is_busy { 429 } else { 200 };
            Ok::<_, Infallible>(response.status(status).body(Body::empty()).unwrap())
        }
    });
    let metrics = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
    let client = Client::new(service, "default");
    let caller = Caller::new(client, Leadership::new(Term::Unlimited), None, metrics);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..WAITING {
        let caller = caller.clone();
        let body = json!({"metadata": {"name": number.to_string()}});
        let request = match number % 2 {
            0 => Request { path: format!("/x/{number}"), ..request(Verb::Get) },
            // All creates have one path.
            _ => Request { path: "/x".to_owned(), body: Some(body), ..request(Verb::Create) },
        };
        tasks.spawn(async move { caller.send(&request).await });
    }
    let answers = tasks.join_all().await;
    let sent = sent.lock().unwrap();
    for second in 0..3 {
        let count = sent.iter().filter(|at| at.as_secs() == second).count();
        assert!((1..=MAX_IN_FLIGHT).contains(&count), "{count} in second {second}");
    }
    // Writes are decided anew.
    let unsent = answers.iter().filter(
        |answer| matches!(answer, Err(CallError::Throttled { message, .. }) if message == error::OF_ALL),
    );
    assert_eq!((sent.len() + unsent.count(), answers.len()), (WAITING, WAITING));
}

/// A write that waited would be sent although what it was decided from may not hold any more.
#[tokio::test(start_paused = true)]
async fn s15_s40_a_write_is_not_kept_until_a_busy_server_has_time_but_decided_anew() {
    let service = tower::service_fn(move |_: http::Request<Body>| async move {
        let response = http::Response::builder().header("retry-after", "4").status(429);
        Ok::<_, Infallible>(response.body(Body::empty()).unwrap())
    });
    let metrics = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
    let caller =
        Caller::new(Client::new(service, "default"), Leadership::new(Term::Unlimited), None, metrics);
    let send = |path: &str, verb| {
        let request = Request { path: path.to_owned(), ..request(verb) };
        let caller = caller.clone();
        async move { caller.send(&request).await.unwrap_err() }
    };
    for path in ["/a", "/b", "/c"] {
        assert!(!send(path, Verb::Patch).await.is_of_all(), "the server said so itself");
    }
    let start = Instant::now();
    let error = send("/d", Verb::Delete).await;
    assert_eq!((start.elapsed(), error.is_of_all(), error.is_certain()), (Duration::ZERO, true, true));
    let CallError::Throttled { after, .. } = error else { panic!("{error}") };
    assert!((4..=7).contains(&after.as_secs()), "{after:?}");
    // A read says what is so when it is answered, however late that is.
    assert!(!send("/e", Verb::Get).await.is_of_all());
    assert!(start.elapsed() >= Duration::from_secs(4));
}

/// `EventRateLimit` answers nothing but events with 429, each of another object.
#[tokio::test(start_paused = true)]
async fn l15_s40_events_that_are_refused_keep_no_other_request_waiting() {
    let service = tower::service_fn(move |request: http::Request<Body>| async move {
        let status = if request.method() == http::Method::POST { 429 } else { 200 };
        Ok::<_, Infallible>(http::Response::builder().status(status).body(Body::empty()).unwrap())
    });
    let metrics = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
    let caller =
        Caller::new(Client::new(service, "default"), Leadership::new(Term::Unlimited), None, metrics);
    let (background, _) = caller.in_the_background();
    for path in ["/a", "/b", "/c"] {
        let event = Request { path: path.to_owned(), ..request(Verb::Create) };
        assert!(matches!(background.send(&event).await, Err(CallError::Throttled { .. })));
    }
    let start = Instant::now();
    caller.send(&request(Verb::Patch)).await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

/// Behind the writes of another controller, or those of its own that wait, it would leave six seconds after it was decided.
#[tokio::test(start_paused = true)]
async fn s15_l15_a_detach_waits_behind_no_other_client_and_behind_one_request_of_its_own() {
    let (caller, server) = caller();
    let detach = || Request {
        path: "/apis/storage.k8s.io/v1/volumeattachments/csi-1".to_owned(),
        ..request(Verb::Delete)
    };
    let fill = async |caller: &Caller| {
        for _ in 0..128 {
            let caller = caller.clone();
            tokio::spawn(async move { caller.send(&request(Verb::Patch)).await });
        }
        tokio::task::yield_now().await;
    };
    let detaches = || {
        let server = server.lock().unwrap();
        server.asked.iter().filter(|(line, ..)| line.starts_with("DELETE")).count()
    };
    for qps in [0.5, 20.0, 1_000.0] {
        let rate = Some(Rate::new(RateLimit { qps, burst: 1 }));
        let caller = Caller { rate, ..caller.clone() };
        let [binder, attachments] = [128, 48].map(|in_flight| caller.with_own_budget(in_flight));
        fill(&binder).await;
        let before = detaches();
        let start = Instant::now();
        // There is no answer to a delete.
        assert!(matches!(attachments.send(&detach()).await, Err(CallError::Unknown(_))), "{qps}");
        assert_eq!((start.elapsed(), detaches()), (Duration::ZERO, before + 1), "{qps}");
        fill(&attachments).await;
        for number in 2..12 {
            let start = Instant::now();
            let error = attachments.send(&detach()).await.unwrap_err();
            assert_eq!((error.is_of_all(), detaches()), (false, before + number), "{qps}: {error}");
            let patience = Duration::from_secs_f64(2.5 / qps).max(Duration::from_millis(101));
            assert!(start.elapsed() <= patience, "{qps}: {:?}", start.elapsed());
        }
        // Of many detaches those that would leave later are decided anew.
        let detaching: Vec<_> = (0..48)
            .map(|_| {
                let attachments = attachments.clone();
                tokio::spawn(async move { attachments.send(&detach()).await })
            })
            .collect();
        let mut unsent = 0;
        for detach in detaching {
            let error = detach.await.unwrap().unwrap_err();
            assert!(!error.is_of_all() || error.is_certain(), "{qps}: {error}");
            unsent += usize::from(error.is_of_all());
        }
        assert_eq!(unsent > 40, qps < 100.0, "{qps}: {unsent}");
    }
}
