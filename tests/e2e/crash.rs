//! The daemon is killed at each of its writes, in each way (E1), and started again: the end is that
//! of a run without a crash.
//!
//! The writes are numbered by the proxy, so a write that is added later is a new place to be killed
//! at without anybody thinking of it.

use mooring::embedded::faults::CrashPoint;

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("crash_at_each_write_of_an_attach", attach),
        story("crash_at_each_write_of_a_detach", detach),
        story("crash_at_each_write_of_a_bind", bind),
        story("crash_at_each_write_of_a_release", release),
    ]
}

/// One round of a workflow, with names of its own.
struct Round {
    node: String,
    volume: String,
    claim: String,
    pod: String,
}

impl Round {
    fn new(number: usize) -> Self {
        Self {
            node: format!("n{number}"),
            volume: format!("v{number}"),
            claim: format!("c{number}"),
            pod: format!("p{number}"),
        }
    }
}

/// What a workflow consists of.
trait Workflow {
    /// Makes the situation it starts from, with a daemon running.
    async fn prepare(&self, stage: &Stage, round: &Round);
    /// What sets it off.
    async fn begin(&self, stage: &Stage, round: &Round);
    /// Waits for its end.
    async fn end(&self, stage: &Stage, round: &Round);
}

/// Plays the workflow once undisturbed, then once for each write and way to be killed at it.
async fn crash_everywhere(stage: &Stage, workflow: impl Workflow) {
    let reference = Round::new(0);
    let daemon = stage.daemon().await;
    workflow.prepare(stage, &reference).await;
    let before = stage.proxy.writes().len();
    workflow.begin(stage, &reference).await;
    workflow.end(stage, &reference).await;
    daemon.kill();
    let writes = stage.proxy.writes().len() - before;
    assert!(writes > 0, "the workflow makes no write");

    let mut number = 0;
    for write in 1..=writes {
        for point in CrashPoint::ALL {
            number += 1;
            let round = Round::new(number);
            let daemon = stage.daemon().await;
            workflow.prepare(stage, &round).await;
            let crash = stage.proxy.crash_at(stage.proxy.writes().len() + write, point);
            workflow.begin(stage, &round).await;
            crash.reached().await;
            daemon.kill();
            stage.proxy.thaw();
            let daemon = stage.daemon().await;
            workflow.end(stage, &round).await;
            daemon.kill();
        }
    }
}

/// Creations and deletions of VolumeAttachments since the story began.
async fn attachments_made_and_deleted(stage: &Stage) -> (usize, usize) {
    let history = stage.history().await;
    let of_attachments = || history.iter().filter(|change| change.resource == "volumeattachments");
    let made = of_attachments().filter(|change| change.before.is_none()).count();
    let deleted = of_attachments().filter(|change| change.after.is_none()).count();
    (made, deleted)
}

async fn attach(stage: Stage) {
    struct Attach;
    impl Workflow for Attach {
        async fn prepare(&self, stage: &Stage, round: &Round) {
            stage.cluster.node(&round.node).await;
            stage.cluster.bound_pair(&round.volume, &round.claim).await;
        }
        async fn begin(&self, stage: &Stage, round: &Round) {
            stage.cluster.pod(&round.pod, &round.node, &[&round.claim]).await;
        }
        async fn end(&self, stage: &Stage, round: &Round) {
            stage.cluster.published(&round.node, &[&round.volume]).await;
            stage.cluster.running(&round.pod).await;
        }
    }
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    crash_everywhere(&stage, Attach).await;
    // One VolumeAttachment for each round: 2 writes in 3 ways, and the reference.
    assert_eq!(attachments_made_and_deleted(&stage).await, (7, 0));
}

async fn detach(stage: Stage) {
    struct Detach;
    impl Workflow for Detach {
        async fn prepare(&self, stage: &Stage, round: &Round) {
            stage.cluster.node(&round.node).await;
            stage.cluster.bound_pair(&round.volume, &round.claim).await;
            stage.cluster.pod(&round.pod, &round.node, &[&round.claim]).await;
            stage.cluster.running(&round.pod).await;
        }
        async fn begin(&self, stage: &Stage, round: &Round) {
            stage.cluster.delete_pod(&round.pod).await;
        }
        async fn end(&self, stage: &Stage, round: &Round) {
            stage.cluster.pod_gone(&round.pod).await;
            stage.cluster.detached(&round.volume, &round.node).await;
            stage.cluster.published(&round.node, &[]).await;
        }
    }
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    crash_everywhere(&stage, Detach).await;
    assert_eq!(attachments_made_and_deleted(&stage).await, (7, 7));
}

async fn bind(stage: Stage) {
    struct Bind;
    impl Workflow for Bind {
        async fn prepare(&self, stage: &Stage, round: &Round) {
            stage.cluster.volume(&round.volume).await;
            stage.cluster.volume_phase(&round.volume, "Available").await;
        }
        async fn begin(&self, stage: &Stage, round: &Round) {
            stage.cluster.claim(&round.claim).await;
        }
        async fn end(&self, stage: &Stage, round: &Round) {
            stage.cluster.bound(&round.claim, &round.volume).await;
        }
    }
    crash_everywhere(&stage, Bind).await;
}

async fn release(stage: Stage) {
    struct Release;
    impl Workflow for Release {
        async fn prepare(&self, stage: &Stage, round: &Round) {
            stage.cluster.bound_pair(&round.volume, &round.claim).await;
        }
        async fn begin(&self, stage: &Stage, round: &Round) {
            stage.cluster.delete_claim(&round.claim).await;
        }
        async fn end(&self, stage: &Stage, round: &Round) {
            stage.cluster.volume_phase(&round.volume, "Released").await;
        }
    }
    crash_everywhere(&stage, Release).await;
}
