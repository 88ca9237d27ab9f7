//! The edge to the API server: names, narrow kinds, single requests and what became of them.
//!
//! Everything above works on values; this is the only place that knows URLs, status codes and
//! bodies.

pub mod backoff;
pub mod call;
pub mod connect;
pub mod elector;
pub mod events;
pub mod ids;
pub mod kinds;
pub mod leadership;
pub mod lease;
mod protobuf;
pub mod restore;
pub mod text;
pub mod watch;
pub mod wire;

/// An error with its causes, on one line. A cause that its error already quotes is not repeated.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
