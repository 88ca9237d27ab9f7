//! An API server in this process, limited to the kinds that storage controllers use.
//!
//! ```text
//!  kube::Client ─┐
//!                ├─▶ server (tower::Service) ─▶ request ─▶ write │ delete │ patch ─▶ store ─▶ watch ─▶ clients
//!  kubectl ─HTTP─┘                                 │          kinds: defaults,       │
//!                                                  │          admission, validation  └─▶ list ─▶ negotiate
//!                                                  └─▶ discovery, openapi
//! ```
//!
//! It is for tests (fast, faults at every request, paused time) and for the demo. It does not depend on the program under
//! test. `tests/fidelity` compares its answers with the real kube-apiserver, and the README beside this crate's manifest
//! lists the intended differences.

pub mod actors;
pub mod clock;
pub mod delete;
pub mod discovery;
pub mod faults;
pub mod forward_proxy;
pub mod json;
pub mod kinds;
pub mod list;
pub mod managed;
pub mod negotiate;
pub mod openapi;
pub mod patch;
mod refusals;
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
