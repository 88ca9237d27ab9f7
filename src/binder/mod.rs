//! The binder: brings claims and volumes together, and takes them apart again.
//!
//! In: claims, volumes, classes and pods from the shared tables. Out: patches of claims and volumes,
//! events, metrics. [`decide`] is pure; [`planner`] owns what has to be remembered between decisions
//! and says which may run now; [`controller`] runs them.
//!
//! ```text
//! changes ─▶ observe ─▶ planner: dirty keys ─▶ decide (matching) ─▶ act ─▶ controller ─▶ API server
//!               ▲                                  └▶ tell: events, logs, metrics, /debug     │
//!               └───────────────────────────────── answers ───────────────────────────────────┘
//! ```
//!
//! | room | what is in it |
//! |---|---|
//! | [`observe`] | what a change or an answer means, and which keys are looked at again |
//! | [`matching`] | which volume a claim gets (smallest fit: [`matching::choose_volume`]), and which claim a volume |
//! | [`decide`] | what to do about one claim or volume: one step, pure (order of a bind: [`decide::binding`]) |
//! | [`crate::host_plugins`] | volumes that are recycled, made or deleted here, behind [`state::Plugins`]; off unless asked for |
//! | [`act`] | a step as a request |
//! | [`tell`] | reasons and texts of events ([`tell::events`]); reports, metrics and traces |
//!
//! Beside the rooms stand the planner and its parts: [`state`] (what decisions are made on), [`plan`] (the turn of each key),
//! [`reasons`] (the last reason of each key), [`queue`], [`second_writer`] (what we wrote, and what others make of it).

#![cfg_attr(
    not(feature = "host-plugins"),
    allow(dead_code, reason = "some patches, and texts of events, are the plugins' alone")
)]

pub mod act;
pub mod annotations;
pub mod decide;
pub(crate) mod matching;
pub mod observe;
pub mod tell;

pub mod controller;
pub mod doubt;
pub mod dry_run;
mod plan;
pub mod planner;
pub mod queue;
mod reasons;
pub mod second_writer;
pub mod state;
#[cfg(test)]
pub(crate) mod tests;

pub use controller::Binder;
pub use state::BinderOptions;
