//! What a component of Kubernetes serves over HTTPS: metrics, health, and JSON for people who look into it.
//!
//! ```text
//!  listener ─▶ connections ─▶ connection, tls ─▶ gate ─▶ auth (who is it, may it read this?) ─▶ reviews ─▶ API server
//!              (who makes room)                   │
//!                                                 └▶ router (axum) ─▶ health checks │ pages (made apart, one at a time)
//! ```
//!
//! In: a [`Router`] built once at start, and [`Options`]. Out: answers, all computed from memory, so a slow
//! API server never makes a probe slow. Serving has a thread of its own ([`Server::run`]), so that
//! what strangers do there neither keeps the daemon from its work nor from renewing its lease.

mod answer;
mod auth;
mod certificates;
mod client_certs;
mod connection;
mod connections;
mod gate;
pub mod health;
mod measures;
mod options;
mod pages;
mod reviews;
mod router;
mod server;
pub mod slis;
mod tls;
mod ttl_cache;
mod user;
pub mod zpages;

pub use answer::Answer;
pub use auth::{DelegatedAuth, TlsPeer};
pub use certificates::{CertificateError, OwnCertificate, expiry_of_pem};
pub use gate::Gate;
pub use measures::Measures;
pub use options::{CertificateSource, MinVersion, Options};
pub use pages::MakeRows;
pub use reviews::Reviewer;
pub use router::Router;
pub use server::{BindError, Server};
pub use tls::{cipher_suites, server_config};
