//! Volumes: what the binder says of them. Facts: `name` of the volume; `claim`, `other` (a volume), `finalizers` where a reason has
//! them.

use super::row::{Part::Also, Row, care, never, next, rows, safe, waits};
use crate::explain::report::Verdict::{Blocked, Healthy, Waiting};

rows! {
    "Bound volume": Healthy, "bound to claim {claim}";
    "Available": Healthy, "free: a claim that fits takes it";
    "Retained": Healthy, "claim {claim} is gone, and the volume is kept with its data: no other claim takes it",
        Also("+free");
    "Retained beside claim": Healthy,
        "its claim {claim} is gone, and another of that name is there, which does not take it: the volume is \
         kept with its data",
        Also("+free");
    "+free": Healthy, "",
        care("to give it to a new claim WITH the data that is on it; the command shows the request and sends \
              nothing without --yes",
            "mooring repair free {name}"),
        never("free it for another tenant: the former claim's data is on it");
    // Reserved for a claim.
    "Reserved": Waiting, "{told}",
        waits("PersistentVolumeClaim", "{claim}", "has not taken the volume");
    "Reserved for claim to come": Waiting, "{told}",
        waits("PersistentVolumeClaim", "{claim}", "does not exist"),
        next("Bind", "a claim of that name is made that the volume suits"),
        safe("nothing is wrong if that claim is to come; else see how claims there are called",
            "kubectl get pvc -n {claim.namespace}");
    "Reserved stays" | "ClaimBindsNext stays" | "Unbinding stays": Blocked,
        "reserved for {claim}, which {why}: no claim gets it as long as the reservation stays",
        waits("PersistentVolumeClaim", "{claim}", "{why}"),
        care("remove the reservation; then whichever claim fits gets the volume, WITH the data that is on it",
            r#"kubectl patch pv {name} --type=json -p [{"op":"remove","path":"/spec/claimRef"}]"#);
    "Reserved claimed" | "ClaimBindsNext claimed" | "Unbinding claimed": Blocked,
        "reserved for {claim}, which {why}; {named}",
        waits("PersistentVolumeClaim", "{claim}", "{why}"),
        safe("find out whose data it has before anything is changed: a claim can say of itself that it was bound",
            "kubectl get pvc -A"),
        never("remove the reservation, or point it at one of these claims, before that is known");
    "Reserved kept" | "ClaimBindsNext kept" | "Unbinding kept": Blocked,
        "reserved for {claim}, which {why}; it was released, and is kept with the data of the claim before",
        waits("PersistentVolumeClaim", "{claim}", "{why}"),
        safe("see whose data it is, and that no machine has it", "kubectl get volumeattachments,pv"),
        never("remove the reservation before both are known: whichever claim fits gets the data");
    "+unsuited claim": Blocked, "",
        safe("recreate the claim with what the volume has, or correct the volume if that is wrong",
            "kubectl get pvc {claim.name} -n {claim.namespace} -o yaml");
    // What the binder, or its plugin, is about to do, or could not.
    "Annotating volume" | "ClaimBindsNext" | "Unbinding" | "ConfirmingClaimGone" | "Releasing" |
    "Recycling" | "Deleting": Waiting,
        "{told}";
    "UsedByPods": Waiting,
        "{told}: {pods}";
    "Unbinding for owner": Waiting, "{told}: this one is given back to claim {claim}, which was bound to it";
    "Reserved disputed" | "VolumeMissing" | "ModeMismatch" | "MalformedSource" | "NotReclaimable" | "RecycleFailed" |
    "LeftoverRecyclerPod" | "DeleteFailed": Blocked,
        "{told}";
    // Released.
    "LeftToProvisioner": Waiting, "{told}",
        next("Delete", "the provisioner deletes it"),
        safe("if its claim was deleted by mistake: set its policy to Retain at once, which keeps the data",
            r#"kubectl patch pv {name} -p {"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#),
        safe("if it lasts: see what the provisioner says", "kubectl get events -A");
    "LeftToProvisioner made by hand": Blocked,
        "released, and to be deleted, but no provisioner does it: it lacks the annotation {annotation}, by \
         which one knows its own",
        safe("inspect it and its storage: it stays with its data until a person deletes both",
            "kubectl describe pv {name}"),
        care("to keep its data: set the policy to Retain, and then free it for a new claim",
            r#"kubectl patch pv {name} -p {"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#);
    // Being deleted.
    "Terminating volume": Waiting, "{told}; volume {name} is being deleted and waits for {finalizers}",
        next("Delete", "the finalizers are gone");
    "FinalizerWithoutOwner": Blocked, "it is being deleted, and only {told} removes {finalizers}",
        never("remove the finalizer only to delete the object: its disk may still be attached, or stay");
    "Terminating volume kept": Waiting,
        "{told}; volume {name} is being deleted and stays as long as claim {claim} is bound to it ({finalizers})",
        next("Delete", "claim {claim} is gone");
}
