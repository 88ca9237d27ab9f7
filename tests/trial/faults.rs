//! Plays a window of faults: what is done when it begins, what while it lasts, and what heals it.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use test_support::history::History;
use tokio::time::Instant;

use crate::{
    balancer::Mode,
    objects,
    plan::{Fault, Window},
    record::{Recorder, now},
    stage::{Part, Stage, signal_to},
};

/// How far a clock is off.
const OFF: i64 = 600;

/// A rolling update replaces each replica so often, one every second.
const ROLLS: usize = 3;
const ROLL: Duration = Duration::from_secs(1);

/// A fault that has begun, with what it met.
#[derive(Clone, Debug)]
pub struct Begun {
    fault: Fault,
    replica: usize,
    kubelet: usize,
    since: Instant,
    /// In milliseconds since 1970.
    from: i64,
    /// Replicas that were replaced.
    rolled: usize,
}

/// Begins all faults of a window. First what takes an API server that answers.
pub async fn begin(stage: &mut Stage, recorder: &Recorder, window: &Window) -> Vec<Begun> {
    // If none leads, the first may be about to.
    let leader = stage.leader().await.unwrap_or_default();
    let kubelet = window.node % stage.kubelets.len();
    let meets_leader = window.faults.iter().any(|fault| fault.is_of_leader());
    let mut faults = window.faults.clone();
    faults.sort_by_key(|fault| !fault.is_of_objects());
    let standby = stage.replicas.len() - 1 - leader;
    let mut all = Vec::new();
    for fault in faults {
        // Beside a fault of the leader, it is the clock of its successor that is off.
        let replica = if fault.is_of_clock() && meets_leader { standby } else { leader };
        match fault {
            Fault::KillLeader => stage.replicas[replica].kill(),
            Fault::FreezeLeader => stage.replicas[replica].signal("-STOP"),
            Fault::RefuseLeader => stage.replicas[replica].line.set(Mode::Refuse),
            Fault::HoldLeader => stage.replicas[replica].line.set(Mode::Hold),
            Fault::KillStandby => stage.replicas[standby].kill(),
            Fault::FreezeStandby => stage.replicas[standby].signal("-STOP"),
            Fault::KillReplicas => stage.replicas.iter_mut().for_each(Part::kill),
            Fault::FreezeReplicas => stage.replicas.iter().for_each(|replica| replica.signal("-STOP")),
            Fault::KillApiServer => stage.other_server.process.kill(),
            Fault::FreezeApiServer => signal_to(stage.other_server.process.id(), "-STOP"),
            Fault::KillEtcd => stage.plane.crash_etcd(),
            Fault::FreezeEtcd => signal_to(stage.plane.etcd_id(), "-STOP"),
            Fault::KillKubelet => stage.kubelets[kubelet].kill(),
            Fault::FreezeKubelet => stage.kubelets[kubelet].signal("-STOP"),
            Fault::RefuseKubelet => stage.kubelets[kubelet].line.set(Mode::Refuse),
            Fault::KillAttacher => stage.attacher.kill(),
            Fault::FreezeAttacher => stage.attacher.signal("-STOP"),
            Fault::RefuseAttacher => stage.attacher.line.set(Mode::Refuse),
            Fault::KillProvisioner => stage.provisioner.kill(),
            Fault::FreezeProvisioner => stage.provisioner.signal("-STOP"),
            Fault::RefuseProvisioner => stage.provisioner.line.set(Mode::Refuse),
            Fault::KillResizer => stage.resizer.kill(),
            Fault::FreezeResizer => stage.resizer.signal("-STOP"),
            Fault::CutWatches => stage.parts().for_each(|part| part.line.cut()),
            Fault::WithholdBookmarks => {
                stage.replicas.iter().for_each(|replica| replica.line.withhold_bookmarks());
            }
            Fault::Compact => compact(stage, recorder).await,
            Fault::Burst429 => stage.set_lines(Mode::Answer(429)),
            Fault::Burst500 => stage.set_lines(Mode::Answer(500)),
            Fault::FailWebhook | Fault::SlowWebhook => {
                objects::make(&stage.cluster.client, &objects::of(fault, stage)).await;
            }
            Fault::ClockAhead => stage.clocks[replica].set(OFF),
            Fault::ClockBehind => stage.clocks[replica].set(-OFF),
            Fault::RotateToken => stage.renew_token().await,
            Fault::RotateCertificate => stage.renew_certificate().await,
            Fault::SecondController => stage.start_second_controller(),
            Fault::DeleteFence => objects::remove(&stage.cluster.client, &objects::fence()).await,
            Fault::RestoreEtcd => stage.backup = Some(stage.plane.snapshot()),
            Fault::RollingUpdate => {}
        }
        all.push(Begun { fault, replica, kubelet, since: Instant::now(), from: now(), rolled: 0 });
    }
    all
}

