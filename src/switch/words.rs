//! What is said of a step: to people, with its command, and when it is not waited for any longer. Tables only.

use std::{fmt::Write as _, time::Duration};

use super::step::{
    BY_RESTART, BY_SCALE, Direction, FenceStanding, MOST_TO_LEAD, MOST_TO_WAIT, SwitchSeen, SwitchStep,
    longest_hold, names,
};
use crate::fence::policies::Fence;

/// Said once where time alone speaks for the fence, or for its end.
pub(super) const NOT_PROVEN: &str = "not proven: the API servers could not be told apart and counted; all that answered did the same \
    with the probe for two minutes";

/// Commands that show what several steps are about.
const SEE_LEASE: &str = "kubectl -n kube-system get lease kube-controller-manager";
const SEE_FENCE: &str = "kubectl get validatingadmissionpolicies,validatingadmissionpolicybindings";
const SEE_OWN_LEASE: &str = "kubectl -n mooring-system get lease mooring";

impl SwitchStep {
    /// Whether it is the same step, whatever it waits for.
    pub fn is_same(&self, other: &Self) -> bool {
        self.words() == other.words()
    }

    /// Why it is not waited for any longer, if this step has been next for so long.
    pub fn given_up(&self, lasted: Duration, seen: &SwitchSeen) -> Option<String> {
        let (asked, servers) = seen.servers;
        // All of KCM stands still: what it may be denied on a server that nobody reaches is the lesser harm.
        let most = longest_hold(seen.manager.lasts);
        if seen.manager.held.is_some_and(|held| held >= most) {
            return Some(format!(
                "kube-controller-manager has stood still for {} s, and its lease is left to expire: see that your way leads to each \
                 API server ({asked} of {servers} were seen) and that nobody raises the fence again, and run this again",
                most.as_secs()
            ));
        }
        let (most, why) = match self {
            Self::AwaitDaemon => {
                let end = if seen.fence.is_up() {
                    "the fence, if it is not that of their version (run the switch of their version with --replace-fence then), and run this \
                     again: nobody rules behind the fence; or go back with switch --to kube-controller-manager --yes"
                } else {
                    "a write that mooring may not make, then run this again"
                };
                (
                    MOST_TO_WAIT,
                    format!(
                        "no replica of mooring is ready: see why in kubectl -n mooring-system get pods, and in the logs, which name {end}"
                    ),
                )
            }
            Self::RaiseFence => {
                let why = if let FenceStanding::Partial(why) = &seen.fence { why } else { "" };
                (MOST_TO_LEAD, format!("the fence was applied, and is not as it should be: {why}"))
            }
            Self::AwaitLeader => (
                MOST_TO_LEAD,
                "mooring does not lead behind the fence, and nobody rules: see why in kubectl -n mooring-system logs \
                 deployment/mooring, then run this again, or go back with switch --to kube-controller-manager --yes"
                    .to_owned(),
            ),
            Self::AwaitManager => (
                MOST_TO_WAIT,
                "the fence is down, and no kube-controller-manager leads, so nobody rules: see why in kubectl -n kube-system get \
                 pods, and run this again, or go over again with switch --to mooring --one-way --yes: then somebody has to restart the \
                 kube-controller-manager of each server on the way back"
                    .to_owned(),
            ),
            Self::AwaitRollout => (
                MOST_TO_WAIT,
                "mooring rules, and its rollout has not ended: a replica of before may lead, so nobody does the work of loops that it \
                 does not run and that are fenced off, and those that the Deployment does not run stay fenced off: see why in kubectl \
                 -n mooring-system rollout status deployment/mooring, and run this again"
                    .to_owned(),
            ),
            Self::FindManager => (
                MOST_TO_LEAD,
                format!(
                    "nobody renews kube-controller-manager's lease, so holding it would end no process: see whether it runs, \
                     with --leader-elect and this lease; else say --one-way, or, on the way back, delete the lease if no process \
                     has it any more, and run this again: then mooring is drained and stopped, and {BY_RESTART}"
                ),
            ),
            Self::AwaitRestart => (
                MOST_TO_WAIT,
                format!("no process of kube-controller-manager has begun to lead that was denied nothing: {BY_RESTART}"),
            ),
            Self::Drain(_) if !seen.daemon.drains => (
                MOST_TO_WAIT,
                format!(
                    "whether volumes come to rest could not be seen: a look at all VolumeAttachments and Nodes takes longer from here \
                     than the minute for which mooring begins nothing new, or its leader changes: run this in a pod of the cluster, or {BY_SCALE}, and run \
                     this again"
                ),
            ),
            Self::Drain(volumes) => {
                let why = "these volumes do not come to rest, and mooring goes on: see why with mooring doctor, and run this again, \
                           with --leave for those that no machine uses";
                (MOST_TO_WAIT, format!("{why}: {}", names(volumes)))
            }
            Self::ReachServers | Self::ProveFence | Self::ProveOpen if seen.manager.held.is_none() => {
                let why = "not each API server was seen to do the same with the probe";
                (MOST_TO_WAIT, format!("{why} ({asked} of {servers}): see that your way leads to each, and run this again"))
            }
            _ => return None,
        };
        (lasted >= most).then(|| format!("after {} s: {why}", most.as_secs()))
    }

