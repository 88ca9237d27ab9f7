//! What the API server is asked about clients: TokenReviews, SubjectAccessReviews, and the
//! authorities of client certificates.
//!
//! A client of its own, so that clients never stand in the way of the daemon's work, and within
//! bounds, so that they cannot make the daemon flood the API server: so many reviews at once, so many
//! a second, each with a deadline. Those who have been known before have a share that strangers cannot use up.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

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
use thiserror::Error;
use tokio::{
    sync::Semaphore,
    time::{Instant, sleep, timeout},
};

use super::{
    measures::{Measures, Review},
    user::User,
};

/// For a review, its time in the queue included. KCM's client has 10 s; a scrape gives up after 10 s in all.
const DEADLINE: Duration = Duration::from_secs(5);
/// Attempts of a review that the API server has no time for, or that does not reach it. Upstream makes five.
const ATTEMPTS: u32 = 3;
/// Before the second attempt, as upstream; twice as long before the third.
const PAUSE: Duration = Duration::from_millis(500);
/// Reviews at once, for each share.
const AT_ONCE: usize = 4;
/// Reviews a second, for each share. KCM's client would send 200.
const PER_SECOND: usize = 20;
/// Reviews that may come at once after a quiet time.
const BURST: usize = 40;
/// Bytes of an answer: a user with its groups is some hundred, a ConfigMap with authorities some thousand.
const MAX_ANSWER: usize = 256 * 1024;

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
const ACCESS_REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
// KCM: apiserver's pkg/server/options/authentication.go, authenticationConfigMapName.
const AUTHORITIES: &str = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ReviewError {
    /// Too many are asked for.
    #[error("too many reviews")]
    Busy,
    /// The API server cannot be asked, or refuses.
    #[error("{0}")]
    Failed(String),
}

/// Whose share a review is taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// A user who has been known before.
    Known,
    /// Any client.
    Stranger,
}

/// A share of what may be asked.
#[derive(Debug)]
struct Bounds {
    at_once: Semaphore,
    rate: RateLimiter,
}

impl Default for Bounds {
    fn default() -> Self {
        let rate = RateLimiter::builder()
            .initial(BURST)
            .max(BURST)
            .refill(PER_SECOND / 10)
            .interval(Duration::from_millis(100))
            .build();
        Self { at_once: Semaphore::new(AT_ONCE), rate }
    }
}

/// Why an attempt brought nothing.
struct Failure {
    problem: String,
    /// Whether another attempt may bring something.
    // apiserver: pkg/util/webhook/webhook.go, DefaultShouldRetry.
    transient: bool,
}

/// Asks the API server.
pub struct Reviewer {
    client: Client,
    known: Bounds,
    strangers: Bounds,
    /// The sorts of reviews that fail now: one that is forbidden says nothing about the others.
    failing: Mutex<BTreeSet<Review>>,
    measures: Measures,
}

