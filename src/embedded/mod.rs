//! An API server in this process, as small as the kinds mooring uses allow.
//!
//! ```text
//!  kube::Client ─┐
//!                ├─▶ server (tower::Service) ─▶ request ─▶ write │ delete │ patch ─▶ store ─▶ watch ─▶ clients
//!  kubectl ─HTTP─┘                                 │          kinds: defaults,       │
//!                                                  │          admission, validation  └─▶ list ─▶ negotiate
//!                                                  └─▶ discovery, openapi
//! ```
//!
//! For tests (fast, faults at every request, paused time) and for the demo; the subsystems never
//! import it. What it answers is compared with the real kube-apiserver by `tests/fidelity.rs`;
//! what differs on purpose is listed in this folder's README.

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
pub mod validate;
pub mod watch;
pub mod write;

pub use serve::serve;
pub use server::{Body, Options, Server};
