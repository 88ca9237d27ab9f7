//! When certificates expire, computed from what is in use at each scrape.

use std::sync::Arc;

use prometheus::{GaugeVec, Opts};

use super::Metrics;

/// Seconds since 1970 after which a certificate is not valid any more; `None` if there is none that expires.
pub type Expiry = Arc<dyn Fn() -> Option<i64> + Send + Sync>;

/// Registers the gauge of a certificate, which is there while there is one that expires.
///
/// # Errors
/// See [`Metrics::register`].
pub fn register_expiry(
    metrics: &Metrics,
    (name, help): (&str, &str),
    expiry: Expiry,
) -> Result<(), prometheus::Error> {
    metrics.register_scraped(GaugeVec::new(Opts::new(name, help), &[])?, move |gauge| {
        gauge.reset();
        if let Some(expiry) = expiry() {
            #[expect(clippy::cast_precision_loss, reason = "far from 2^53 seconds")]
            gauge.with_label_values::<&str>(&[]).set(expiry as f64);
        }
    })
}

/// The one that is shown to who scrapes.
pub const SERVING: (&str, &str) = (
    "mooring_serving_certificate_expiry_timestamp_seconds",
    "Time at which the serving certificate expires, in seconds since 1970; absent if mooring serves nothing",
);

/// The one that is shown to the API server.
// Upstream's rest_client_exec_plugin_ttl_seconds is about plugins alone, and
// apiserver_client_certificate_expiration_seconds about the certificates of those who ask a server.
pub const CLIENT: (&str, &str) = (
    "mooring_client_certificate_expiry_timestamp_seconds",
    "Time at which the client certificate for the API server expires, in seconds since 1970; absent with a token",
);

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn there_is_a_gauge_while_there_is_a_certificate() {
        let (metrics, expiry) = (Metrics::default(), Arc::new(Mutex::new(None)));
        let shown = Arc::clone(&expiry);
        register_expiry(&metrics, CLIENT, Arc::new(move || *shown.lock().unwrap())).unwrap();
        assert!(!metrics.text().unwrap().contains("mooring_client_certificate"));
        *expiry.lock().unwrap() = Some(1_800_000_000);
        let line = "\nmooring_client_certificate_expiry_timestamp_seconds 1800000000\n";
        assert!(metrics.text().unwrap().contains(line));
    }
}
