//! Support for everything that runs against an API server: the end-to-end stories and the benchmarks.
//!
//! Lowest first: [`process`] (children that never outlive us), [`standstill`] (a thread of theirs that does not go on), [`assets`] (where the binaries are),
//! [`control_plane`] (etcd and kube-apiserver), [`actors`] (stand-ins for the other components, from the testbed),
//! [`visitor`] (who may read its pages), [`daemon`] (as a process, or in the test's own as the test makes it), [`wire`]
//! (between it and its API server), [`history`] and [`audit`] (what really happened), [`backend`] (a real or an embedded API
//! server with such a record), [`promises`] (what must not be, as functions of values), [`invariants`] and [`writes`]
//! (whether what happened was allowed). And, for tests without any, [`cases`] (where they are) and [`store`] (an API server of
//! values).
//!
//! It depends only on the daemon's flags, pages and log. So a change of the daemon does not rebuild this crate, and the
//! checks see the same as other programs.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// No crate but the tests beside it sees this.
#![allow(clippy::missing_panics_doc, clippy::must_use_candidate, missing_docs)]
// What it says goes to the person who runs the tests.
#![allow(clippy::print_stderr)]

pub mod assets;
pub mod attributes_class;
pub mod audit;
pub mod backend;
pub mod cases;
pub mod cluster;
pub mod control_plane;
pub mod daemon;
pub mod history;
pub mod invariants;
mod keys;
pub mod openmetrics;
pub mod plain_config;
pub mod process;
pub mod promises;
pub mod standstill;
pub mod store;
pub mod visitor;
pub mod wire;
pub mod writes;

use std::path::Path;

pub use testbed::actors;

/// The repository's root.
pub fn repository() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("this crate is in tests/support")
}
