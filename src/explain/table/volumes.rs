//! Volumes: what the binder says of them. Facts: `name` of the volume; `claim`, `other` (a volume), `finalizers` where a reason has
//! them.

use super::row::{Part::Also, Row, care, never, next, rows, safe, waits};
use crate::explain::report::Verdict::{Blocked, Healthy, Waiting};

const STAYS: &str = "reserved for {claim}, which {why}: no claim gets it as long as the reservation stays";

rows! {
    "VolumeMissing": Blocked, "{told}";
    "Bound volume": Healthy, "bound to claim {claim}";
    "Available": Healthy, "free: a claim that fits takes it";
    "Annotating volume": Waiting, "{told}";
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
    "Reserved stays": Blocked, STAYS, Also("+stays reserved");
    "ClaimBindsNext stays": Blocked, STAYS, Also("+stays reserved");
    "Unbinding stays": Blocked, STAYS, Also("+stays reserved");
    "+stays reserved": Blocked, "",
        waits("PersistentVolumeClaim", "{claim}", "{why}"),
        care("take the reservation off; then whichever claim fits gets the volume, WITH the data that is on it",
            r#"kubectl patch pv {name} --type=json -p [{"op":"remove","path":"/spec/claimRef"}]"#);
    "+unsuited claim": Blocked, "",
        safe("make the claim anew with what the volume has, or put the volume's object right if that is wrong",
            "kubectl get pvc {claim.name} -n {claim.namespace} -o yaml");
    "ClaimBindsNext": Waiting, "{told}";
    "Unbinding": Waiting, "{told}";
    "ModeMismatch": Blocked, "{told}";
    "ConfirmingClaimGone": Waiting, "{told}";
    // Released.
    "Releasing": Waiting, "{told}";
    "LeftToProvisioner": Waiting, "{told}",
        next("Delete", "the provisioner deletes it"),
        safe("if it lasts: see what the provisioner says", "kubectl get events -A");
    "LeftToProvisioner made by hand": Blocked,
        "released, and to be deleted, but no provisioner does it: it lacks the annotation {annotation}, by \
         which one knows its own",
        safe("look at it, and at the storage behind it: with its data it stays until a person deletes both",
            "kubectl describe pv {name}"),
        care("to keep its data: set the policy to Retain, and then free it for a new claim",
            r#"kubectl patch pv {name} -p {"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#);
    "UsedByPods": Waiting, "{told}";
    "Recycling": Waiting, "{told}";
    "Deleting": Waiting, "{told}";
    "MalformedSource": Blocked, "{told}";
    "NotReclaimable": Blocked, "{told}";
    "RecycleFailed": Blocked, "{told}";
    "LeftoverRecyclerPod": Blocked, "{told}";
    "DeleteFailed": Blocked, "{told}";
    // Being deleted.
    "Terminating volume": Waiting, "{told}; volume {name} is being deleted and waits for {finalizers}",
        next("Delete", "the finalizers are gone");
    "Terminating volume kept": Waiting,
        "{told}; volume {name} is being deleted and stays as long as claim {claim} is bound to it ({finalizers})",
        next("Delete", "claim {claim} is gone");
}
