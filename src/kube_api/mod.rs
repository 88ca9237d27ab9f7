//! The edge to the API server: names, narrow kinds, single requests and what became of them.
//!
//! Everything above works on values; this is the only place that knows URLs, status codes and
//! bodies.

pub mod call;
pub mod events;
pub mod ids;
pub mod kinds;
pub mod leadership;
pub mod watch;
