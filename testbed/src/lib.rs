//! An API server in this process, as small as the kinds allow that storage controllers use.
//!
//! ```text
//!  kube::Client ─┐
//!                ├─▶ server (tower::Service) ─▶ request ─▶ write │ delete │ patch ─▶ store ─▶ watch ─▶ clients
//!  kubectl ─HTTP─┘                                 │          kinds: defaults,       │
//!                                                  │          admission, validation  └─▶ list ─▶ negotiate
//!                                                  └─▶ discovery, openapi
//! ```
//!
//! For tests (fast, faults at every request, paused time) and for the demo. It knows nothing of what it tests. What it
//! answers is compared with the real kube-apiserver by `tests/fidelity`; what differs on purpose is listed in the README
//! beside this crate's manifest.

pub mod actors;
pub mod clock;
pub mod delete;
pub mod discovery;
pub mod faults;
pub mod json;
pub mod kinds;
pub mod list;
pub mod managed;
pub mod negotiate;
pub mod openapi;
pub mod patch;
pub mod request;
pub mod reviews;
pub mod schema;
pub mod selector;
pub mod serve;
pub mod server;
pub mod status;
pub mod store;
pub mod troubles;
pub mod validate;
pub mod watch;
pub mod write;

pub use serve::serve;
pub use server::{Body, Options, Server};
