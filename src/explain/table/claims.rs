//! Claims: what the binder, the provisioner and the resizer say of them. Facts: `name`, `namespace` and `claim` of the claim;
//! `volume`, `class`, `driver`, `other` (a claim), `uid`, `pod`, `node` where a reason has them.

use super::row::{Part::Also, Row, SHOW_LEASES, care, never, next, rows, safe, waits};
use crate::explain::report::Verdict::{Blocked, Forbidden, Healthy, NotFound, Waiting};

rows! {
    "Bound": Healthy, "bound to {volume}";
    "Bound unseen": Healthy, "bound to {volume}, as its own status reports";
    "Forbidden": Forbidden, "{told}";
    "NotFound": NotFound, "{told}";
    "ClaimMissing": Blocked, "{told}",
        next("Recheck", "the claim appears"),
        safe("create the claim, or correct the name in the pod's template; see which claims exist",
            "kubectl get pvc -n {namespace}");
    // What the binder writes next, or waits for.
    "Annotating" | "AssigningDefaultClass": Waiting, "{told}", next("WriteClaim", "");
    "Binding": Waiting, "volume {volume} is being bound: {step}", next("Bind", "");
    "VolumeBusy": Waiting, "{told}", next("Bind", "");
    "+overdue": Blocked, "",
        safe("see whether the binder runs, of mooring or of kube-controller-manager", SHOW_LEASES);
    "ForeignWriter" | "RestoreGrace" | "ConfirmingClass" | "ConfirmingLost" | "HoldsOtherVolume" |
    "Uncertain" | "Provisioning": Waiting,
        "{told}";
    "ObjectUnreadable" | "MalformedClaim" | "NoCapacity" | "UnknownBindingMode" |
    "ProvisioningUnsupported" | "ProvisionerChanged": Blocked,
        "{told}";
    // No volume fits.
    "NoClassAndNoMatch" | "ProvisionerUnknown" | "DynamicProvisioningDisabled": Blocked, "{told}",
        next("Recheck", "a volume of this class appears or changes; no timer runs");
    "+make volume": Blocked, "",
        safe("create a volume that fits, or change one that nearly does (see the candidates)", "");
    "+make volume or give class": Blocked, "",
        Also("+make volume"),
        care("or give the claim a class that has a provisioner, which can be done once",
            r#"kubectl patch pvc {name} -n {namespace} -p {"spec":{"storageClassName":"<class>"}}"#),
        care("or mark a class as the default: each waiting claim without one, in all namespaces, gets it at once and \
              for good, and with it a new volume",
            "kubectl get storageclass");
    "+make volume or claim": Blocked, "",
        Also("+make volume"),
        safe("or make a new claim of a class that has a provisioner: a claim's class cannot be changed",
            "kubectl get storageclass");
    "ClassNotFound": Blocked, "{told}",
        Also("+make volume"),
        waits("StorageClass", "{class}", "does not exist"),
        next("Recheck", "the class appears"),
        safe(r#"create the class "{class}", or make a new claim of one that exists"#,
            "kubectl get storageclass");
    // The scheduler.
    "WaitingForFirstConsumer": Waiting, "{told}",
        next("Bind", "a pod that uses the claim is scheduled"),
        safe("nothing is wrong: create the pod that uses the claim", "");
    "WaitingForFirstConsumer without scheduler": Blocked,
        "pod {pod} is on node {node} without the scheduler, which alone chooses a node for the claim: the \
         pod's maker set spec.nodeName, or the claim is younger than the pod",
        waits("Pod", "{pod}", "is on a node without the scheduler"),
        next("Bind", "the claim names its node, or a pod that uses it is scheduled"),
        safe("recreate the pod without spec.nodeName (a nodeSelector for kubernetes.io/hostname keeps it on \
              its node): the scheduler then chooses for pod and claim",
            "kubectl get pod {pod.name} -n {pod.namespace} -o yaml"),
        care("or, if a provisioner makes the volume, say what the scheduler would: the volume is made for {node}",
            "kubectl annotate pvc {name} -n {namespace} {annotation}={node}");
    "WaitingForScheduling": Waiting, "{told}",
        waits("Pod", "{pod}", "is not scheduled"),
        next("Bind", "the scheduler finds a node for the pod"),
        safe("see why the pod is not scheduled", "kubectl describe pod {pod.name} -n {pod.namespace}");
    // The provisioner.
    "WaitingForProvisioner": Waiting, "provisioner {driver} has not created the volume yet",
        waits("Provisioner", "{driver}", "is to create the volume"),
        Also("+provisioner");
    "WaitingForProvisioner next": Waiting, "provisioner {driver} is about to receive the claim",
        waits("Provisioner", "{driver}", "is about to receive the claim"),
        Also("+provisioner");
    "+provisioner": Waiting, "",
        next("Bind", "the provisioner makes a volume"),
        safe("if it lasts: see what provisioner {driver} says", "kubectl describe pvc {name} -n {namespace}");
    "+attributes class": Waiting, "",
        safe("see whether the VolumeAttributesClass that the claim asks for exists: without it no volume is made",
            "kubectl get volumeattributesclass {attributes}");
    "WaitingForProvisioner silent": Blocked,
        "provisioner {driver} has had the claim for {age}, and has neither created the volume nor reported an error",
        waits("Provisioner", "{driver}", "has had the claim for {age}"),
        next("Bind", "the provisioner makes a volume");
    "WaitingForProvisioner selector": Blocked,
        "the claim has a selector, so that it takes a volume that is there, and none fits; {driver} makes no \
         volume for a claim with a selector",
        waits("Provisioner", "{driver}", "refuses claims with a selector"),
        next("Bind", "a volume that the selector takes is there"),
        safe("recreate the claim without the selector, or create a volume with these labels",
            "kubectl get pvc {name} -n {namespace} -o yaml");
    "WaitingForProvisioner gone node": Blocked,
        "the volume is to be made for node {node}, which the scheduler chose and which does not exist",
        waits("Node", "{node}", "does not exist"),
        next("Bind", "the scheduler has chosen another node, for a pod that is not on one"),
        safe("see whether the node is to come back", "kubectl get nodes"),
        care("if it is not: remove the annotation, and the scheduler chooses again (a pod that is bound to \
              the node already has to be recreated)",
            "kubectl annotate pvc {name} -n {namespace} {annotation}-");
    "ProvisionerError": Waiting, "the provisioner could not create the volume, and tries again: {told}",
        waits("Provisioner", "{driver}", "reported an error {age} ago"),
        next("Retry", "the provisioner's own pause is over: five minutes at most");
    "ProvisionerNotSeen waiting": Blocked, "{told}",
        Also("ProvisionerNotSeen"),
        next("Bind", "the provisioner makes a volume");
    "ProvisionerNotSeen": Blocked, "{told}",
        waits("Provisioner", "{driver}", "not seen"),
        Also("+absent program");
    "+absent program": Blocked, "",
        safe("install or repair the controller of driver {driver}: check its pods, their logs and their leases",
            "kubectl get leases,pods -A");
    "ProvisioningError": Blocked, "{told}",
        next("Provision", "after a pause that grows with each try");
    // A volume that the claim names, or that is reserved for it.
    "NamedVolumeMissing": Blocked, "{told}",
        waits("PersistentVolume", "{volume}", "does not exist"),
        next("Recheck", "a volume of that name appears"),
        safe("create the volume {volume} with a claimRef to {claim} (without one another claim may take it), \
              or make a new claim that names one that exists",
            "kubectl get pv");
    "NamedVolumeTaken": Blocked, "{told}",
        waits("PersistentVolume", "{volume}", "belongs to claim {other}"),
        next("Recheck", "the volume changes"),
        Also("+see volume");
    "NamedVolumeTaken earlier": Blocked,
        r#"volume "{volume}", which the claim names, still belongs to an earlier claim of the same name that is gone"#,
        waits("PersistentVolume", "{volume}", "belongs to the earlier claim by its UID"),
        next("Recheck", "the volume changes"),
        care("if this claim is to have the data of the earlier one, link them; the command shows the requests \
              and sends nothing without --yes",
            "mooring repair relink {name} {volume} -n {namespace}"),
        never("free it for another tenant: the earlier claim's data is on it");
    "NamedVolumeMismatch": Blocked, "{told}",
        next("Recheck", "the volume suits it, or the claim is recreated"),
        Also("+unsuited");
    "NamedVolumeMismatch owned": Blocked, "{told}; the claim was bound to a volume of that name",
        waits("PersistentVolume", "{volume}", "does not suit the claim"),
        next("Recheck", "the volume suits it, or refers to it"),
        Also("+see volume"),
        care("if it has this claim's data, point it at the claim, which takes it then, whatever it asks for by now",
            r#"kubectl patch pv {volume} --type=merge -p {"spec":{"claimRef":{"namespace":"{namespace}","name":"{name}","uid":null}}}"#),
        never("delete the claim: the volume, with its data, is then free for any claim that fits");
    "HoldsUnfitVolume": Blocked, "{told}",
        waits("PersistentVolume", "{volume}", "does not suit the claim"),
        Also("+see volume"),
        Also("+keep data"),
        care("recreate the claim with what the volume has: the volume is Released with the claim that it has, and \
              deleted if its policy is Delete",
            "kubectl get pvc {name} -n {namespace} -o yaml");
    "+see volume": Blocked, "",
        safe("see what the volume is, and for whom", "mooring explain pv {volume}");
    "+unsuited": Blocked, "",
        waits("PersistentVolume", "{volume}", "does not suit the claim"),
        Also("+see volume"),
        safe("recreate the claim with what the volume has: a claim's class and modes cannot be changed",
            "kubectl get pvc {name} -n {namespace} -o yaml");
    "+earlier volume going": Waiting, "",
        safe("{earlier} is the volume of an earlier claim of this name, and is about to be deleted with its data: to \
              keep that, set its policy to Retain at once",
            r#"kubectl patch pv {earlier} -p {"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#),
        Also("+earlier volume");
    "+earlier volume": Waiting, "",
        care("{earlier} is the volume of an earlier claim of this name, and has its data: to have it, free it \
              for this claim; the command shows the proof and sends nothing without --yes",
            "mooring repair free {earlier}");
    // Lost.
    "LostReference": Blocked,
        "bound once, and the claim no longer says to which volume; nothing was deleted by that";
    "LostVolumeMissing": Blocked,
        "bound to volume {volume}, which does not exist: its object is gone, and with it what led to the \
         data, not necessarily the data",
        waits("PersistentVolume", "{volume}", "does not exist"),
        care("make the volume {volume} again first: a PersistentVolume of that name with the handle of its \
              disk (the storage's own console or a backup has it), policy Retain, and claimRef {namespace: \
              {namespace}, name: {name}, uid: {own}}. It is bound at once; without a claimRef another claim \
              may be quicker",
            "kubectl get pvc {name} -n {namespace} -o yaml"),
        never("delete the claim before its volume is back: it is the last that says which volume it had");
    "LostMisbound": Blocked,
        "volume {volume} belongs to an earlier claim of this name, by its UID {uid}: one of the two was \
         recreated, as a restore does",
        Also("+misbound");
    "LostMisbound to other": Blocked, "volume {volume}, which the claim was bound to, belongs to claim {other}",
        Also("+misbound");
    "LostMisbound disputed": Blocked, "{told}",
        waits("PersistentVolume", "{volume}", "has no claimRef of one of them"),
        care("find out which claim's data it has, and give it the UID of that one",
            r#"kubectl patch pv {volume} --type=merge -p {"spec":{"claimRef":{"namespace":"<namespace>","name":"<name>","uid":"<uid>"}}}"#);
    "+misbound": Blocked, "",
        waits("PersistentVolume", "{volume}", "names a claim of uid {uid}, and {claim} has another");
    "+name again": Blocked, "",
        care("name the volume again, which can be done once: {owned} is this claim's, by its UID",
            r#"kubectl patch pvc {name} -n {namespace} --type=merge -p {"spec":{"volumeName":"{owned}"}}"#),
        Also("+lost");
    "+relink": Blocked, "",
        care("nothing was deleted by this. If the volume holds this claim's data, link them again; the \
              command shows the requests and sends nothing without --yes",
            "mooring repair relink {name} {owned} -n {namespace}"),
        Also("+lost");
    "+whose": Blocked, "",
        safe("see which volume was the claim's, and whose it is now: none names a claim of this name",
            "kubectl get pv"),
        Also("+lost");
    "+lost": Blocked, "",
        never("delete the claim before the data is safe: its volume may be deleted with it");
    // Being deleted.
    "Terminating claim": Waiting, "claim {claim} is being deleted and waits for {finalizers}{fate}",
        next("Delete", "the finalizers are gone"),
        Also("+finalizer");
    "Terminating claim unprotected": Waiting,
        "claim {claim} is being deleted and waits for {finalizers}, though no pod uses it: is \
         kube-controller-manager's pvc-protection controller at work?{fate}",
        next("Delete", "the finalizers are gone"),
        Also("+finalizer");
    "Terminating claim in use": Waiting,
        "claim {claim} is being deleted and waits for {finalizers}; pods that use it: {users}{fate}",
        next("Delete", "these pods have ended: {users}"),
        Also("+finalizer");
    "+keep data": Waiting, "",
        safe("to keep the data, which a deletion of the claim does not take back: set the policy to Retain \
              before the claim goes",
            r#"kubectl patch pv {volume} -p {"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#);
    "+save volume": Waiting, "",
        safe("save the object of {volume} before the claim goes: it is being deleted and goes with the claim, \
                and it leads to the data",
            "kubectl get pv {volume} -o yaml");
    "+staying pod": Blocked, "",
        waits("Pod", "{pod}", "uses the claim"),
        care("no one has asked these pods to end. If the claim is to go{with_it}: end them, or scale down \
              what owns them",
            "kubectl describe pod {pod.name} -n {pod.namespace}");
    "+finalizer": Waiting, "",
        never("remove the finalizer by hand: a pod may still write to the volume");
    // A bound claim that is to become another (KEP-1790, KEP-3751).
    "Resizing infeasible": Blocked, "the volume has {is} and cannot become {wanted}{said}",
        next("Resize", "another size is requested, or the storage allows this one"),
        safe("ask for a size that the storage allows, not below what it has; or mend what the message names, \
              such as a quota",
            "kubectl describe pvc {name} -n {namespace}");
    "Resizing on node": Waiting,
        "the volume has been enlarged to {wanted}, and its file system follows where a pod has it mounted{said}",
        next("Resize", "a kubelet has the volume mounted: a pod that uses the claim runs");
    "Resizing on kubelet": Waiting,
        "the volume has been enlarged to {wanted}, and the kubelet of {node}, where pod {pod} uses it, is to \
         expand its file system{said}",
        waits("Node", "{node}", "has not expanded the file system"),
        next("Resize", "that kubelet has done it"),
        safe("if it lasts: see what that kubelet says",
            "kubectl describe pod {pod.name} -n {pod.namespace}");
    "Resizing": Waiting, "the external-resizer of {driver} enlarges the volume to {wanted}{since}{said}",
        waits("Resizer", "{driver}", "has been asked"),
        next("Resize", "it has enlarged the volume");
    "Resizing asked": Waiting,
        "the external-resizer of {driver} is to enlarge the volume to {wanted}{since}, and nothing shows that \
         it has begun",
        waits("Resizer", "{driver}", "has been asked"),
        next("Resize", "it has enlarged the volume");
    "Resizing failed": Waiting,
        "the external-resizer of {driver} could not enlarge the volume to {wanted} and tries again; it said \
         {age} ago: {said}",
        waits("Resizer", "{driver}", "reported an error {age} ago"),
        next("Resize", "its pause is over: five minutes at most, unless it was told another time");
    "Resizing unnamed": Waiting,
        "the volume is to become {wanted}{since}, and no external-resizer takes it before the annotation \
         {annotation} of the claim names {driver}, which took over {plugin}: the expander writes it",
        waits("Controller", "persistentvolume-expander-controller", "has not written the annotation"),
        next("Resize", "the expander, of kube-controller-manager or of mooring, has written it"),
        safe("see whether kube-controller-manager runs, with its persistentvolume-expander-controller",
            "kubectl get leases -n kube-system kube-controller-manager");
    "ExpansionUnsupported": Blocked,
        "the volume is to become {wanted}{since}, and has no CSI driver: no controller of Kubernetes expands \
         it. Whether another program does is not known",
        next("Resize", "some program has enlarged {volume} and says so in the claim's status.capacity"),
        safe("see what the volume is, and ask who runs its storage", "kubectl describe pv {volume}");
    "ResizerNotSeen": Blocked, "the volume is to become {wanted}{since}; {told}",
        waits("Resizer", "{driver}", "is not seen"),
        next("Resize", "the external-resizer of {driver} has enlarged it"),
        safe("see whether the driver's controller runs csi-resizer, and read its log: it ends at once where \
              the driver can expand volumes neither in its controller nor on nodes",
            "kubectl get leases,pods -A");
    "FlexVolumeUnsupported claim": Blocked, "the volume is to become {wanted}{since}; {told}";
    "+class forbids": Waiting, "",
        safe("class {class} does not allow expansion, at least by now: what was asked for goes on, but the \
              API server refuses each further request",
            "kubectl get storageclass {class} -o yaml");
    "ModifyingAttributes Pending": Blocked,
        r#"its volume cannot get the attributes of class "{class}" yet: the class is missing, or not ready{said}"#,
        next("Modify", "the class is there"),
        Also("+see attributes");
    "ModifyingAttributes Infeasible": Blocked,
        r#"the driver refuses the attributes of class "{class}" for the volume{said}"#,
        next("Modify", "another class is requested"),
        Also("+see attributes");
    "ModifyingAttributes InProgress": Waiting, r#"its volume gets the attributes of class "{class}"{said}"#,
        waits("Resizer", "external-resizer", "has been asked"),
        next("Modify", "the external-resizer has changed it");
    "+see attributes": Blocked, "",
        safe("see whether the class exists and what the driver says of it",
            "mooring explain vac/{class}");
    // Classes.
    "NoProvisioner": Healthy, "its volumes are made by hand";
    "ProvisionerSeen": Healthy, "provisioner {driver} is there";
    "ProvisionerUnknown without lease": Healthy,
        "served by {driver}; there is no lease of it: it runs without leader election, or not";
    "ProvisionerUnknown unread": Healthy,
        "served by {driver}; whether it runs is unknown from what was read";
}
