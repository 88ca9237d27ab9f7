//! Clusters of any size that nobody has stored, and one daemon in them.
//!
//! [`objects`] makes an object of its number, [`encode`] turns JSON into protobuf, [`server`] and [`answers`] serve that in a
//! process of its own, [`course`] is what the daemon goes through, [`report`] prints.

mod answers;
mod course;
mod encode;
mod objects;
mod plane;
mod report;
mod server;
mod tls;
mod turns;

use super::Options;

/// Serves a cluster of so many nodes, for ever.
pub async fn serve(nodes: usize, options: &Options) {
    let (pods, attached) = (options.pods, options.attached);
    let claims = attached + options.spare;
    server::serve(objects::Shape { nodes, pods, attached, claims, seed: options.seed }).await;
}

/// Takes a daemon through each size.
pub async fn run(options: &Options) {
    let mut results = Vec::new();
    for nodes in &options.nodes {
        let result = Box::pin(course::run(*nodes, options)).await;
        // What has been measured is not lost when the next one fails.
        eprintln!("{}", report::render(std::slice::from_ref(&result)));
        results.push(result);
    }
    print!("{}", report::render(&results));
}
