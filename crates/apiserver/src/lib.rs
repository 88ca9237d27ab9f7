//! The edge to the API server of Kubernetes, for controllers that decide on values.
//!
//! ```text
//!  API server ─▶ tables::watch ─▶ wire, protobuf ─▶ kinds (narrow) ─▶ tables: one per kind ─▶ keys that changed
//!  API server ◀─ call (single requests, within the term) ◀─ requests with UID and revision
//!             ◀─ elector (lease, leadership) · events · connect (credentials)
//! ```
//!
//! This is the only place that knows URLs, status codes and bodies. Of volumes it knows the narrow kinds, and nothing
//! that is decided about them.

pub mod backoff;
pub mod call;
pub mod connect;
pub mod elector;
pub mod events;
pub mod ids;
pub mod kinds;
pub mod leadership;
pub mod lease;
pub mod lease_note;
pub mod managed_fields;
pub mod metrics;
pub mod progress;
mod protobuf;
pub mod pulse;
pub mod restore;
pub mod room;
pub mod sight;
pub(crate) mod suspension;
pub mod tables;
pub mod text;
pub mod unfenced;
pub mod wire;

/// An error with its causes, on one line. A cause that its error already quotes is not repeated. What the API
/// server said is `<code> <reason>: <message>`, without the rest of its `Status`.
pub fn error_chain(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(kube::Error::Api(status)) = error.downcast_ref() {
        return call::answer::told(status.code, &status.reason, &status.message);
    }
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| cause.source()) {
        let next = cause.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::error_chain;

    #[test]
    fn m12_what_the_server_said_is_shown_and_no_more() {
        let status = Status::failure("etcd is down", "InternalError").with_code(500).boxed();
        assert_eq!(error_chain(&kube::Error::Api(status)), "500 InternalError: etcd is down");
    }
}