/// Compacts what all have seen, and cuts every watch.
async fn compact(stage: &mut Stage, recorder: &Recorder) {
    let history = History::of(stage.plane.etcd_url());
    // A recorder that is behind could never read on.
    let compacted = async {
        recorder.catch_up(stage.plane.etcd_url()).await;
        history.compact().await
    };
    // etcd may be frozen by the other fault of a pair.
    let _ = tokio::time::timeout(Duration::from_secs(3), compacted).await;
    stage.parts().for_each(|part| part.line.cut());
}

/// Does what is due while faults last.
pub fn go_on(stage: &mut Stage, begun: &mut [Begun]) {
    for Begun { fault, since, rolled, .. } in begun {
        let is_due = since.elapsed() >= ROLL * u32::try_from(*rolled).expect("a few");
        if *fault == Fault::RollingUpdate && *rolled < ROLLS * stage.replicas.len() && is_due {
            let replica = *rolled % stage.replicas.len();
            stage.replicas[replica].replace();
            *rolled += 1;
        }
    }
}

/// Ends faults: what was killed is started, what was frozen goes on. Last what takes an API server that answers.
pub async fn heal(stage: &mut Stage, recorder: &mut Recorder, begun: &[Begun]) {
    for Begun { fault, replica, kubelet, from, .. } in begun.iter().rev() {
        let (replica, kubelet) = (*replica, *kubelet);
        let standby = stage.replicas.len() - 1 - replica;
        match fault {
            Fault::KillLeader => stage.replicas[replica].revive(),
            Fault::FreezeLeader => stage.replicas[replica].signal("-CONT"),
            Fault::RefuseLeader | Fault::HoldLeader => stage.replicas[replica].line.set(Mode::Pass),
            Fault::KillStandby => stage.replicas[standby].revive(),
            Fault::FreezeStandby => stage.replicas[standby].signal("-CONT"),
            Fault::KillReplicas => stage.replicas.iter_mut().for_each(Part::revive),
            Fault::FreezeReplicas => stage.replicas.iter().for_each(|replica| replica.signal("-CONT")),
            Fault::KillApiServer => stage.other_server.start(),
            Fault::FreezeApiServer => signal_to(stage.other_server.process.id(), "-CONT"),
            Fault::FreezeEtcd => signal_to(stage.plane.etcd_id(), "-CONT"),
            Fault::KillKubelet => stage.kubelets[kubelet].revive(),
            Fault::FreezeKubelet => stage.kubelets[kubelet].signal("-CONT"),
            Fault::RefuseKubelet => stage.kubelets[kubelet].line.set(Mode::Pass),
            Fault::KillAttacher => stage.attacher.revive(),
            Fault::FreezeAttacher => stage.attacher.signal("-CONT"),
            Fault::RefuseAttacher => stage.attacher.line.set(Mode::Pass),
            Fault::KillProvisioner => stage.provisioner.revive(),
            Fault::FreezeProvisioner => stage.provisioner.signal("-CONT"),
            Fault::RefuseProvisioner => stage.provisioner.line.set(Mode::Pass),
            Fault::KillResizer => stage.resizer.revive(),
            Fault::FreezeResizer => stage.resizer.signal("-CONT"),
            Fault::WithholdBookmarks => {
                stage.replicas.iter().for_each(|replica| replica.line.bring_bookmarks());
            }
            Fault::Burst429 | Fault::Burst500 => stage.set_lines(Mode::Pass),
            Fault::FailWebhook | Fault::SlowWebhook => {
                objects::remove(&stage.cluster.client, &objects::of(*fault, stage)).await;
            }
            Fault::ClockAhead | Fault::ClockBehind => {
                assert!(!tells_right_time(&stage.replicas[replica], *from), "no clock was moved");
                stage.clocks[replica].set(0);
            }
            Fault::RotateToken => stage.forget_former_token().await,
            Fault::RotateCertificate => stage.authority.forget_former(),
            Fault::SecondController => stage.second = None,
            Fault::DeleteFence => objects::make(&stage.cluster.client, &objects::fence()).await,
            Fault::RestoreEtcd => restore(stage, recorder).await,
            Fault::KillEtcd | Fault::CutWatches | Fault::Compact | Fault::RollingUpdate => {}
        }
    }
}

/// Whether a process has said something since then that bears the time of this machine.
fn tells_right_time(part: &Part, from: i64) -> bool {
    let log = part.log();
    let stamps =
        log.lines().rev().filter_map(|line| line.split_whitespace().next()?.parse::<Timestamp>().ok());
    let last = stamps.map(Timestamp::as_millisecond).next();
    last.is_some_and(|at| at > from + 1_000 && at <= now())
}

/// Stops all servers, puts etcd's data back, and starts them again.
async fn restore(stage: &mut Stage, recorder: &mut Recorder) {
    let Some(backup) = stage.backup.take() else { return };
    stage.other_server.process.kill();
    stage.plane.kill_api_server();
    recorder.pause(stage.plane.etcd_url()).await;
    let revision = stage.plane.restore(&backup, true).await;
    recorder.go_on(stage.plane.etcd_url(), revision).await;
    stage.other_server.start();
}
