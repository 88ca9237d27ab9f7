//! Scale: mooring beside the stock controllers in clusters of thousands of nodes, on a real API server.
//!
//! `cargo bench --bench scale -- --nodes 500,1000,5000`
//!
//! For each size and subject etcd is filled with a whole cluster before the API server starts. Then the subject
//! starts, comes to rest, hears of what does not concern it, does some work, and loses all its watches. What
//! comes out is one table, and one of questions that the command line is asked meanwhile; there is no threshold in here. With 5 000 nodes the API server needs 10 GiB.
//!
//! `cargo bench --bench scale -- --simulated --nodes 5000,100000`
//!
//! The same for mooring alone, and for clusters that no machine has room for: [`simulated`] makes them up.
//!
//! [`world`] is the cluster, [`course`] what the subject goes through, [`report`] prints. The rest is the duel's, of
//! which this needs a part.

// A benchmark ends at the first thing that goes wrong, and says so on the terminal.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::print_stdout, clippy::print_stderr)]
// Counts and ticks become rates and quotients; they are far below 2^52.
#![allow(clippy::cast_precision_loss)]

mod asking;
mod bare_watch;
#[expect(dead_code, reason = "the duel's")]
#[path = "../duel/bout.rs"]
mod bout;
#[expect(dead_code, reason = "the duel's")]
#[path = "../duel/cost.rs"]
mod cost;
mod course;
#[path = "../duel/floor.rs"]
mod floor;
#[path = "../duel/instructions.rs"]
mod instructions;
#[expect(dead_code, reason = "the duel's")]
#[path = "../duel/load.rs"]
mod load;
mod report;
#[path = "../duel/sightings.rs"]
mod sightings;
mod simulated;
#[expect(dead_code, reason = "the duel's")]
#[path = "../duel/subject.rs"]
mod subject;
#[expect(dead_code, reason = "only the duel counts bytes")]
#[path = "../duel/traffic.rs"]
mod traffic;
#[path = "../duel/watched.rs"]
mod watched;
mod world;

use std::path::PathBuf;

use clap::Parser;

use subject::Kind;
use test_support::assets::Assets;

/// Measures what mooring and kube-controller-manager need in large clusters.
#[derive(Clone, Debug, Parser)]
#[command(name = "scale")]
pub struct Options {
    /// Sizes of the cluster, one after the other.
    #[arg(long, value_delimiter = ',', default_value = "500,1000")]
    nodes: Vec<usize>,
    /// Pods of each node.
    #[arg(long, default_value_t = 30)]
    pods: usize,
    /// Of those, pods with an attached volume.
    #[arg(long, default_value_t = 12)]
    attached: usize,
    /// Bound pairs for each node that no pod uses.
    #[arg(long, default_value_t = 8)]
    spare: usize,
    /// Who takes part, in this order.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "mooring,kcm")]
    subjects: Vec<Kind>,
    /// Volumes that are bound, attached and detached all at once.
    #[arg(long, default_value_t = 1000)]
    volumes: usize,
    /// Nodes that these are attached to.
    #[arg(long, default_value_t = 50)]
    busy_nodes: usize,
    /// Volumes that are attached one after the other.
    #[arg(long, default_value_t = 30)]
    one_at_a_time: usize,
    /// Status updates of nodes, and of pods, that do not concern the subject.
    #[arg(long, default_value_t = 3000)]
    updates: usize,
    /// How long to watch a subject do nothing, in seconds.
    #[arg(long, default_value_t = 20)]
    idle: u64,
    /// Another build of mooring, to be compared with this one.
    #[arg(long)]
    mooring: Option<PathBuf>,
    /// Makes the clusters up instead of storing them.
    #[arg(long)]
    simulated: bool,
    /// Of a made-up cluster, neither questions nor a take-over: where there is room for one such process only.
    #[arg(long)]
    brief: bool,
    /// What they are made from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Serves a made-up cluster of so many nodes, for the benchmark's own use.
    #[arg(long, hide = true)]
    serve_simulated: Option<usize>,
    /// Watches nodes and does nothing else, for the benchmark's own use.
    #[arg(long, hide = true)]
    bare_watch: Option<PathBuf>,
    /// Cargo passes this to every benchmark.
    #[arg(long, hide = true)]
    bench: bool,
}

#[tokio::main]
async fn main() {
    let options = Options::parse();
    if let Some(kubeconfig) = &options.bare_watch {
        return bare_watch::watch(kubeconfig).await;
    }
    if let Some(nodes) = options.serve_simulated {
        return simulated::serve(nodes, &options).await;
    }
    if options.simulated {
        return simulated::run(&options).await;
    }
    let (assets, seeder) = match Assets::find().and_then(|assets| Ok((assets, Assets::seed()?))) {
        Ok(found) => found,
        Err(reason) => {
            eprintln!("{reason}");
            std::process::exit(2);
        }
    };
    let mut results = Vec::new();
    for nodes in &options.nodes {
        for kind in &options.subjects {
            let result = Box::pin(course::run(&assets, &seeder, *kind, *nodes, &options)).await;
            // What has been measured is not lost when the next one fails.
            eprintln!("{}", report::render(std::slice::from_ref(&result)));
            results.push(result);
        }
    }
    print!("{}", report::render(&results));
}
