//! What the demo says at its start and end, and the commands that it shows.

use mooring::explain::sheet::command;
use testbed::troubles::{
    script::SHOWN_SEAT,
    stage::{HOPELESS_CLAIM, QUARANTINE, TOLERATION},
};

use super::{place::Place, scraped, snapshot::Snapshot};
use crate::arguments::DemoArgs;

/// After how many seconds the daemon detaches from a node that is gone; its default is 6 minutes.
pub const GONE_NODE_AFTER: u64 = 8;

/// How many of those that wait at the end are named.
const NAMED: usize = 5;

/// The command that is run in this process.
pub fn daemon_command(args: &DemoArgs, place: &Place) -> Vec<String> {
    let mut command = vec![
        "mooring".to_owned(),
        "run".to_owned(),
        format!("--kubeconfig={}", place.kubeconfig().display()),
        format!("--force-detach-gone-node-after={GONE_NODE_AFTER}s"),
    ];
    match args.metrics {
        Some(port) => {
            command.extend(["--bind-address=127.0.0.1".to_owned(), format!("--secure-port={port}")]);
        }
        // Its pages are read in this process.
        None => command.push("--secure-port=0".to_owned()),
    }
    command
}

/// What asks this program about the whole cluster, as it can be typed.
fn doctor() -> String {
    let found = std::env::current_exe().ok();
    let program = found.map_or_else(|| "mooring-demo".to_owned(), |path| path.display().to_string());
    command(&[program, "doctor".to_owned()])
}

/// What to try beside the demo.
pub fn commands() -> [String; 3] {
    [
        "kubectl get pods,pvc,volumeattachments".to_owned(),
        format!("kubectl describe pvc {HOPELESS_CLAIM}"),
        format!("kubectl delete pod {SHOWN_SEAT}"),
    ]
}

/// What is said before the first line.
pub fn opening(args: &DemoArgs, seed: u64, place: &Place, page: &str) -> String {
    let [get, describe, delete] = commands();
    let doctor = doctor();
    let metrics = args.metrics.map_or_else(String::new, |_| {
        let [prometheus, grafana] = scraped::commands(place.folder());
        format!("See its dashboards on a Prometheus and a Grafana that are installed here, at http://127.0.0.1:3000:\n  {prometheus}\n  {grafana}\n")
    });
    format!(
        "A cluster in this process: {nodes} nodes, {volumes} volumes, seed {seed}. The daemon in it is\n  \
         {daemon}\n\
         Some patience is cut short here: pods leave a dead node after {toleration} s (in a cluster: 300 s);\n\
         those of a removed node go after {quarantine} s (40 s), its volumes after {GONE_NODE_AFTER} s (6 min).\n\
         What waits, and why, in a browser:\n  {page}\n\
         Look at it from another terminal:\n  \
         export KUBECONFIG={kubeconfig}\n  {get}\n  {describe}\n  {delete}\n  {doctor}\n\
         {metrics}",
        nodes = args.nodes,
        volumes = args.volumes,
        daemon = daemon_command(args, place).join(" "),
        toleration = TOLERATION.as_secs(),
        quarantine = QUARANTINE.as_secs(),
        kubeconfig = place.kubeconfig().display(),
    )
}

/// What is said after the last line.
pub fn summary(snapshot: &Snapshot) -> String {
    let totals: Vec<String> =
        snapshot.rates.iter().map(|rate| format!("{} {}", rate.total, rate.name)).collect();
    let seconds = snapshot.elapsed.as_secs();
    let mut waiting: Vec<&str> = snapshot.waiting.iter().map(|row| row.subject.as_str()).collect();
    let others = match waiting.len().saturating_sub(NAMED) {
        0 => String::new(),
        count => format!(" and {count} more"),
    };
    waiting.truncate(NAMED);
    format!(
        "mooring demo: {} in {seconds} s with seed {}; waiting at the end: {}{others}.",
        totals.join(", "),
        snapshot.seed,
        if waiting.is_empty() { "nothing".to_owned() } else { waiting.join(", ") },
    )
}
