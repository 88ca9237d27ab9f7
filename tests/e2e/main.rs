//! The end-to-end stories: the daemon, an API server, stand-ins for the rest.
//!
//! Each story is a function in one of the modules and reads as one; what it takes for granted is in
//! `tests/support`, a crate that knows the daemon from outside only. It plays as `embedded::…` on the embedded server in
//! paused time. If its declaration says what the embedded server cannot show, it also plays as `real::…` on a real
//! kube-apiserver and etcd with the daemon as a process; with `MOORING_STORIES=all`, all do. Stories on the real server
//! share one control plane and run one after another, because a daemon acts on the whole cluster.
//! After each, what really happened is checked against safety.md.

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// What it says goes to the person who runs the tests.
#![allow(clippy::print_stderr)]

mod asked;
mod attach;
mod binding;
#[path = "../explain_cluster/cluster.rs"]
mod cluster;
mod collector;
mod crash;
mod credentials;
mod dashboards;
mod deploy;
mod detach;
mod economy;
mod ephemeral;
mod exclusive;
mod expander;
mod faults;
mod fence;
mod force;
mod force_waits;
#[path = "../explain/form.rs"]
mod form;
mod harness;
mod in_process;
mod in_tree;
mod logs;
mod made;
mod mass_move;
mod observed;
mod packages;
mod page;
mod permissions;
mod protection;
#[path = "../explain_cluster/question.rs"]
mod question;
mod questions;
mod reader;
mod recorded;
mod recycle;
mod refusals;
mod release;
mod replicas;
mod restore;
mod second_binder;
mod second_controller;
mod serving;
mod slow;
mod stage;
mod standby_memory;
mod standstill;
mod stock_metrics;
mod strange;
mod switch;
mod switch_faults;
mod switching;
mod traces;
mod troubles;

use libtest_mimic::{Arguments, Trial};
use stage::{Place, Story};
use test_support::assets::Assets;

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let mut stories: Vec<Story> = Vec::new();
    stories.extend(harness::stories());
    stories.extend(asked::stories());
    stories.extend(attach::stories());
    stories.extend(in_tree::stories());
    stories.extend(detach::stories());
    stories.extend(force::stories());
    stories.extend(standby_memory::stories());
    stories.extend(economy::stories());
    stories.extend(exclusive::stories());
    stories.extend(mass_move::stories());
    stories.extend(observed::stories());
    stories.extend(binding::stories());
    stories.extend(release::stories());
    stories.extend(restore::stories());
    stories.extend(recycle::stories());
    stories.extend(refusals::stories());
    stories.extend(dashboards::stories());
    stories.extend(crash::stories());
    stories.extend(faults::stories());
    stories.extend(replicas::stories());
    stories.extend(standstill::stories());
    stories.extend(credentials::stories());
    stories.extend(second_binder::stories());
    stories.extend(second_controller::stories());
    stories.extend(fence::stories());
    stories.extend(switch::stories());
    stories.extend(switch_faults::stories());
    stories.extend(slow::stories());
    stories.extend(force_waits::stories());
    stories.extend(serving::stories());
    stories.extend(logs::stories());
    stories.extend(traces::stories());
    stories.extend(deploy::stories());
    stories.extend(packages::stories());
    stories.extend(troubles::stories());
    stories.extend(protection::stories());
    stories.extend(ephemeral::stories());
    stories.extend(expander::stories());
    stories.extend(questions::stories());
    stories.extend(page::stories());
    stories.extend(reader::stories());
    stories.extend(stock_metrics::stories());
    stories.extend(strange::stories());
    stories.extend(recorded::stories());
    stories.extend(permissions::stories());

    let real_name = |story: &Story| format!("real::{}", story.name);
    let mut trials = Vec::new();
    for story in &stories {
        if matches!(story.place, Place::Embedded | Place::EmbeddedAlone | Place::Both) {
            let (name, story) = (format!("embedded::{}", story.name), story.clone());
            trials.push(Trial::test(name, move || stage::play_on_embedded(&story)));
        }
    }
    let are_all_real = std::env::var("MOORING_STORIES").is_ok_and(|value| value == "all");
    stories.retain(|story| match story.place {
        Place::Embedded | Place::RealIfAll => are_all_real,
        Place::EmbeddedAlone => false,
        Place::Both | Place::Real | Place::RealAtTheEnd => true,
    });

    // A filter that is meant for other tests must not start a build of the control plane.
    let is_asked_for =
        !arguments.list && stories.iter().any(|story| is_selected(&arguments, &real_name(story)));
    let assets = if is_asked_for { Assets::find() } else { Err("nothing to run".to_owned()) };
    let is_required = std::env::var("MOORING_REQUIRE_CONTROL_PLANE").is_ok_and(|value| value == "1");
    if let Err(reason) = &assets
        && is_asked_for
        && !is_required
    {
        eprintln!("The end-to-end tests on the real API server are not run: {reason}");
    }
    let is_complete = stories.iter().all(|story| is_selected(&arguments, &real_name(story)));
    trials.extend(stories.into_iter().map(|story| match assets.clone() {
        Ok(_) if story.place == Place::RealAtTheEnd && !is_complete => {
            let reason = || Err("this needs all other stories to be played before".into());
            Trial::test(real_name(&story), reason).with_ignored_flag(true)
        }
        Ok(assets) => Trial::test(real_name(&story), move || stage::play_on_real(&assets, &story)),
        Err(reason) => {
            Trial::test(real_name(&story), move || Err(reason.into())).with_ignored_flag(!is_required)
        }
    }));
    libtest_mimic::run(&arguments, trials).exit();
}

/// Whether the command line's filter lets a test through, as libtest-mimic decides it.
fn is_selected(arguments: &Arguments, name: &str) -> bool {
    let matches =
        |pattern: &String| if arguments.exact { name == pattern } else { name.contains(pattern.as_str()) };
    arguments.filter.as_ref().is_none_or(matches) && !arguments.skip.iter().any(matches)
}
