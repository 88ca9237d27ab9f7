//! Duel: mooring beside the stock controllers (kube-controller-manager, KCM), on a real API server.
//!
//! `cargo bench --bench duel -- --nodes 50 --volumes 1000`
//!
//! One subject after the other does the same work on a fresh control plane, with stand-ins that
//! answer at once. What comes out is one table. It measures, it does not judge: there is no
//! threshold in here.
//!
//! `cargo bench --bench duel -- --idle-bound 50000 --idle-released 10000 --idle-for 600`
//!
//! The same two, each in a cluster in which nothing happens.
//!
//! `cargo bench --bench duel -- --subjects mooring,floor`
//!
//! Mooring beside the bare writes of each operation: the most that the API server of this machine allows.
//!
//! `cargo bench --bench duel -- --subjects mooring,mooring-elected,floor,floor-elected,floor-watching`
//!
//! What of the difference between these two the term of a leader costs, and what the watches cost.
//!
//! `cargo bench --bench duel -- --subjects mooring,kcm,floor --traffic`
//!
//! What an operation costs the API server in bytes, too.
//!
//! [`subject`] runs what is measured, [`floor`] is what none can go below, [`load`] makes the work, [`sightings`] sees it done,
//! [`bout`] measures one by the other, [`phases`] are the course of it, [`cost`] and
//! [`instructions`] read who paid, [`traffic`] counts bytes, [`report`] prints.

// A benchmark ends at the first thing that goes wrong, and says so on the terminal.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::print_stdout, clippy::print_stderr)]
// Counts and ticks become rates and quotients; they are far below 2^52.
#![allow(clippy::cast_precision_loss)]

mod bout;
mod cost;
mod floor;
mod instructions;
mod load;
mod phases;
mod report;
mod sightings;
mod subject;
mod traffic;
mod watched;

use std::{path::PathBuf, time::Duration};

use clap::Parser;

use report::Conditions;
use subject::Kind;
use test_support::assets::Assets;

/// Compares mooring with kube-controller-manager on a real API server.
#[derive(Clone, Debug, Parser)]
#[command(name = "duel")]
pub struct Options {
    /// Nodes; volumes are spread evenly over them.
    #[arg(long, default_value_t = 50)]
    nodes: usize,
    /// Volumes that are bound, attached and detached all at once.
    #[arg(long, default_value_t = 1000)]
    volumes: usize,
    /// Further volumes that are bound, attached and detached one after the other.
    #[arg(long, default_value_t = 30)]
    one_at_a_time: usize,
    /// Who takes part, in this order.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "mooring,kcm")]
    subjects: Vec<Kind>,
    /// How long to watch a subject do nothing, in seconds.
    #[arg(long, default_value_t = 10)]
    idle: u64,
    /// Claims that are there before their volumes, which come one after the other.
    #[arg(long, default_value_t = 10)]
    late_volumes: usize,
    /// Bound pairs of a cluster in which nothing happens. With this or --idle-released nothing else is
    /// measured.
    #[arg(long, default_value_t = 0)]
    idle_bound: usize,
    /// Released volumes of such a cluster. They refer to names of claims that are there again.
    #[arg(long, default_value_t = 0)]
    idle_released: usize,
    /// How long to watch a subject in such a cluster, in seconds.
    #[arg(long, default_value_t = 600)]
    idle_for: u64,
    /// Counts the bytes between subject and API server with a proxy, which takes time of the machine.
    #[arg(long)]
    traffic: bool,
    /// Another build of mooring, to be compared with this one.
    #[arg(long)]
    mooring: Option<PathBuf>,
    /// Cargo passes this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn idle(&self) -> Duration {
        Duration::from_secs(self.idle)
    }

    /// Whether only a cluster in which nothing happens is to be shown.
    fn is_at_rest(&self) -> bool {
        self.idle_bound + self.idle_released > 0
    }
}

#[tokio::main]
async fn main() {
    let options = Options::parse();
    let assets = match Assets::find() {
        Ok(assets) => assets,
        Err(reason) => {
            eprintln!("{reason}");
            std::process::exit(2);
        }
    };
    let mut conditions = Conditions::now(&options);
    let mut results = Vec::new();
    for kind in &options.subjects {
        let result = match kind {
            // It has nothing to do there.
            _ if kind.is_floor() && options.is_at_rest() => continue,
            _ if options.is_at_rest() => phases::run_at_rest(&assets, *kind, &options).await,
            _ if kind.is_floor() => phases::run_floor(&assets, *kind, &options).await,
            _ => phases::run(&assets, *kind, &options).await,
        };
        conditions.kubernetes.clone_from(&result.kubernetes);
        results.push(result);
    }
    print!("{}", report::render(&conditions, &results));
}
