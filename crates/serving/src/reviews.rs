//! What the API server is asked about clients: TokenReviews, SubjectAccessReviews, and the
//! authorities of client certificates.
//!
//! A client of its own, so that clients never stand in the way of the daemon's work, and within
//! bounds, so that they cannot make the daemon flood the API server: so many reviews at once, so many
//! a second, each with a deadline. A question that was answered with yes before is asked beyond that rate, so that
//! strangers keep out nobody who was let in.

use std::{collections::BTreeSet, time::Duration};

use http::{
    Method, Request,
    header::{ACCEPT, CONTENT_TYPE},
};
use http_body_util::{BodyExt, Limited};
use kube::{Client, client::Body};
use leaky_bucket::RateLimiter;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};

use super::{
    measures::{Measures, Review},
    user::User,
};

/// For a review, its time in the queue included. KCM's client has 10 s; a scrape gives up after 10 s in all.
const DEADLINE: Duration = Duration::from_secs(5);
/// Reviews at once.
const AT_ONCE: usize = 4;
/// Reviews a second of what is new. KCM's client would send 200.
const PER_SECOND: usize = 20;
/// Reviews that may come at once after a quiet time.
const BURST: usize = 40;
/// Bytes of an answer: a user with its groups is some hundred, a ConfigMap with authorities some thousand.
const MAX_ANSWER: usize = 256 * 1024;

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
// KCM: apiserver's pkg/server/options/authentication.go, authenticationConfigMapName.
const AUTHORITIES: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// There is no answer: too many are asked for, or the API server cannot be asked, or refuses, which the log tells.
#[derive(Debug)]
pub struct ReviewError;

/// Asks the API server.
pub struct Reviewer {
    client: Client,
    at_once: Semaphore,
    /// The same for what was answered with yes before, which waits for nobody else.
    again: Semaphore,
    rate: RateLimiter,
    /// The sorts of reviews that fail now: one that is forbidden says nothing about the others.
    failing: Mutex<BTreeSet<Review>>,
    measures: Measures,
}

impl Reviewer {
    /// Asks with this client.
    pub fn new(client: Client, measures: Measures) -> Self {
        let rate = RateLimiter::builder()
            .initial(BURST)
            .max(BURST)
            .refill(PER_SECOND / 10)
            .interval(Duration::from_millis(100))
            .build();
        Self {
            client,
            at_once: Semaphore::new(AT_ONCE),
            again: Semaphore::new(AT_ONCE),
            rate,
            failing: Mutex::default(),
            measures,
        }
    }

    /// Whose token it is; `None` if it is no user's. If the answer was yes before, it is asked beyond the rate.
    ///
    /// # Errors
    /// See [`ReviewError`].
    pub async fn token(&self, token: &str, is_again: bool) -> Result<Option<User>, ReviewError> {
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": token },
        });
        let answer = self.ask(Review::Token, is_again, Method::POST, TOKEN_REVIEWS, Some(&body)).await?;
        let status = answer.pointer("/status").unwrap_or(&Value::Null);
        let user = User::deserialize(status.get("user").unwrap_or(&Value::Null)).unwrap_or_default();
        if status.get("authenticated") == Some(&Value::Bool(true)) && !user.username.is_empty() {
            return Ok(Some(user.authenticated()));
        }
        if let Some(reason) = status.get("error").and_then(Value::as_str) {
            // It may say much, but never the token.
            tracing::debug!(reason, "token refused");
        }
        Ok(None)
    }

    /// Whether a user may do something to a path; the verb is the method in small letters.
    ///
    /// # Errors
    /// See [`ReviewError`].
    pub async fn access(
        &self,
        user: &User,
        verb: &str,
        path: &str,
        is_again: bool,
    ) -> Result<bool, ReviewError> {
        let mut spec = serde_json::to_value(user).unwrap_or_default();
        if let Some(spec) = spec.as_object_mut() {
            spec.insert("nonResourceAttributes".to_owned(), json!({ "path": path, "verb": verb }));
        }
        let body = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec,
        });
        let answer = self.ask(Review::Access, is_again, Method::POST, ACCESS_REVIEWS, Some(&body)).await?;
        // apiserver: plugin/pkg/authorizer/webhook/webhook.go, Authorize: a denial counts more.
        let is_denied = answer.pointer("/status/denied").is_some_and(|denied| *denied != false);
        Ok(answer.pointer("/status/allowed") == Some(&Value::Bool(true)) && !is_denied)
    }

    /// The cluster's authorities of client certificates, in PEM; `None` if it publishes none.
    ///
    /// # Errors
    /// See [`ReviewError`].
    pub async fn authorities(&self) -> Result<Option<String>, ReviewError> {
        let map = self.ask(Review::Authorities, true, Method::GET, AUTHORITIES, None).await?;
        let pem = map.pointer("/data/client-ca-file").and_then(Value::as_str);
        Ok(pem.filter(|pem| !pem.is_empty()).map(str::to_owned))
    }

    /// Null, if there is none.
    async fn ask(
        &self,
        review: Review,
        is_again: bool,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, ReviewError> {
        if !is_again && !self.rate.try_acquire(1) {
            return Err(ReviewError);
        }
        // Once: who is answered that it cannot be told now comes again.
        let asking = async {
            let places = if is_again { &self.again } else { &self.at_once };
            let _permit = places.acquire().await;
            self.send(review, method, path, body).await
        };
        let answer = timeout(DEADLINE, asking).await;
        let answer = answer.unwrap_or_else(|_| {
            self.measures.reviewed(review, None, DEADLINE);
            Err(format!("no answer within {} s", DEADLINE.as_secs()))
        });
        // An outage may last, and clients come again: a line when it begins.
        let begins = {
            let mut failing = self.failing.lock();
            if answer.is_err() { failing.insert(review) } else { failing.remove(&review) }
        };
        answer.map_err(|error| {
            if begins {
                tracing::warn!(
                    review = <&str>::from(review),
                    error,
                    "could not review clients: they are refused"
                );
            }
            ReviewError
        })
    }

    async fn send(
        &self,
        review: Review,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, String> {
        let is_read = method == Method::GET;
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let mut request = Request::builder().method(method).uri(path).header(ACCEPT, "application/json");
        if !is_read {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Body::from(body)).map_err(|error| error.to_string())?;
        let begun = Instant::now();
        // Not one of kube's calls that decode: what cannot be decoded goes to the log there, and the answer to a
        // review quotes the token.
        let answer = self.client.send(request).await;
        let status = answer.as_ref().ok().map(http::Response::status);
        self.measures.reviewed(review, status, begun.elapsed());
        let answer = answer.map_err(|error| apiserver::error_chain(&error))?;
        let status = answer.status();
        let bytes = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let bytes = bytes.map_err(|error| error.to_string())?.to_bytes();
        if is_read && status == http::StatusCode::NOT_FOUND {
            return Ok(Value::Null);
        }
        if !status.is_success() {
            return Err(format!("the API server answers {status}"));
        }
        serde_json::from_slice(&bytes).map_err(|_| "the answer cannot be read".to_owned())
    }
}