/// What of a review counts.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Reviewed<S> {
    status: S,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    user: User,
    error: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct AccessStatus {
    allowed: bool,
    denied: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ConfigMap {
    data: BTreeMap<String, String>,
}

impl Reviewer {
    /// Asks with this client.
    #[must_use]
    pub fn new(client: Client, measures: Measures) -> Self {
        let (known, strangers) = (Bounds::default(), Bounds::default());
        Self { client, known, strangers, failing: Mutex::default(), measures }
    }

    /// Whose token it is; `None` if it is no user's.
    ///
    /// # Errors
    /// See [`ReviewError`].
    pub async fn token(&self, token: &str, share: Share) -> Result<Option<User>, ReviewError> {
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": { "token": token },
        });
        let answer: Option<Reviewed<TokenStatus>> =
            self.ask(Review::Token, share, Method::POST, TOKEN_REVIEWS, Some(&body)).await?;
        let status = answer.unwrap_or_default().status;
        if status.authenticated && !status.user.username.is_empty() {
            return Ok(Some(status.user.authenticated()));
        }
        if !status.error.is_empty() {
            // It may say much, but never the token.
            tracing::debug!(reason = status.error, "token refused");
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
        share: Share,
    ) -> Result<bool, ReviewError> {
        let mut spec = serde_json::to_value(user).unwrap_or_default();
        if let Some(spec) = spec.as_object_mut() {
            spec.insert("nonResourceAttributes".to_owned(), json!({ "path": path, "verb": verb }));
        }
        let body = json!({
            "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec,
        });
        let answer: Option<Reviewed<AccessStatus>> =
            self.ask(Review::Access, share, Method::POST, ACCESS_REVIEWS, Some(&body)).await?;
        let AccessStatus { allowed, denied } = answer.unwrap_or_default().status;
        // apiserver: plugin/pkg/authorizer/webhook/webhook.go, Authorize: a denial counts more.
        Ok(allowed && !denied)
    }

    /// The cluster's authorities of client certificates, in PEM; `None` if it publishes none.
    ///
    /// # Errors
    /// See [`ReviewError`].
    pub async fn authorities(&self) -> Result<Option<String>, ReviewError> {
        let map: Option<ConfigMap> =
            self.ask(Review::Authorities, Share::Known, Method::GET, AUTHORITIES, None).await?;
        Ok(map.and_then(|mut map| map.data.remove("client-ca-file")).filter(|pem| !pem.is_empty()))
    }

    /// `None`: not found.
    async fn ask<T: for<'a> Deserialize<'a>>(
        &self,
        review: Review,
        share: Share,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Option<T>, ReviewError> {
        let bounds = match share {
            Share::Known => &self.known,
            Share::Stranger => &self.strangers,
        };
        if !bounds.rate.try_acquire(1) {
            return Err(ReviewError::Busy);
        }
        let asking = async {
            let mut attempt = 1;
            loop {
                let failure = {
                    let _permit = bounds.at_once.acquire().await;
                    match self.send(review, method.clone(), path, body).await {
                        Ok(answer) => return Ok(answer),
                        Err(failure) => failure,
                    }
                };
                // Another attempt is another request: it has to be within the rate as well.
                if !failure.transient || attempt == ATTEMPTS || !bounds.rate.try_acquire(1) {
                    return Err(failure.problem);
                }
                sleep(PAUSE * attempt).await;
                attempt += 1;
            }
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
                tracing::warn!(review = review.as_str(), error, "could not review clients: they are refused");
            }
            ReviewError::Failed(error)
        })
    }

    /// One attempt.
    async fn send<T: for<'a> Deserialize<'a>>(
        &self,
        review: Review,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Option<T>, Failure> {
        let lasting = |problem| Failure { problem, transient: false };
        let is_read = method == Method::GET;
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let mut request = Request::builder().method(method).uri(path).header(ACCEPT, "application/json");
        if !is_read {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let request = request.body(Body::from(body)).map_err(|error| lasting(error.to_string()))?;
        let begun = Instant::now();
        // Not one of kube's calls that decode: what cannot be decoded goes to the log there, and the answer to a
        // review quotes the token.
        let answer = self.client.send(request).await;
        let status = answer.as_ref().ok().map(http::Response::status);
        self.measures.reviewed(review, status, begun.elapsed());
        let answer =
            answer.map_err(|error| Failure { problem: apiserver::error_chain(&error), transient: true })?;
        let status = answer.status();
        let bytes = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let bytes = bytes.map_err(|error| lasting(error.to_string()))?.to_bytes();
        if is_read && status == http::StatusCode::NOT_FOUND {
            return Ok(None);
        }
        if !status.is_success() {
            let transient = status.is_server_error() || status == http::StatusCode::TOO_MANY_REQUESTS;
            return Err(Failure { problem: format!("the API server answers {status}"), transient });
        }
        serde_json::from_slice(&bytes).map(Some).map_err(|_| lasting("the answer cannot be read".to_owned()))
    }
}
