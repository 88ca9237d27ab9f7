//! What is running: what `build.rs` found out.

use serving::zpages::Component;

/// Version of the crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit it was built from, or `unknown`.
pub const COMMIT: &str = env!("MOORING_COMMIT");
/// Version of the compiler.
pub const RUSTC: &str = env!("MOORING_RUSTC");
/// What it was built for, such as `x86_64-unknown-linux-gnu`.
pub const TARGET: &str = env!("MOORING_TARGET");

/// Labels of `mooring_build_info`.
pub const BUILD: [(&str, &str); 3] = [("commit", COMMIT), ("rustc", RUSTC), ("version", VERSION)];

/// What `/version` and `/statusz` say.
pub const COMPONENT: Component =
    Component { name: "mooring", version: VERSION, commit: COMMIT, rustc: RUSTC, target: TARGET };
