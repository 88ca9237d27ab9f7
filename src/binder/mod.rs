//! The binder: brings claims and volumes together, and takes them apart again.
//!
//! In: claims, volumes, classes and pods from the shared tables. Out: patches of claims and volumes,
//! events, metrics. [`decide`] is pure; [`planner`] owns what has to be remembered between decisions,
//! [`plan`] says which may run now, and [`controller`] runs them.
//!
//! ```text
//! tables ─▶ changes ─▶ queue ─▶ plan: a key's turn ─▶ decide (matching) ─▶ calls ─▶ controller ─▶ API server
//!              ▲                                        └▶ tell: events, logs, metrics, /debug        │
//!              └──────────────────────────────────────── answers ────────────────────────────────────┘
//! ```
//!
//! | room | what is in it |
//! |---|---|
//! | [`state`] | what decisions are made on |
//! | [`changes`], [`answers`] | what a change or an answer means for the state, and which keys are looked at again |
//! | [`plan`] | which keys are due, and the turn of each, in the order that is safe |
//! | [`matching`] | which volume a claim gets (smallest fit: [`matching::choose_volume`]), and which claim a volume |
//! | [`decide`] | what to do about one claim or volume: one step, pure (order of a bind: [`decide::binding`]) |
//! | [`crate::host_plugins`] | volumes that are recycled, made or deleted here, behind [`state::Plugins`]; off unless asked for |
//! | [`calls`], [`patches`] | a step as a request |
//! | [`tell`] | reasons and texts of events ([`tell::events`]); reports, metrics and traces |
//!
//! The planner's other parts are [`queue`], [`reasons`] (the last reason of each key), [`doubt`] (writes of a bind without an
//! answer) and [`second_writer`] (what we wrote, and what others make of it).

#![cfg_attr(
    not(feature = "host-plugins"),
    allow(dead_code, reason = "some patches, and texts of events, are the plugins' alone")
)]

pub mod annotations;
pub mod decide;
pub(crate) mod matching;
pub mod tell;

mod answers;
pub mod calls;
mod changes;
pub mod controller;
pub mod doubt;
pub mod dry_run;
pub(crate) mod patches;
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
