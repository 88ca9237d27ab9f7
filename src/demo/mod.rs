//! `mooring demo`: the daemon at work, without a cluster.
//!
//! ```text
//!  script (seeded) ─▶ director ─▶ stand-ins ─┐
//!                                            ▼
//!  daemon, unchanged ◀── HTTP ──▶ embedded API server ◀── HTTP ── your kubectl
//!    │ pages                                 │ watches
//!    └───────────▶ observer ◀────────────────┘
//!                     └─▶ lines, snapshot ─▶ screen or plain lines
//! ```
//!
//! The script says what befalls the cluster and when, the director does it, the observer watches
//! what comes of it; what is shown is a function of its [`snapshot::Snapshot`].

pub mod director;
pub mod lines;
pub mod observer;
pub mod output;
pub mod place;
pub mod scraped;
pub mod screen;
pub mod script;
pub mod show;
pub mod snapshot;
pub mod stage;
pub mod story;
pub mod view;
pub mod waits;

pub use show::{Mistake, run};
