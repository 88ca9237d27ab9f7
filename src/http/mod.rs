//! What the daemon serves over HTTP: metrics, health, and JSON for people who look into it.
//!
//! In: a [`Router`] built once at start. Out: answers; every one is computed from memory, so a slow
//! API server never makes a probe slow. GET only.

pub mod health;
mod router;
mod server;

pub use router::{Answer, Router};
pub use server::{BindError, Server};
