//! Volumes on nodes: what attach/detach says of them, and what is said of their attachments and nodes. Facts: `node`; `told` by the
//! decision, `driver`, `pod`, `other` (a node, an attachment, an object), `since` ("", or " for 5m"), `asked` ("", or " 5m ago") where a reason has them.

use super::row::{Part::Also, Row, SHOW_LEASES, care, never, next, rows, safe, waits};
use crate::explain::report::Verdict::{Blocked, Forbidden, Healthy, Waiting};

const ANSWERS: &str = "the attacher answers: within seconds as a rule";

rows! {
    "Attached": Healthy, "attached to {node}; its kubelet may mount";
    "NotAttachable": Healthy, "nothing is attached for a volume of this kind: the kubelet mounts it at once";
    "AttachNotRequired": Healthy, "driver {driver} needs no attachment: the kubelet mounts the volume at once";
    // What the controller writes next.
    "WaitingForVolumeAttachment next": Waiting,
        "nothing is in the way: the controller creates the VolumeAttachment next{more}",
        next("CreateVolumeAttachment", ""),
        Also("+controller");
    "DetachWaitingForAttacher next": Waiting,
        "nothing is in the way: the controller deletes the VolumeAttachment next{more}",
        next("DeleteVolumeAttachment", ""),
        Also("+controller");
    "+controller": Waiting, "",
        safe("if this lasts: see whether the attach/detach controller runs and what it says", SHOW_LEASES);
    "WaitingForVolumeAttachment": Waiting, "on {node}: {told}", next("CreateVolumeAttachment", "");
    "Publishing" | "DetachWaitingForUnpublish": Waiting, "on {node}: {told}", next("WriteNodeStatus", "");
    "WaitingForDeletion" | "DetachWaitingForSettlement" | "Uncertain attachment" | "RetryBackoff" |
    "NodeStatusRefused" | "HandOver": Waiting,
        "on {node}: {told}";
    "ForeignWriter attachment" | "RestoreGrace attachment": Waiting, "on {node}: {told}", next("Detach", "");
    "WriteUndone": Blocked, "on {node}: {told}",
        safe("find out who undoes it, and stop that: the message names it", "");
    "ObjectUnreadable attachment": Blocked, "on {node}: {told}",
        safe("correct {other}: the message describes what is wrong", "");
    "ClaimOrVolumeChanged": Blocked, "on {node}: {told}",
        safe("see why claim and volume do not belong together any more", "");
    // The attacher.
    "WaitingForAttacher": Waiting, "on {node}: {told}",
        waits("Attacher", "{driver}", "has been asked{asked}"),
        next("Attach", ANSWERS),
        Also("+never by hand");
    "DetachWaitingForAttacher": Waiting, "on {node}: {told}",
        waits("Attacher", "{driver}", "has been asked{asked}"),
        next("Detach", ANSWERS),
        Also("+never by hand");
    "+limited": Waiting, "",
        safe("many volumes at once wait for its --kube-api-qps=5, the default: raise it in the driver's \
              controller",
            "");
    "AttacherNotSeen": Blocked, "{told}",
        waits("Attacher", "{driver}", "not seen"),
        Also("+absent program"),
        Also("+never by hand");
    "AttachError" | "DetachError": Waiting, "on {node}: {told}",
        waits("Attacher", "{driver}", "reported an error{asked}"),
        next("Retry", "the attacher's own pause is over: five minutes at most"),
        Also("+never by hand");
    "+never by hand": Blocked, "",
        never("delete the VolumeAttachment or its finalizer by hand: the disk may be written from two machines");
    // Another node has the volume.
    "HeldByNode here": Waiting,
        "on {node}: the PersistentVolume was re-created with another handle, and the volume of the former handle \
         has to be detached from this node first";
    "HeldByNode": Waiting, "on {node}: {told}",
        waits("Node", "{other}", "holds the volume, or comes first"),
        next("Attach", "the volume is detached there");
    "HeldByNode by pod": Blocked,
        "pod {pod} uses the volume on node {node}, which is for one node alone: it stays there until that pod \
         has ended",
        waits("Pod", "{pod}", "uses the volume"),
        next("Detach", "that pod has ended and its kubelet has unmounted the volume"),
        safe("see whether both pods are meant to run: one of them has to go",
            "kubectl describe pod {pod.name} -n {pod.namespace}"),
        Also("+never by hand");
    "HeldByNode by ending pod": Waiting,
        "pod {pod} uses the volume on node {node}, which is for one node alone: it {told}",
        waits("Pod", "{pod}", "{told}"),
        next("Detach", "it has ended and its kubelet has unmounted the volume"),
        safe("see what keeps the pod", "kubectl describe pod {pod.name} -n {pod.namespace}"),
        Also("+never by hand");
    "HeldByNode by silent node": Blocked,
        "node {node} holds the volume, which is for one node alone, and is not Ready{since}: pod {pod} uses \
         the volume there as far as is known",
        waits("Node", "{node}", "is not Ready{since}"),
        next("Detach", "its kubelet reports again");
    "HeldByNode by silent node and ending pod": Blocked,
        "node {node} holds the volume, which is for one node alone, and is not Ready{since}: pod {pod} is \
         being deleted, and no kubelet is there to end it",
        waits("Node", "{node}", "is not Ready{since}"),
        next("Detach", "its kubelet reports again");
    "ExclusiveAttachedTwice": Blocked, "{told}: two machines may write the disk",
        safe("see on which nodes pods use it, and scale down what runs on the one that came later: it leaves \
              that node when its kubelet has unmounted it, or, if no controller made its attachment, as mooring explain \
              va/<name> tells",
            "kubectl get pods -A -o wide --field-selector spec.nodeName={later}"),
        care("if both may have written: check the file system before the data is trusted", ""),
        never("let a pod start there to see whether it works: each write may destroy what the other wrote"),
        never("delete a VolumeAttachment by hand unless mooring explain va/<name> tells to, or its finalizer ever: the \
               disk may be written from two machines");
    // A kubelet is to unmount.
    "DetachWaitingForUnmount" | "DetachWaitingForNode": Waiting, "on {node}: {told}",
        waits("Node", "{node}", "its kubelet has not unmounted the volume"),
        next("Detach", "the kubelet reports that it has unmounted the volume: within seconds as a rule"),
        safe("if it lasts: see what the kubelet says, and whether a container of the old pod still runs",
            "kubectl get pods -A --field-selector spec.nodeName={node}"),
        Also("+never by hand");
    "DetachWaitingForUnmount timed": Waiting,
        "on {node}: the node is not Ready and its kubelet has not unmounted the volume",
        Also("+timed");
    "DetachWaitingForNode timed": Waiting, "on {node}: the node has no object, and may still use the volume",
        Also("+timed");
    "+timed": Waiting, "",
        waits("Node", "{node}", "{state}"),
        next("ForceDetach",
            "{patience} have passed since {node} was last {what} and a pod there last had the volume");
    "DetachWaitingForUnmount never forced" |
    "DetachWaitingForNode never forced": Blocked, "on {node}: {told}",
        waits("Node", "{node}", "{state}");
    "+silent node": Blocked, "",
        safe("bring {node} back: {then} when its kubelet reports", ""),
        care("only if {node} is proven off (powered down or fenced): its pods are removed, and its volumes \
              are detached by force (first see: mooring whatif taint {node})",
            "kubectl taint node {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"),
        Also("+never forced pods"),
        Also("+never by hand");
    "+never forced pods": Blocked, "",
        never("delete its pods by force (--force) while the machine may run: minutes later their volumes may be \
               detached by force, under containers that may still write");
    "+ailing node": Blocked, "",
        safe("see why the kubelet of {node} is not well (container runtime, network, disk), and mend that: {then} when it is",
            "kubectl describe node {node}"),
        never("declare {node} out of service, or delete it, while its kubelet reports: its machine runs, and may write"),
        Also("+never forced pods"),
        Also("+never by hand");
    "+ailing node declared off": Blocked, "",
        care("it has the taint node.kubernetes.io/out-of-service, and its machine runs: volumes are detached under its \
              pods by force. Take the taint off",
            "kubectl taint node {node} node.kubernetes.io/out-of-service-"),
        Also("+ailing node");
    "+silent node declared off": Blocked, "",
        safe("bring {node} back: {then} when its kubelet reports", ""),
        safe("it has the taint node.kubernetes.io/out-of-service already: its pods are removed, and its \
              volumes are detached by force. See that both controllers run (pod garbage collection is of \
              kube-controller-manager)",
            SHOW_LEASES),
        Also("+never by hand");
    "+gone node": Blocked, "",
        safe("if the machine of {node} runs, restart its kubelet, which registers only when it starts: the \
              detach follows when it reports",
            "kubectl get nodes"),
        Also("+never by hand");
    // What others made.
    "ForeignAttachment": Blocked,
        "its name is not that of its volume on {node}: the attach/detach controller did not make it and \
         leaves it, and it stays until it is deleted",
        Also("+foreign");
    "VolumeMissing of attachment": Blocked,
        "its volume does not exist, so it is not known what it attaches: it stays until it is deleted",
        Also("+foreign");
    "VolumeMissing unread": Forbidden,
        "its volume could not be read: its state on {node} is unknown";
    "+foreign": Blocked, "",
        safe("find out who made it, and what for",
            "kubectl get volumeattachment {name} -o yaml --show-managed-fields");
    "+foreign in use": Blocked, "",
        never("delete it as long as a pod on its node may use the volume: the attacher detaches it under the pod");
    "+foreign gone node": Blocked, "",
        care("only if the machine of {node} is proven off, or its kubelet has unmounted the volume: no object \
                shows it, as the node has none. The attacher then detaches the volume",
            "kubectl delete volumeattachment {name}"),
        never("delete it while that machine may run: the disk may be written from two machines");
    "+foreign unused": Blocked, "",
        care("only if no one needs it: no pod uses the volume on {node}, as far as is seen, and its attacher \
              detaches it then",
            "kubectl delete volumeattachment {name}");
    "DetachWaitingForAttacher foreign": Waiting, "it is being deleted, and waits for {finalizers}",
        waits("Attacher", "{driver}", "has been asked"),
        next("Detach", ANSWERS),
        Also("+never by hand");
    "ForeignAttachment attachment": Blocked, "on {node}: {told}",
        waits("VolumeAttachment", "{other}", "has the name and is for something else"),
        safe("find out who made it", "kubectl get volumeattachment {other} -o yaml");
    // Nodes.
    "Ready": Healthy, "{told}";
    "NotReady": Waiting, "{told}",
        next("Recheck", "its kubelet is well again");
    "NodeNotManaged": Healthy, "{told}; its kubelet attaches volumes itself";
    "NodeNotManaged but needed": Blocked,
        "{told}; its kubelet attaches volumes itself, which it cannot do for those of CSI drivers: pod {pod} \
         waits",
        waits("Pod", "{pod}", "waits for a volume that no controller attaches there");
    "+leave attaching": Blocked, "",
        safe("set enableControllerAttachDetach: true (the default) in the configuration of that kubelet, and \
              restart it: the annotation has to be \"true\"",
            r"kubectl get node {node} -o jsonpath={.metadata.annotations.volumes\.kubernetes\.io/controller-managed-attach-detach}");
    "OutOfServiceTaint": Blocked, "{told}",
        care("if the node is back for good, remove the taint: pods come back, and volumes wait for its \
              kubelet again",
            "kubectl taint node {name} node.kubernetes.io/out-of-service-");
    "NodeGone": Waiting, "{told}";
    "NodeGone attachment": Blocked, "on {node}: {told}",
        waits("Node", "{node}", "has no object"),
        safe("see why the node object is gone, or let the pod's controller make a pod on another", "");
    "DriverNotRegistered": Blocked,
        "the kubelet of {name} does not know driver {driver}: its node plugin does not run there",
        safe("see why the node plugin of {driver} does not run on {name}",
            "kubectl get pods -A --field-selector spec.nodeName={name}");
}
