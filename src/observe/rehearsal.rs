//! `--dry-run-writes`: each write that mooring would make is sent with `dryRun=All`, so that admission, validation and rights
//! show what they would refuse. Nothing is stored.
//!
//! In: writes. Out: those that were refused, the same for another object once. What another write overtook is no refusal.

use std::collections::BTreeSet;

use apiserver::call::{CallError, Caller, Request, Verb};
use serde_json::json;
use tokio::task::JoinSet;

/// So many are sent at once.
const TRIALS_AT_ONCE: usize = 8;
/// So many different refusals are told. Their words may name what differs from object to object.
const MOST_TOLD: usize = 100;

/// A write and the name of its object, and what came of it.
type Tried = ([String; 2], Result<Vec<u8>, CallError>);

/// Sends them.
#[derive(Debug)]
pub(super) struct Rehearsal {
    caller: Caller,
    under_way: JoinSet<Tried>,
    told: BTreeSet<String>,
}

impl Rehearsal {
    /// By a caller that does send.
    pub(super) fn new(caller: &Caller) -> Self {
        let caller = caller.with_own_budget(TRIALS_AT_ONCE);
        Self { caller, under_way: JoinSet::new(), told: BTreeSet::new() }
    }

    /// Sends a write for trial.
    pub(super) fn send(&mut self, request: &Request) {
        let Some(trial) = trial(request) else { return };
        let caller = self.caller.clone();
        let made = request.body.as_ref().filter(|_| request.verb == Verb::Create);
        let made = made.and_then(|body| body.pointer("/metadata/name")?.as_str());
        let name = made.unwrap_or(request.target().name).to_owned();
        let what = format!("{} {}", request.verb.method(), request.path);
        self.under_way.spawn(async move { ([what, name], caller.send(&trial).await) });
    }

    /// What was refused since this was last asked for.
    pub(super) fn refused(&mut self) -> Vec<String> {
        let mut refused = Vec::new();
        while let Some(ended) = self.under_way.try_join_next() {
            let Ok(([what, name], Err(CallError::Refused { code, message }))) = ended else { continue };
            let apart = |it: char| !(it.is_ascii_alphanumeric() || "-.".contains(it));
            let words: Vec<&str> = message.split(apart).filter(|word| *word != name).collect();
            if self.told.len() < MOST_TOLD && self.told.insert(words.join(" ")) {
                refused.push(format!("{what} would be refused: {code} {message}"));
            }
        }
        refused
    }
}

/// The same request, which stores nothing. `None` if that cannot be said in it.
// k8s.io/apiserver: endpoints/handlers/delete.go reads the options of a DELETE from its body, and from the query only
// without one.
fn trial(request: &Request) -> Option<Request> {
    let separator = if request.path.contains('?') { '&' } else { '?' };
    let mut trial = Request { path: format!("{}{separator}dryRun=All", request.path), ..request.clone() };
    if request.verb == Verb::Delete
        && let Some(options) = &mut trial.body
    {
        options.as_object_mut()?.insert("dryRun".to_owned(), json!(["All"]));
    }
    Some(trial)
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use apiserver::leadership::{Leadership, Term};
    use http::Response;
    use kube::{Client, client::Body};

    use super::*;
    use crate::metrics::{ApiMetrics, Metrics};

    #[test]
    fn a_trial_says_so_where_the_api_server_reads_it() {
        let of = |verb, path: &str, body| {
            let trial = trial(&Request { verb, path: path.to_owned(), body })?;
            Some((trial.path, trial.body))
        };
        let said = |path: &str, body| Some((path.to_owned(), body));
        let cases = [
            (of(Verb::Patch, "/b", Some(json!({"a": 1}))), said("/b?dryRun=All", Some(json!({"a": 1})))),
            (of(Verb::Create, "/b?c=d", None), said("/b?c=d&dryRun=All", None)),
            (of(Verb::Delete, "/b", None), said("/b?dryRun=All", None)),
            (
                of(Verb::Delete, "/b", Some(json!({"preconditions": {"uid": "u"}}))),
                said("/b?dryRun=All", Some(json!({"preconditions": {"uid": "u"}, "dryRun": ["All"]}))),
            ),
            (of(Verb::Delete, "/b", Some(json!("u"))), None),
        ];
        for (trial, expected) in cases {
            assert_eq!(trial, expected);
        }
    }

    #[tokio::test]
    async fn a_write_is_sent_for_trial_alone_and_the_same_refusal_of_each_object_is_told_once() {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let asks = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            asks.lock().unwrap().push(format!("{} {}", request.method(), request.uri()));
            // Most servers name the object.
            let message = format!("{} is forbidden: no", request.uri().path().rsplit('/').next().unwrap());
            let status = json!({ "kind": "Status", "status": "Failure", "reason": "Forbidden", "message": message, "code": 403 });
            let refusal = Response::builder().status(403).header("content-type", "application/json");
            async move { Ok::<_, Infallible>(refusal.body(Body::from(status.to_string().into_bytes())).unwrap()) }
        });
        let metrics = Arc::new(ApiMetrics::new(&Metrics::default(), "test").unwrap());
        let client = Client::new(service, "default");
        let caller = Caller::new(client, Leadership::new(Term::Unlimited), None, metrics);
        let mut rehearsal = Rehearsal::new(&caller);
        let claims = "/api/v1/namespaces/ns/persistentvolumeclaims";
        let made = json!({ "metadata": { "name": "persistentvolumeclaims" } });
        for (verb, path, body) in [
            (Verb::Create, claims.to_owned(), Some(made)),
            (Verb::Patch, format!("{claims}/b"), None),
            (Verb::Delete, format!("{claims}/c"), None),
        ] {
            rehearsal.send(&Request { verb, path, body });
        }
        let mut refused = Vec::new();
        while !rehearsal.under_way.is_empty() {
            refused.extend(rehearsal.refused());
            tokio::task::yield_now().await;
        }
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert!(refused[0].ends_with(" is forbidden: no"), "{refused:?}");
        let mut asked = asked.lock().unwrap().clone();
        asked.sort();
        let trials = [("DELETE", "/c"), ("PATCH", "/b"), ("POST", "")];
        let trials = trials.map(|(verb, name)| format!("{verb} {claims}{name}?dryRun=All&timeout="));
        assert!(asked.iter().zip(&trials).all(|(asked, trial)| asked.starts_with(trial)), "{asked:?}");
        assert_eq!(asked.len(), 3, "{asked:?}");
    }
}