    /// The step for people.
    pub fn told(&self) -> String {
        match self {
            Self::Drain(volumes) if !volumes.is_empty() => {
                format!("wait until these volumes are listed by their nodes: {}", names(volumes))
            }
            Self::LowerUnneeded(fences) if !fences.is_empty() => {
                let names: Vec<&str> = fences.iter().map(|fence| fence.controller).collect();
                format!("{}: {}", self.words().0, names.join(", "))
            }
            Self::StartAgain(why) => why.clone(),
            Self::Stop(why) => format!("stop: {why}"),
            step => step.words().0.to_owned(),
        }
    }

    /// Whether it is for a loop that remembers what it was denied.
    fn is_of_memory(&self) -> bool {
        use SwitchStep::{AwaitManager, Drain, FindManager, GiveLeaseUp, HoldLease};
        matches!(self, FindManager | Drain(_) | HoldLease | GiveLeaseUp | AwaitManager)
    }

    /// What is done, and the command that shows it, or does it by hand where that is safe.
    fn words(&self) -> (&'static str, &'static str) {
        match self {
            Self::GiveLeaseUp => ("give up kube-controller-manager's lease", SEE_LEASE),
            Self::StartDaemon | Self::StartAgain(_) => {
                ("start mooring", "kubectl -n mooring-system scale deployment mooring --replicas=2")
            }
            Self::AwaitDaemon => {
                ("wait until a replica of mooring is ready", "kubectl -n mooring-system get pods")
            }
            Self::Resume => (
                "let mooring begin new work again",
                "kubectl annotate validatingadmissionpolicies -l app.kubernetes.io/part-of=mooring mooring.dev/drain-",
            ),
            Self::FindManager => ("see kube-controller-manager renew its lease", SEE_LEASE),
            Self::ReachServers => (
                "see that each API server answers the probe",
                "kubectl -n kube-system get leases -l apiserver.kubernetes.io/identity=kube-apiserver",
            ),
            // With the file of each loop.
            Self::RaiseFence => ("raise the fence", "kubectl apply --server-side --force-conflicts"),
            Self::ProveFence => ("prove that each API server enforces the fence", SEE_FENCE),
            Self::AwaitLeader => ("wait until mooring leads", SEE_OWN_LEASE),
            Self::AwaitRollout => (
                "wait until no replica of an earlier template is left",
                "kubectl -n mooring-system rollout status deployment/mooring",
            ),
            Self::LowerUnneeded(_) => (
                "take the fences down of loops that mooring does not run",
                "kubectl get validatingadmissionpolicies -l app.kubernetes.io/part-of=mooring",
            ),
            Self::Drain(_) => {
                ("let mooring finish what is under way, and begin nothing new", "mooring doctor")
            }
            Self::StopDaemon => {
                ("stop mooring", "kubectl -n mooring-system scale deployment mooring --replicas=0")
            }
            Self::AwaitStop => ("wait until mooring has ended and given up its lease", SEE_OWN_LEASE),
            Self::RecordManager => ("record which process of kube-controller-manager leads", SEE_LEASE),
            Self::AwaitRestart => (
                "wait until another process of kube-controller-manager leads than one that was denied writes: restart the \
                 kube-controller-manager of each server now (docs/adopting.md#restart says how)",
                SEE_LEASE,
            ),
            Self::HoldLease => {
                ("hold kube-controller-manager's lease until its old leader has exited", SEE_LEASE)
            }
            // By hand nobody holds the lease meanwhile: a process of KCM that was denied writes would go on.
            Self::LowerFence => (
                "take the fence down",
                "kubectl get validatingadmissionpolicies,validatingadmissionpolicybindings \
                 -l app.kubernetes.io/part-of=mooring   # leave it to --yes: docs/adopting.md#back",
            ),
            Self::ProveOpen => ("prove that no API server enforces the fence", SEE_FENCE),
            Self::AwaitManager => ("wait until kube-controller-manager leads", SEE_LEASE),
            Self::Done | Self::Stop(_) => ("nothing is left to do", ""),
        }
    }
}

