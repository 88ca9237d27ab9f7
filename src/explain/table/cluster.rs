//! What the doctor says of the cluster as a whole: what is left over, and what all stands on. Healthy is what no one waits for.

use super::row::{Row, care, never, next, rows, safe};
use crate::explain::report::Verdict::{Blocked, Healthy, Waiting};

rows! {
    "HandleShared": Healthy, "{told} stand for one volume {handle} of {driver}";
    "Retained kept": Healthy, "{told}";
    "ExclusiveAttachedTwice several": Blocked, "{told}";
    "AttachmentOfGoneNode": Healthy, "node {node} is gone, and no controller knows the volume";
    "NoDefaultClass": Healthy, "no class is the default: claims without a class are given no volume";
    "ManyDefaultClasses": Healthy, "{told} are all the default: the newest is taken";
    "CsiDriverMissing": Healthy, "there is no CSIDriver object {driver}: attaching is taken to be needed",
        safe("", "kubectl get csidriver");
    "AttacherNotSeen idle": Healthy, "the attacher was seen last {age} ago",
        safe("", "kubectl get leases,pods -A");
    "AttacherLimited": Healthy,
        "the attacher runs with --kube-api-qps=5, the default: some two attaches a second";
    "ProvisionerLimited": Healthy, "the provisioner runs with --kube-api-qps=5, the default";
    "FencedWithoutRuler": Blocked,
        "the fence keeps kube-controller-manager's storage loops from writing, and {told}: nobody rules",
        safe("", "kubectl -n mooring-system get lease,deployment,pods");
    "NobodyRules": Blocked,
        "the Deployment of mooring is to run, and {told}: nobody rules, unless kube-controller-manager's storage loops do",
        safe("", "kubectl -n mooring-system get lease,deployment,pods");
    "FenceAmiss leaving": Healthy,
        "deleted, and in force only as long as the finalizer mooring.dev/fence is there: {told}",
        safe("see how the fence stands", "mooring switch --to mooring"),
        never("take the finalizer off by hand: kube-controller-manager would write from a memory that is wrong");
    "FenceAmiss unbound": Blocked,
        "denies nothing, as its binding is gone, so that kube-controller-manager may write beside mooring: {told}",
        safe("see what would be done about it", "mooring switch --to mooring");
    "FenceAmiss unneeded": Blocked,
        "fenced off, and not among the --controllers of the Deployment mooring, so that nobody does their work: {told}",
        safe("see what would be done about it", "mooring switch --to mooring");
    "ForeignWriter in turns": Blocked, "{told} (migration unfinished?)";
    "ForeignWriter after change": Waiting, "{told} (has one just taken over from the other?)";
    // VolumeAttributesClasses. Facts: `name`, `users`, `finalizers`, `finalizer`.
    "Protected": Healthy, "it stays as long as a claim or volume names it ({finalizer}); users: {users}";
    "NotProtected": Healthy,
        "it has no finalizer {finalizer}: a deletion takes it away at once, also from its users: {users}",
        safe("see whether a volumeattributesclass-protection-controller runs, which puts the finalizer on",
            "kubectl get leases -A");
    "Terminating vac": Waiting, "it is being deleted and waits for {finalizers}; users: {users}",
        next("Delete", "no claim and no volume names it, and the finalizers are gone"),
        care("give the claims that name it another class: it goes with the last of them", ""),
        never("remove the finalizer by hand: a claim that changes to the class would wait for it");
    "FinalizerWithoutOwner vac": Blocked,
        "it is being deleted, and nothing names it; but only a volumeattributesclass-protection-controller \
         removes {finalizer}, and none does",
        safe("see whether kube-controller-manager or mooring runs it", "kubectl get leases -A");
    // What holds a volume on a node that is drained.
    "+drain pod": Waiting, "the pod is not being deleted";
    "+drain ending pod": Waiting, "container exit";
    "+drain ending pod without kubelet": Waiting, "container exit, but no kubelet is there to end it";
    "+drain unmount": Waiting, "kubelet unmount";
    "+drain unmount without kubelet": Waiting, "kubelet unmount, but the kubelet does not report";
    "+drain gone node": Waiting, "kubelet unmount, but its node has no object";
    "+drain attacher": Waiting, "attacher of {driver}";
    "+drain attacher error": Waiting, "attacher: {told}";
    "+drain controller": Waiting, "the controller";
    "+drain foreign": Blocked, "a person: see mooring explain va/{name}";
    "+drain never forced": Blocked, "{told}; never by time";
    "+drain timed": Waiting, "{told}; detached by force {patience} after its pod is gone and its node was last Ready";
}
