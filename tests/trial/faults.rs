//! Plays a window of faults: what is done when it begins, and what heals it.

use test_support::history::History;

use crate::{
    balancer::Mode,
    plan::{Fault, Window},
    stage::{Stage, signal_to},
};

/// A fault that has begun, with what it met.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    fault: Fault,
    replica: usize,
    kubelet: usize,
}

/// Begins all faults of a window.
pub async fn begin(stage: &mut Stage, window: &Window) -> Vec<Begun> {
    // If none leads, the first may be about to.
    let replica = stage.leader().await.unwrap_or_default();
    let kubelet = window.node % stage.kubelets.len();
    for fault in &window.faults {
        match fault {
            Fault::KillLeader => stage.replicas[replica].kill(),
            Fault::FreezeLeader => stage.replicas[replica].signal("-STOP"),
            Fault::RefuseLeader => stage.replicas[replica].line.set(Mode::Refuse),
            Fault::HoldLeader => stage.replicas[replica].line.set(Mode::Hold),
            Fault::KillApiServer => stage.other_server.process.kill(),
            Fault::FreezeApiServer => signal_to(stage.other_server.process.id(), "-STOP"),
            Fault::KillEtcd => stage.plane.crash_etcd(),
            Fault::FreezeEtcd => signal_to(stage.plane.etcd_id(), "-STOP"),
            Fault::KillKubelet => stage.kubelets[kubelet].kill(),
            Fault::FreezeKubelet => stage.kubelets[kubelet].signal("-STOP"),
            Fault::RefuseKubelet => stage.kubelets[kubelet].line.set(Mode::Refuse),
            Fault::KillAttacher => stage.attacher.kill(),
            Fault::FreezeAttacher => stage.attacher.signal("-STOP"),
            Fault::KillProvisioner => stage.provisioner.kill(),
            Fault::CutWatches => stage.parts().for_each(|part| part.line.cut()),
            Fault::Compact => compact(stage).await,
            Fault::SecondController => stage.start_second_controller(),
        }
    }
    window.faults.iter().map(|fault| Begun { fault: *fault, replica, kubelet }).collect()
}

/// Compacts what all have seen, and cuts every watch.
async fn compact(stage: &mut Stage) {
    // etcd may be frozen by the other fault of a pair.
    let history = History::of(stage.plane.etcd_url());
    let _ = tokio::time::timeout(std::time::Duration::from_secs(3), history.compact()).await;
    stage.parts().for_each(|part| part.line.cut());
}

/// Ends faults: what was killed is started, what was frozen goes on.
pub fn heal(stage: &mut Stage, begun: &[Begun]) {
    for Begun { fault, replica, kubelet } in begun.iter().copied() {
        match fault {
            Fault::KillLeader => stage.replicas[replica].revive(),
            Fault::FreezeLeader => stage.replicas[replica].signal("-CONT"),
            Fault::RefuseLeader | Fault::HoldLeader => stage.replicas[replica].line.set(Mode::Pass),
            Fault::KillApiServer => stage.other_server.start(),
            Fault::FreezeApiServer => signal_to(stage.other_server.process.id(), "-CONT"),
            Fault::FreezeEtcd => signal_to(stage.plane.etcd_id(), "-CONT"),
            Fault::KillKubelet => stage.kubelets[kubelet].revive(),
            Fault::FreezeKubelet => stage.kubelets[kubelet].signal("-CONT"),
            Fault::RefuseKubelet => stage.kubelets[kubelet].line.set(Mode::Pass),
            Fault::KillAttacher => stage.attacher.revive(),
            Fault::FreezeAttacher => stage.attacher.signal("-CONT"),
            Fault::KillProvisioner => stage.provisioner.revive(),
            Fault::SecondController => stage.second = None,
            Fault::KillEtcd | Fault::CutWatches | Fault::Compact => {}
        }
    }
}
