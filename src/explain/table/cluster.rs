//! What the doctor says of the cluster as a whole: what is left over, and what all stands on. Healthy is what no one waits for.

use super::row::{Row, rows, safe};
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
    "ClockSkew": Healthy, "the clock of {told} is {age} {word} the API server's";
    "ForeignWriter in turns": Blocked, "{told} (migration unfinished?)";
    "ForeignWriter after change": Waiting, "{told} (has one just taken over from the other?)";
    // What holds a volume on a node that is drained.
    "+drain pod": Waiting, "the pod is not being deleted";
    "+drain ending pod": Waiting, "container exit{grace}";
    "+drain ending pod without kubelet": Waiting, "container exit, but no kubelet is there to end it";
    "+drain unmount": Waiting, "kubelet unmount";
    "+drain unmount without kubelet": Waiting, "kubelet unmount, but the kubelet does not report";
    "+drain attacher": Waiting, "attacher of {driver}";
    "+drain attacher error": Waiting, "attacher: {told}";
    "+drain controller": Waiting, "the controller";
    "+drain timed": Waiting, "{told}; detached by force six minutes after its pod is gone and its node was last Ready";
}
