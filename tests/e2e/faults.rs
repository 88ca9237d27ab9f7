//! Faults between the daemon and its API server: answers that lie, are late or never come (E6, E7),
//! watches that break, lag or go back in time (E2, E4, E5). The work goes on and nothing unsafe is
//! written.

use std::time::Duration;

use futures::future::join_all;
use test_support::{actors::Reaction, cluster::DRIVER, daemon::Launch};
use testbed::faults::Storm;
use tokio::time::Instant;

use crate::stage::{DAEMON_NAMESPACE, Stage, Story, seed, story};

/// Kinds that the daemon watches, by their plurals.
const WATCHED: [&str; 7] = [
    "nodes",
    "pods",
    "persistentvolumes",
    "persistentvolumeclaims",
    "volumeattachments",
    "storageclasses",
    "csidrivers",
];

pub fn stories() -> Vec<Story> {
    vec![
        story("faults_of_every_kind_in_a_storm", |stage| storm(stage, seed()))
            .also_real("Faults hit connections, and a late write arrives while others are under way."),
        story("faults_l16_claims_of_a_moment_of_errors_are_bound_soon_after", |stage| {
            errors(stage, Launch::alone())
        }),
        story("faults_l16_claims_of_a_moment_of_errors_are_bound_soon_after_by_a_leader", |stage| {
            errors(stage, Launch::replica_by_default(DAEMON_NAMESPACE))
        }),
        story("faults_end_with_the_outage_of_the_whole_server", outage),
        story("faults_cut_watches_miss_nothing", cut_watches)
            .also_real("A watch begins anew in the watch cache of kube-apiserver."),
        story("faults_watches_that_lag_do_no_harm", late_watches),
        story("faults_watches_from_the_past_do_no_harm", past_watches),
    ]
}

/// Pods with exclusive volumes are moved between nodes, while a third of all writes and a tenth of all
/// reads go wrong.
async fn storm(stage: Stage, seed: u64) {
    const NODES: usize = 3;
    const VOLUMES: usize = 6;
    const MOVES: usize = 4;
    let mut random = fastrand::Rng::with_seed(seed);
    let attacher = stage.attacher();
    attacher.change(|behaviour| behaviour.detach = Reaction::Succeed(Duration::from_millis(20)));
    let (_kubelets, _daemon) = (stage.kubelets(), stage.daemon().await);
    let cluster = &stage.cluster;
    for node in 0..NODES {
        cluster.node(&format!("n{node}")).await;
    }
    let mut weather = Storm::new(seed);
    if !stage.is_real() {
        // Longer than a sender waits: late writes arrive after their sender has given them up.
        weather.longest = Duration::from_secs(9);
    }
    stage.proxy.begin(&weather);
    let pairs = (0..VOLUMES).map(|volume| async move {
        cluster.bound_pair(&format!("v{volume}"), &format!("c{volume}")).await;
    });
    join_all(pairs).await;
    let mut places = [0; VOLUMES];
    for round in 0..MOVES {
        for (volume, place) in places.iter_mut().enumerate() {
            *place = random.usize(..NODES);
            let pod = format!("p{volume}-{round}");
            cluster.pod(&pod, &format!("n{place}"), &[&format!("c{volume}")]).await;
            if round > 0 {
                cluster.delete_pod(&format!("p{volume}-{}", round - 1)).await;
            }
        }
        // Some of them get as far as running before the next move, some do not.
        cluster.running(&format!("p{}-{round}", random.usize(..VOLUMES))).await;
    }
    assert!(stage.proxy.calm() > 10, "this was no storm");

    let last = MOVES - 1;
    join_all((0..VOLUMES).map(|volume| async move { cluster.running(&format!("p{volume}-{last}")).await }))
        .await;
    for node in 0..NODES {
        let here = (0..VOLUMES).filter(|volume| places[*volume] == node);
        let volumes: Vec<String> = here.map(|volume| format!("v{volume}")).collect();
        let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
        cluster.published(&format!("n{node}"), &volumes).await;
    }
    for volume in 0..VOLUMES {
        cluster.delete_pod(&format!("p{volume}-{last}")).await;
    }
    for (volume, node) in places.iter().enumerate() {
        cluster.detached(&format!("v{volume}"), &format!("n{node}")).await;
        cluster.delete_claim(&format!("c{volume}")).await;
        cluster.volume_phase(&format!("v{volume}"), "Released").await;
    }
}

/// How long the moment of [`errors`] lasts.
const MOMENT: Duration = Duration::from_secs(4);
/// How many claims come in it.
const CLAIMS: u32 = 30;

/// Does it for each claim, all at once.
async fn for_each<F: Future<Output = ()>>(act: impl Fn(u32) -> F) {
    join_all((0..CLAIMS).map(act)).await;
}

