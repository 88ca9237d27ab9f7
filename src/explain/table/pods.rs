//! Pods, besides their claims and attachments. Facts: `name`, `namespace` of the pod (of the last rows its node's or claim's), `node`;
//! `volume` (a name in the pod), `claim`, `other` (a pod), `told` where a reason has them.

use super::row::{Part::Also, Row, care, next, rows, safe, waits};
use crate::explain::report::Verdict::{Blocked, Healthy, Waiting};

rows! {
    "Scheduled": Healthy, "on node {node}";
    "PodEnded": Healthy, "it has ended ({told}), and its volumes leave node {node}";
    "NotAttachable pod": Healthy, "it has no volume that has to be bound or attached";
    "NotAttachable inline": Healthy,
        "volume {volume}: its kubelet mounts it at once, with no program that attaches it";
    "NoPodScheduled": Waiting, "the scheduler has found no node for the pod{told}",
        next("Schedule", "the scheduler finds a node for it"),
        safe("see what the scheduler says, and whether one runs", "kubectl describe pod {name} -n {namespace}");
    "NoPodScheduled gated": Waiting,
        "the scheduler skips the pod as long as it has scheduling gates: {told}",
        next("Schedule", "the program that set the gates removes them"),
        safe("if it lasts: find the program that the gates are named after, and see what it waits for",
            "kubectl get pod {name} -n {namespace} -o yaml");
    // Its node.
    "NodeGone pod": Waiting, "volume {volume}: node {node} does not exist, so nothing is attached there",
        waits("Node", "{node}", "does not exist"),
        next("DeletePod", "the pod garbage collector finds the pod: within a minute as a rule"),
        safe("see whether the node is to come back under that name", "kubectl get nodes"),
        safe("if it lasts: see whether kube-controller-manager runs, with its pod-garbage-collector-controller",
            "kubectl get leases -n kube-system kube-controller-manager");
    "NotReady pod": Waiting, "node {node} is not Ready: {told}", next("Start", "its kubelet is well again");
    "NodeNotManaged pod": Healthy, "volume {volume}: {told}";
    "NodeNotManaged pending pod": Blocked, "volume {volume}: {told}",
        waits("Node", "{node}", "attaches volumes itself, which it cannot do for those of CSI drivers"),
        next("Attach", "its kubelet leaves attaching to the controller"),
        Also("+leave attaching");
    "NodeAffinityMismatch": Blocked,
        "the volume may be used only where {told}, which does not hold of node {node}",
        waits("Node", "{node}", "is out of the volume's reach"),
        safe("the pod has to be recreated on a node that the volume reaches: see what put it there \
              (spec.nodeName, or labels of the node that have changed)",
            "kubectl get nodes --show-labels");
    // A volume that leads nowhere.
    "ClaimNotOwnedByPod": Blocked, "volume {volume}: {told}",
        safe("the pod makes a claim of its own under that name as soon as the other is gone: see whose it is",
            "kubectl describe pvc {other.name} -n {other.namespace}"),
        care("only if nothing needs it: delete the claim, with its data if the policy of its volume is Delete",
            "kubectl delete pvc {other.name} -n {other.namespace}");
    "ClaimNotOwnedByPod earlier pod": Waiting,
        "volume {volume}: claim {other} is of an earlier pod of this name (uid {uid}), with which it goes: {going}",
        waits("PersistentVolumeClaim", "{other}", "is of an earlier pod"),
        next("CreateClaim", "that claim is gone: the pod then gets one of its own"),
        safe("see who still uses the claim: it stays as long as a pod does",
            "mooring explain pvc/{other.name} -n {other.namespace}");
    "ClaimMissing ephemeral": Waiting,
        "volume {volume}: claim {claim}, which the ephemeral volume controller creates for the pod, does not \
         exist yet: {told}",
        waits("PersistentVolumeClaim", "{claim}", "does not exist"),
        next("CreateClaim", "the controller of kube-controller-manager, or of mooring, creates it"),
        safe("if it lasts: see the events of the pod, in which the controller says what the server refused",
            "kubectl describe pod {name} -n {namespace}"),
        safe("or, without any: see whether kube-controller-manager runs, with its ephemeral-volume-controller",
            "kubectl get leases -n kube-system kube-controller-manager");
    "VolumeBoundElsewhere": Blocked, "volume {volume}: {told}",
        safe("see whose the volume is, and what became of the claim", "mooring explain pv {other}");
    "ObjectUnreadable pod": Blocked, "volume {volume}: {told}";
    "MalformedSource pod" | "FlexVolumeUnsupported": Blocked, "volume {volume}: {told}",
        safe("correct the volume in the template of the pod, and recreate the pod",
            "kubectl get pod {name} -n {namespace} -o yaml");
    // Its volumes are ready.
    "Terminating": Waiting, "it is being deleted, and its grace period is not over", next("Delete", "its kubelet has ended its containers");
    "Terminating late": Waiting,
        "it is being deleted, its grace period ended {age} ago, and the kubelet of {node} has not ended it",
        next("Delete", "its kubelet has ended its containers"),
        safe("see what keeps it: a finalizer of its own, a mount that hangs, a container that does not end",
            "kubectl describe pod {name} -n {namespace}"),
        Also("+see node"),
        care("deleting it by force only removes the object: its containers may go on and write", "");
    "UsedByPods claim": Blocked,
        "the claim is for one pod alone (ReadWriteOncePod), and pod {other} uses it: {pod} does not start",
        waits("Pod", "{other}", "uses the claim"),
        next("Start", "that pod has ended"),
        safe("see whether both pods are meant to run: one of them has to go",
            "kubectl describe pod {other.name} -n {other.namespace}");
    "MountError": Waiting, "the kubelet of {node} could not mount, and tries again: {told}",
        waits("Node", "{node}", "reported an error {age} ago"),
        next("Mount", "the kubelet's own pause is over: two minutes at most"),
        Also("+see node");
    "+see node": Waiting, "",
        safe("see the pods of {node}, and read the log of the driver's node plugin among them; the kubelet's \
              own is on the machine (journalctl -u kubelet)",
            "kubectl get pods -A --field-selector spec.nodeName={node}");
    "PodNotStarted": Waiting, "its volumes are ready, and the kubelet of {node} has not started it yet",
        Also("+kubelet");
    "PodNotStarted container": Waiting,
        "its volumes are ready; it waits for something else: {told}",
        Also("+kubelet");
    "+kubelet": Waiting, "",
        next("Start", "its kubelet starts it"),
        safe("see what its kubelet says", "kubectl describe pod {name} -n {namespace}");
}
