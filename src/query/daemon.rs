//! A daemon that is asked beside the cluster: it knows timers, back-off and what was before.
//!
//! In: its address and who vouches for it; an answer. Out: the same answer with what its pages say, or with a line that says why it is
//! without.

use std::{path::Path, time::Duration};

use apiserver::connect::{ApiServer, Authority, ConnectError};
use http::{StatusCode, header::ACCEPT};
use kube::{Client, client::Body};
use tokio::time::timeout;

use crate::explain::{
    daemon::{self, DaemonBoard},
    read::exchange,
    report::Explanation,
};

/// A daemon answers from what it has; one that takes longer is not there.
const DAEMON_PATIENCE: Duration = Duration::from_secs(10);

/// A daemon.
pub(super) struct DaemonClient {
    client: Client,
    url: String,
}

impl DaemonClient {
    /// One at this address, verified by the authority of a file. The daemon is not asked yet.
    pub(super) fn new(api: &ApiServer, url: &str, file: &Path) -> Result<Self, ConnectError> {
        let client = api.client_of(url, Authority::of_file("--daemon-ca", file)?)?;
        Ok(Self { client, url: url.to_owned() })
    }

    /// Adds what the daemon knows to an answer.
    pub(super) async fn add(&self, explanation: &mut Explanation) {
        let asking = async {
            let mut boards = Vec::new();
            for path in daemon::paths(explanation) {
                boards.extend(self.page(&path).await?);
            }
            Ok(boards)
        };
        let late = || Err(format!("{} gives no answer within {} s", self.url, DAEMON_PATIENCE.as_secs()));
        match timeout(DAEMON_PATIENCE, asking).await.unwrap_or_else(|_| late()) {
            Ok(boards) => daemon::add(explanation, &boards),
            Err(why) => stand_without(explanation, &why),
        }
    }

    /// One of its pages; `None` if it does not run the controller.
    async fn page(&self, path: &str) -> Result<Option<DaemonBoard>, String> {
        let page = path.split('?').next().unwrap_or_default();
        let of = |why: &str| format!("{}{page}: {why}", self.url);
        let request = http::Request::get(path).header(ACCEPT, "application/json").body(Body::empty());
        let request = request.map_err(|error| of(&error.to_string()))?;
        let (parts, body) = exchange(&self.client, request).await.map_err(|why| of(&why))?;
        match parts.status {
            StatusCode::OK => {}
            StatusCode::NOT_FOUND => return Ok(None),
            status @ (StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED) => {
                return Err(of(&format!(
                    "{status}; deploy/optional/debug-reader is a role that may read it"
                )));
            }
            status => return Err(of(&status.to_string())),
        }
        serde_json::from_slice(&body).map(Some).map_err(|error| of(&error.to_string()))
    }
}

