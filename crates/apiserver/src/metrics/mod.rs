//! What is measured of requests, watches and elections, mostly under client-go's names.

mod api;
mod election;
mod watch;

pub use api::ApiMetrics;
pub use election::ElectionMetrics;
pub use watch::{KindMetrics, ListCause, ReopenCause, WatchMetrics, WatchReport};
