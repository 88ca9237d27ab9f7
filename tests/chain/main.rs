//! The chain stories: the daemon beside the real csi-attacher, csi-provisioner, csi-resizer and kube-scheduler on
//! a real API server, with a CSI driver that has no storage. Only the kubelets are stand-ins.
//!
//! Their binaries take minutes to build, so that is done when `MOORING_REQUIRE_CHAIN=1` asks for it;
//! otherwise the stories are listed as ignored.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// What it says goes to the person who runs the tests.
#![allow(clippy::print_stderr)]

mod attachers;
mod stage;
mod stories;

use libtest_mimic::{Arguments, Trial};

fn main() {
    let mut arguments = Arguments::from_args();
    // A daemon acts on the whole cluster.
    arguments.test_threads = Some(1);
    let is_required = std::env::var("MOORING_REQUIRE_CHAIN").is_ok_and(|value| value == "1");
    if !is_required && !arguments.list {
        eprintln!(
            "The chain stories are not run: MOORING_REQUIRE_CHAIN=1 builds what they need, and runs them."
        );
    }
    let stories = stories::stories().into_iter();
    let stories = stories.map(|(name, story)| Trial::test(name, move || stage::play(story)));
    let attachers = Trial::test("the_stand_in_attacher_does_what_the_real_one_does", attachers::compare);
    let trials = stories.chain([attachers]).map(|trial| trial.with_ignored_flag(!is_required));
    libtest_mimic::run(&arguments, trials.collect()).exit();
}
