//! Support for everything that runs against an API server: the end-to-end stories and the
//! benchmarks, which include this folder as a module.
//!
//! Lowest first: [`process`] (children that never outlive us), [`assets`] (where the binaries are),
//! [`control_plane`] (etcd and kube-apiserver), [`actors`] (stand-ins for the other components,
//! from the library),
//! [`visitor`] (who may read its pages), [`daemon`] (as a process or in this one), [`wire`] (between it and its
//! API server), [`history`] and [`audit`] (what really happened),
//! [`backend`] (a real or an embedded API server with such a record), [`invariants`] (whether what
//! happened was allowed).

// Each including crate uses a part of it.
#![allow(dead_code, unused_imports)]
// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::missing_panics_doc, clippy::must_use_candidate)]

pub mod assets;
pub mod audit;
pub mod backend;
pub mod cluster;
pub mod control_plane;
pub mod daemon;
pub mod history;
pub mod invariants;
pub mod process;
pub mod visitor;
pub mod wire;
pub mod writes;

pub use mooring::embedded::actors;
