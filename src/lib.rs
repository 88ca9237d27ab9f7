//! mooring: attach/detach controller and PV binder for Kubernetes, as one daemon.
//!
//! ```text
//!             watch          changes                     plan (pure)           execute
//!  API server ─────▶ tables ────────▶ controller: its state ─────────▶ calls ─▶ executor ─▶ API server
//!                                          ▲                    └▶ events, reports   │
//!                                          └─────────────── answers ◀────────────────┘
//! ```
//!
//! - The crates below: [`apiserver`] (watches, tables, single requests, lease, events), [`serving`] (HTTPS),
//!   [`telemetry`](::telemetry) (text of metrics, logs, traces, profiles).
//! - The floor: [`metrics`] and [`telemetry`], names of our own in that crate's forms.
//! - The admission policies that keep kube-controller-manager's loops from writing: [`fence`].
//! - The skeleton of every controller: [`controller`].
//! - The controllers, which never import each other: [`attach_detach`], [`binder`], [`protection`], [`vac_protection`],
//!   [`expander`] and [`ephemeral`].
//! - What the binder has done on this machine, if that is asked for: [`host_plugins`].
//! - Explanations, made of dry runs of the controllers: [`explain`].
//! - What mooring would do beside another process that rules: [`observe`].
//! - The process: [`program`], [`terminal`], [`cli`], [`query`], [`config`], [`app`], [`supervise`], [`routes`], [`configz`],
//!   [`telemetry`].
//! - Who rules: [`preflight`] judges whether a cluster can be switched, [`switch`] does it.
//!
//! Beside this crate: `testbed`, an API server in the process with stand-ins for everything around the daemon, which knows
//! nothing of mooring; `demo`, the daemon at work on it.
//!
//! Every change marks the keys it touches dirty; dirty keys are planned by functions of values; each
//! plan asks for at most one request per key, which carries the UID and the revision it was decided on.
//! A crash after any write is therefore recovered by planning again.

pub mod app;
pub mod attach_detach;
pub mod binder;
pub mod build_info;
pub mod cli;
pub mod config;
pub mod configz;
pub mod controller;
mod debugging;
pub mod durations;
pub(crate) mod ephemeral;
pub(crate) mod expander;
pub mod explain;
pub mod fence;
pub mod host_plugins;
pub mod metrics;
pub mod observe;
pub mod preflight;
pub mod program;
pub(crate) mod protection;
pub mod query;
pub mod routes;
pub mod serving_flags;
pub mod supervise;
mod switch;
pub mod telemetry;
pub mod terminal;
pub(crate) mod vac_protection;
