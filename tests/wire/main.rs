//! What comes over the wire is the same in JSON and in protobuf.
//!
//! The cases (`tests/cases/wire/objects.yaml`) are encoded by the API server's own serializers
//! (`tests/control-plane/protobuf.go`); what it printed is committed, so that Go is not needed here. Where there is
//! Go, [`pinned`] checks that what is committed still is what the pinned release writes.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// What it says goes to the person who runs the tests.
#![allow(clippy::print_stderr)]

mod conformance;
mod encoded;
mod fields;
mod pinned;