/// Says that there is nothing from the daemon in an answer, and why.
pub(super) fn stand_without(explanation: &mut Explanation, why: &str) {
    explanation.unknown.push(format!("What only the daemon knows (its timers, the past) is missing: {why}"));
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Full;
    use k8s_openapi::jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::explain::{explain, report::Source, snapshot::Snapshot, subject};

    /// A claim that waits, as objects show it.
    fn asked() -> Explanation {
        let mut snapshot = Snapshot::new("2026-08-21T12:05:00Z".parse().unwrap());
        let claim = json!({
            "kind": "PersistentVolumeClaim", "apiVersion": "v1",
            "metadata": { "name": "data", "namespace": "shop", "uid": "u", "resourceVersion": "7" },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "" },
            "status": { "phase": "Pending" },
        });
        snapshot.take(claim).unwrap();
        let subject = subject::parse(&["pvc/data"], "shop").unwrap();
        explain(&snapshot, &subject)
    }

    /// The answer with what a daemon adds that answers so, and what was asked for.
    async fn added(status: u16, body: impl Into<Bytes>) -> (Explanation, Vec<String>) {
        let paths = Arc::<Mutex<Vec<String>>>::default();
        let (record, body) = (Arc::clone(&paths), body.into());
        let service = tower::service_fn(move |request: Request<Body>| {
            record.lock().unwrap().push(request.uri().to_string());
            let answer = Response::builder().status(status).body(Full::new(body.clone())).unwrap();
            async move { Ok::<_, std::io::Error>(answer) }
        });
        let daemon =
            DaemonClient { client: Client::new(service, "default"), url: "https://daemon".to_owned() };
        let mut explanation = asked();
        daemon.add(&mut explanation).await;
        let paths = paths.lock().unwrap().clone();
        (explanation, paths)
    }

    fn page(leads: bool) -> String {
        let row = |claim: &str, reason: &str, since: Value| {
            json!({
                "kind": "claim", "claim": claim, "reason": reason, "message": "the API server says no", "since": since,
                "next": "2026-08-21T12:05:08Z", "until": null, "facts": {},
            })
        };
        let since = json!("2026-08-21T12:04:00Z");
        let change = |object: &str, at: &str| {
            json!({
                "object": object, "namespace": "shop", "at": at, "from": "Pending", "to": "Pending",
                "reason": "RetryBackoff", "attempt": 2,
            })
        };
        json!({
            "alarm": null, "leads": leads, "secondWriters": [],
            "waiting": [
                row("shop/other", "Binding", since.clone()),
                row("shop/data", "RetryBackoff", since),
            ],
            "history": [
                change("PersistentVolumeClaim/data", "2026-08-21T12:04:00Z"), change("PersistentVolumeClaim/other", "2026-08-21T12:04:01Z"),
            ],
        })
        .to_string()
    }

    #[tokio::test]
    async fn l18_what_the_controller_acts_on_is_told_with_its_times_and_the_past() {
        let (told, paths) = added(200, page(true)).await;
        let pages = ["binder", "expander", "claim-protection"];
        assert_eq!(paths, pages.map(|page| format!("/debug/{page}?claim=shop%2Fdata")));
        let time = |text: &str| text.parse::<Timestamp>().unwrap();
        // What objects show may be more than the controller knows: it stays.
        let alone = asked();
        assert_eq!((&told.reason, &told.summary), (&alone.reason, &alone.summary));
        assert_eq!(told.steps[..alone.steps.len()], alone.steps);
        let step = told.steps.last().unwrap();
        let said = "the controller says: the API server says no";
        assert_eq!((step.reason.as_str(), step.message.as_str()), ("RetryBackoff", said));
        assert_eq!(step.since, Some(time("2026-08-21T12:04:00Z")));
        let next = step.next.as_ref().map(|next| (next.action.as_str(), next.at));
        assert_eq!(next, Some(("LookAgain", Some(time("2026-08-21T12:05:08Z")))));
        assert_eq!(told.observed.source, Source::Daemon);
        let past: Vec<&str> = told.timeline.iter().map(|happened| happened.text.as_str()).collect();
        assert_eq!(past, ["pvc/shop/data: Pending (RetryBackoff)"]);
    }

    #[tokio::test]
    async fn an_answer_stands_without_a_daemon_that_says_nothing_and_says_why() {
        let rows = [
            (403, String::new(), "/debug/binder: 403 Forbidden; deploy/optional/debug-reader is a role"),
            (401, String::new(), "/debug/binder: 401 Unauthorized; deploy/optional/debug-reader is a role"),
            (503, String::new(), "/debug/binder: 503 Service Unavailable"),
            (200, "no JSON".to_owned(), "/debug/binder: expected"),
            (200, "x".repeat((16 << 20) + 1), "/debug/binder: length limit exceeded"),
            (200, page(false), "is a standby: only"),
        ];
        let alone = asked();
        for (status, body, line) in rows {
            let (mut told, _) = added(status, body).await;
            let why = told.unknown.pop().unwrap_or_default();
            assert!(why.contains(line), "{line}: {why}");
            assert_eq!(told, alone, "{line}");
        }
        // It runs no binder: nothing is missing.
        assert_eq!(added(404, "404 page not found\n").await.0, alone);
    }
}