/// Six writes in ten are answered with an error, carried out or not, which leaves claims in doubt about the volumes that they
/// have chosen, while others come that they would rather have (L16, docs/reasons/Uncertain.md).
async fn errors(stage: Stage, launch: Launch) {
    let _daemon = stage.start_daemon(&launch, &stage.proxy).await;
    let cluster = &stage.cluster;
    for_each(|number| async move {
        cluster.volume(&format!("v{number}")).await;
        cluster.volume_phase(&format!("v{number}"), "Available").await;
    })
    .await;
    stage.proxy.begin(&Storm::of_errors(seed(), 600));
    let begun = Instant::now();
    for_each(|number| async move {
        cluster.claim(&format!("c{number}")).await;
        tokio::time::sleep_until(begun + MOMENT / CLAIMS * number).await;
        cluster.volume(&format!("better{number}")).await;
    })
    .await;
    tokio::time::sleep_until(begun + MOMENT).await;
    assert!(stage.proxy.calm() > 30, "this was no storm");
    let calm = Instant::now();
    for_each(|number| async move {
        cluster.claim_phase(&format!("c{number}"), "Bound").await;
    })
    .await;
    let seconds = calm.elapsed().as_secs_f64();
    eprintln!("{CLAIMS} claims were bound {seconds:.1} s after the errors");
    // Where time is ours to measure.
    assert!(stage.is_real() || calm.elapsed() <= Duration::from_secs(5), "{seconds:.1} s");
}

/// A volume that comes, is bound, moves with its pod from one node to another, and goes.
async fn whole_life(stage: &Stage, number: usize, in_the_midst: impl Fn() + Send + Sync) {
    let cluster = &stage.cluster;
    let name = |prefix: &str| format!("{prefix}{number}");
    let (volume, claim, old, new) = (name("v"), name("c"), name("old"), name("new"));
    cluster.bound_pair(&volume, &claim).await;
    cluster.pod(&old, "n1", &[&claim]).await;
    cluster.running(&old).await;
    in_the_midst();
    cluster.pod(&new, "n2", &[&claim]).await;
    cluster.delete_pod(&old).await;
    in_the_midst();
    cluster.running(&new).await;
    cluster.delete_pod(&new).await;
    cluster.delete_claim(&claim).await;
    in_the_midst();
    cluster.detached(&volume, "n2").await;
    cluster.volume_phase(&volume, "Released").await;
}

async fn two_nodes(stage: &Stage) {
    stage.cluster.node("n1").await;
    stage.cluster.node("n2").await;
    stage.cluster.driver().await;
    stage.cluster.class("unused", "Immediate").await;
}

/// E8, L16: the whole server is away, for longer than any pause grows, while all other clients go on.
async fn outage(stage: Stage) {
    let (_attacher, _kubelets, _daemon) = (stage.attacher(), stage.kubelets(), stage.daemon().await);
    let cluster = &stage.cluster;
    two_nodes(&stage).await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("old", "n1", &["c1"]).await;
    cluster.running("old").await;
    let writes = stage.proxy.counted();
    stage.proxy.take_away();
    cluster.pod("new", "n2", &["c1"]).await;
    cluster.delete_pod("old").await;
    cluster.pod_gone("old").await;
    cluster.volume("v2").await;
    cluster.claim("c2").await;
    stage.proxy.missed(12 * WATCHED.len()).await;

    stage.proxy.bring_back();
    let back = Instant::now();
    stage.proxy.wrote(writes + 1).await;
    // Where time is ours to measure.
    assert!(stage.is_real() || back.elapsed() <= Duration::from_secs(5), "{:?}", back.elapsed());
    cluster.running("new").await;
    cluster.bound("c2", "v2").await;
}

/// E5: each watch is cut at every point of a volume's life.
async fn cut_watches(stage: Stage) {
    let (_attacher, _kubelets, _daemon) = (stage.attacher(), stage.kubelets(), stage.daemon().await);
    two_nodes(&stage).await;
    for (number, plural) in WATCHED.into_iter().enumerate() {
        let begun = stage.proxy.watches().begun(plural);
        whole_life(&stage, number, || stage.proxy.watches().cut(plural)).await;
        // Cut three times, and open again.
        stage.proxy.watches().began(plural, begun + 1).await;
    }
}

/// E4: the order between kinds is not given. Each kind in turn lags behind all others while a pod moves;
/// the stand-ins see everything at once.
async fn late_watches(stage: Stage) {
    let (_attacher, _kubelets, _daemon) = (stage.attacher(), stage.kubelets(), stage.daemon().await);
    let cluster = &stage.cluster;
    two_nodes(&stage).await;
    for (number, plural) in WATCHED.into_iter().enumerate() {
        let name = |prefix: &str| format!("{prefix}{number}");
        let (volume, claim, old, new) = (name("v"), name("c"), name("old"), name("new"));
        cluster.bound_pair(&volume, &claim).await;
        cluster.pod(&old, "n1", &[&claim]).await;
        cluster.running(&old).await;
        stage.proxy.watches().delay(plural);
        cluster.pod(&new, "n2", &[&claim]).await;
        cluster.delete_pod(&old).await;
        cluster.pod_gone(&old).await;
        stage.proxy.watches().resume(plural);
        cluster.running(&new).await;
        cluster.published("n1", &[]).await;
        cluster.delete_pod(&new).await;
        cluster.detached(&volume, "n2").await;
    }
}

/// E2: an API server that lags behind shows the past again: objects before their latest change, and
/// objects that are long gone.
async fn past_watches(stage: Stage) {
    let (_attacher, _kubelets, _daemon) = (stage.attacher(), stage.kubelets(), stage.daemon().await);
    two_nodes(&stage).await;
    for (number, plural) in WATCHED.into_iter().enumerate() {
        whole_life(&stage, number, || stage.proxy.watches().rewind(plural, 25)).await;
    }
    // What was said to be there again has led to nothing.
    for (number, _) in WATCHED.into_iter().enumerate() {
        let volume = format!("v{number}");
        for node in ["n1", "n2"] {
            assert!(stage.cluster.attachment_now(&volume, node).await.is_none(), "{volume} {node} {DRIVER}");
        }
    }
}
