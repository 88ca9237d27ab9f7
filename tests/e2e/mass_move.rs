//! Forty exclusive volumes move from one node to another while the daemon is killed again and again. The
//! stock controller ends up with all forty attached to both nodes; here no two VolumeAttachments of one
//! volume exist at any revision (S1, checked in the history after the story).

use std::time::Duration;

use futures::future::join_all;
use test_support::actors::Reaction;
use testbed::faults::CrashPoint;

use crate::stage::{Stage, Story, story};

const VOLUMES: usize = 40;
/// Kills, and writes of the daemon before each: all together fewer than the creates and deletes of the volumes, so
/// that there is always one more.
const KILLS: usize = 12;
const WRITES: usize = 4;

pub fn stories() -> Vec<Story> {
    vec![
        story("exclusive_volumes_move_by_the_dozen_while_the_daemon_is_killed", move_all)
            .also_real("A process that is killed leaves requests in its sockets; S1 is checked in etcd."),
    ]
}

async fn move_all(stage: Stage) {
    let attacher = stage.attacher();
    // Long enough for detaches to be under way whenever the daemon dies.
    attacher.change(|behaviour| behaviour.detach = Reaction::Succeed(Duration::from_millis(200)));
    let _kubelets = stage.kubelets();
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.node("n2").await;
    {
        let _daemon = stage.daemon().await;
        join_all((0..VOLUMES).map(|number| async move {
            let (volume, claim) = (format!("v{number}"), format!("c{number}"));
            cluster.bound_pair(&volume, &claim).await;
            cluster.pod(&format!("old{number}"), "n1", &[&claim]).await;
            cluster.running(&format!("old{number}")).await;
        }))
        .await;
    }
    join_all((0..VOLUMES).map(|number| async move {
        cluster.pod(&format!("new{number}"), "n2", &[&format!("c{number}")]).await;
        cluster.delete_pod(&format!("old{number}")).await;
    }))
    .await;
    for kill in 0..KILLS {
        let crash = stage
            .proxy
            .crash_at(stage.proxy.counted() + WRITES, CrashPoint::ALL[kill % CrashPoint::ALL.len()]);
        let daemon = stage.daemon().await;
        crash.reached().await;
        daemon.kill();
        stage.proxy.thaw();
    }
    let _daemon = stage.daemon().await;
    join_all((0..VOLUMES).map(|number| async move {
        cluster.running(&format!("new{number}")).await;
        cluster.detached(&format!("v{number}"), "n1").await;
    }))
    .await;
    let history = stage.history().await;
    let of_attachments = || history.iter().filter(|change| change.resource == "volumeattachments");
    let made = of_attachments().filter(|change| change.before.is_none()).count();
    let gone = of_attachments().filter(|change| change.after.is_none()).count();
    assert_eq!((made, gone), (2 * VOLUMES, VOLUMES), "attachments made and gone");
}