/// All steps of a direction, with their commands for these fences, and which is next. Where no loop [remembers](SwitchSeen::remembers),
/// kube-controller-manager need not be started anew.
pub fn printed(to: Direction, (next, remembers): (&SwitchStep, bool), fences: &[&Fence]) -> String {
    let over = [
        SwitchStep::StartDaemon,
        SwitchStep::AwaitDaemon,
        SwitchStep::FindManager,
        SwitchStep::ReachServers,
        SwitchStep::RaiseFence,
        SwitchStep::Resume,
        SwitchStep::ProveFence,
        SwitchStep::AwaitLeader,
        SwitchStep::AwaitRollout,
        SwitchStep::LowerUnneeded(Vec::new()),
    ];
    let back = [
        SwitchStep::FindManager,
        SwitchStep::ReachServers,
        SwitchStep::Drain(Vec::new()),
        SwitchStep::StopDaemon,
        SwitchStep::AwaitStop,
        SwitchStep::HoldLease,
        SwitchStep::LowerFence,
        SwitchStep::ProveOpen,
        SwitchStep::GiveLeaseUp,
        SwitchStep::AwaitManager,
    ];
    let steps: &[SwitchStep] = if to == Direction::Mooring { &over } else { &back };
    let mut text = String::new();
    for (number, step) in steps.iter().filter(|step| remembers || !step.is_of_memory()).enumerate() {
        let (words, command) = step.words();
        let is_next = words == next.words().0;
        let mark = if is_next { ">" } else { " " };
        let file = |fence: &&Fence| format!(" -f deploy/fence/{}.yaml", fence.account);
        let raised = fences.iter().filter(|_| *step == SwitchStep::RaiseFence);
        let files: String = raised.map(file).collect();
        let _ = writeln!(text, "{mark} {}. {words}\n     {command}{files}", number + 1);
    }
    let _ = writeln!(text, "next: {}", next.told());
    text
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            step::next,
            tests::{order, ruled_by_mooring},
        },
        *,
    };
    use crate::fence::policies::FENCES;

    #[test]
    fn the_plan_shows_each_step_with_its_command_and_which_is_next() {
        let seen = ruled_by_mooring();
        let to = Direction::KubeControllerManager;
        let plan = printed(to, (&next(order(to), &seen), true), &[]);
        assert!(plan.contains("> 4. stop mooring\n     kubectl -n mooring-system scale"), "{plan}");
        assert!(plan.ends_with("next: stop mooring\n"), "{plan}");
        assert_eq!(plan.matches("kubectl").count() + plan.matches("mooring doctor").count(), 10, "{plan}");
        assert!(!plan.contains("patch lease"), "by hand, the holder is a process that leads: {plan}");
        assert!(!plan.contains("delete"), "by hand, a process that was denied writes would go on: {plan}");
        let over = printed(Direction::Mooring, (&SwitchStep::Done, true), &[&FENCES[0], &FENCES[3]]);
        let files =
            "-f deploy/fence/attachdetach-controller.yaml -f deploy/fence/pv-protection-controller.yaml\n";
        assert!(over.contains(&format!("kubectl apply --server-side --force-conflicts {files}")), "{over}");
        let binder_alone = printed(to, (&SwitchStep::StopDaemon, false), &[]);
        assert!(
            binder_alone.contains("> 2. stop mooring") && !binder_alone.contains("hold"),
            "{binder_alone}"
        );
    }

    #[test]
    fn no_step_waits_for_ever_while_somebody_could_rule() {
        let seen = ruled_by_mooring();
        for step in [
            SwitchStep::AwaitDaemon,
            SwitchStep::RaiseFence,
            SwitchStep::FindManager,
            SwitchStep::ProveFence,
            SwitchStep::AwaitManager,
        ] {
            assert!(step.given_up(Duration::from_mins(3), &seen).is_some(), "{step:?}");
        }
        // Without it, the way over waits for a kube-controller-manager that leads.
        let advice = SwitchStep::AwaitManager.given_up(Duration::from_mins(3), &seen).unwrap();
        assert!(advice.contains("--one-way"), "{advice}");
    }
}
