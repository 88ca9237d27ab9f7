//! mooring: attach/detach controller and PV binder for Kubernetes, as one daemon.
//!
//! ```text
//!             watch              populate                 plan (pure)              execute
//!  API server ─────▶ kube_api ──────────▶ state: desired ┐
//!                                               actual   ├─▶ reconciler ─▶ calls ─▶ executor ─▶ API server
//!                                               objects  ┘      │                     │
//!                                                               └▶ waiting            └▶ outcomes ─▶ state
//! ```
//!
//! - The floor: [`kube_api`] (single requests, narrow kinds, watches, lease, events), [`state`] (one
//!   table per kind), [`metrics`], [`http`].
//! - The skeleton of every controller: [`controller`].
//! - The controllers, which never import each other: [`attach_detach`], [`binder`] and [`protection`].
//! - Explanations, made of dry runs of the controllers: [`explain`].
//! - The process: [`program`], [`cli`], [`asking`], [`config`], [`app`], [`supervise`], [`routes`], [`zpages`], [`telemetry`].
//!
//! Beside this crate: `testbed`, an API server in the process with stand-ins for everything around the daemon, which knows
//! nothing of mooring; `demo`, the daemon at work on it.
//!
//! Every change marks the keys it touches dirty; dirty keys are planned by functions of values; each
//! plan asks for at most one request per key, which carries the UID and the revision it was decided on.
//! A crash after any write is therefore recovered by planning again.

pub mod app;
pub mod asking;
pub mod attach_detach;
pub mod binder;
pub mod build_info;
pub mod cli;
pub mod config;
pub mod controller;
mod debugging;
pub mod explain;
pub mod http;
pub mod metrics;
pub mod program;
pub mod protection;
pub mod routes;
pub mod serving_flags;
pub mod supervise;
pub mod telemetry;
pub mod zpages;

pub use ::apiserver::{self as kube_api, tables as state};
pub use ::telemetry::traces;
