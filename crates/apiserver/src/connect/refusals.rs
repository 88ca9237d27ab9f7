//! Since when the API server and this process have not accepted each other.
//!
//! In: how each request ended. Out: an end, when for minutes refusals of our credentials (401) or of a certificate came
//! again and again, or of a plugin to give any, and no other answer. Outside of a cluster an authority, a certificate or
//! a token is read once, so a process that waits goes on for ever with what was rotated: one that begins anew reads the
//! kubeconfig again. What says nothing of either, such as a connection that is refused, neither begins that time nor ends
//! it; an API server that refuses as it goes away, and is away then, has refused for as long as it was there.

use std::{error::Error, fmt::Display, sync::Arc, time::Duration};

use http::{Response, StatusCode};
use tokio::{sync::watch, time::Instant};
use tokio_rustls::rustls;
use tower::BoxError;

use crate::error_chain;

/// The longest time between two refusals of a row. Requests that fail are repeated within 30 s.
const GAP: Duration = Duration::from_secs(65);

/// A row of refusals, and the first of them.
#[derive(Clone, Debug)]
struct Refused {
    first: Instant,
    last: Instant,
    why: String,
}

/// Shared by clients of a configuration.
#[derive(Clone, Debug, Default)]
pub(super) struct Refusals(Arc<watch::Sender<Option<Refused>>>);

impl Refusals {
    /// A request ended so.
    pub(super) fn note<B>(&self, result: &Result<Response<B>, BoxError>) {
        match result {
            Ok(response) if response.status() == StatusCode::UNAUTHORIZED => self.refused(&response.status()),
            Ok(_) => {
                self.0.send_if_modified(|refused| refused.take().is_some());
            }
            Err(error) if is_of_tls(&**error) => self.refused(&error_chain(&**error)),
            Err(_) => {}
        }
    }

    /// It was not even sent, or refused.
    pub(super) fn refused(&self, why: &impl Display) {
        let now = Instant::now();
        self.0.send_modify(|refused| match refused {
            Some(row) if now <= row.last + GAP => row.last = now,
            _ => *refused = Some(Refused { first: now, last: now, why: why.to_string() }),
        });
    }

    /// Waits until a row of refusals is that long; how it began.
    pub(super) async fn last(&self, limit: Duration) -> String {
        let mut changes = self.0.subscribe();
        let is_long = |refused: &Option<Refused>| {
            refused.as_ref().is_some_and(|row| row.last.saturating_duration_since(row.first) >= limit)
        };
        // The sender lives in `self`, so waiting cannot fail.
        let refused = changes.wait_for(is_long).await.ok().and_then(|refused| refused.clone());
        refused.map_or_else(String::new, |row| row.why)
    }
}

/// Whether it is about a certificate: rustls' errors are within those of the connection. One that is not valid at this time is
/// so for a process that begins anew, too.
fn is_of_tls(error: &(dyn Error + 'static)) -> bool {
    use rustls::CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    let mut cause = Some(error);
    while let Some(error) = cause {
        let within = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let is_own = |error: &rustls::Error| match error {
            rustls::Error::InvalidCertificate(why) => {
                !matches!(why, Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. })
            }
            _ => true,
        };
        if error.downcast_ref().is_some_and(is_own) || within.is_some_and(|within| is_of_tls(within)) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    type Answered = Result<Response<()>, BoxError>;
    type Answering = fn() -> Answered;

    fn answer(status: u16) -> Response<()> {
        Response::builder().status(status).body(()).unwrap()
    }

    fn certificate(why: rustls::CertificateError) -> Answered {
        let error = rustls::Error::InvalidCertificate(why);
        Err(std::io::Error::other(std::io::Error::other(error)).into())
    }

    fn tls() -> Answered {
        certificate(rustls::CertificateError::UnknownIssuer)
    }

    #[tokio::test(start_paused = true)]
    async fn m14_minutes_of_nothing_but_refusals_are_an_end_and_what_says_nothing_of_them_does_not_count() {
        let cut = || Err(std::io::Error::other("connection refused").into());
        // what is answered each ten seconds, in turn; whether that is an end
        let cases: [(&str, Vec<Answering>, bool); 9] = [
            ("401", vec![|| Ok(answer(401))], true),
            ("certificates", vec![tls], true),
            ("one that has expired", vec![|| certificate(rustls::CertificateError::Expired)], false),
            ("one of tomorrow", vec![|| certificate(rustls::CertificateError::NotValidYet)], false),
            ("either, and an outage in between", vec![tls, cut, || Ok(answer(401)), cut], true),
            ("one that is accepted now and then", vec![tls, || Ok(answer(401)), || Ok(answer(403))], false),
            ("an outage that begins so", [vec![tls as Answering], vec![cut; 59]].concat(), false),
            ("an outage", vec![cut], false),
            ("all is well", vec![|| Ok(answer(200))], false),
        ];
        for (name, answers, ends) in cases {
            let refusals = Refusals::default();
            let last = refusals.last(Duration::from_mins(3));
            let asking = async {
                for turn in 0..60 {
                    refusals.note(&answers[turn % answers.len()]());
                    tokio::time::sleep(Duration::from_secs(10)).await;
                }
            };
            let ended = tokio::select! { why = last => !why.is_empty(), () = asking => false };
            assert_eq!(ended, ends, "{name}");
        }
    }
}
