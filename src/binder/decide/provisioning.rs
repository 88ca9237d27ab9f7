//! Who is asked to provide a volume for a claim (pv-binder §7).
//!
//! In: a claim no volume fits, and its class. Out: a decision that at most annotates the claim; the
//! volume itself is made by an external provisioner, by a plugin, or not at all.

use apiserver::{
    ids::{ClassName, DriverName},
    kinds::{PersistentVolumeClaim, StorageClass},
};

use super::decision::{ClaimDecision, Decision};
use crate::binder::{
    annotations::{self, BETA_STORAGE_PROVISIONER, NFS_PLUGIN, STORAGE_PROVISIONER},
    calls::Call,
    patches,
    reasons::ClaimReason,
    state::State,
};

/// Asks for a volume of the class.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, provisionClaim and
// provisionClaimOperationExternal.
pub fn provision(
    claim: &PersistentVolumeClaim,
    name: &ClassName,
    class: Option<&StorageClass>,
    state: &State,
) -> ClaimDecision {
    if !state.options.enable_dynamic_provisioning {
        return ClaimDecision::waiting(claim, ClaimReason::ProvisioningOff);
    }
    let Some(class) = class else {
        return ClaimDecision::waiting(claim, ClaimReason::NoClass(name.clone()));
    };
    let here = state.plugins.provisions(&class.provisioner);
    let provisioner = match annotations::csi_name(&class.provisioner) {
        Some(driver) => driver,
        None if here => class.provisioner.as_str(),
        None if class.provisioner == NFS_PLUGIN => {
            return ClaimDecision::waiting(claim, ClaimReason::CannotProvision(class.provisioner.clone()));
        }
        None if annotations::is_in_tree(&class.provisioner) => {
            return ClaimDecision::waiting(claim, ClaimReason::NoProvisioner(class.provisioner.clone()));
        }
        None => class.provisioner.as_str(),
    };
    if here && let Some(decision) = state.plugins.provision(claim, class, state) {
        return decision;
    }
    let stable = claim.metadata.annotation(STORAGE_PROVISIONER);
    let reason = ClaimReason::WaitsForProvisioner(provisioner.to_owned());
    if stable == Some(provisioner) {
        return ClaimDecision::waiting(claim, reason);
    }
    if let Some(asked) = stable.or(claim.metadata.annotation(BETA_STORAGE_PROVISIONER))
        && asked != provisioner
        && annotations::csi_name(asked) != Some(provisioner)
        && state.objects.drivers.get(&DriverName::from(asked)).is_some()
    {
        // The one asked first is installed, and may have begun; asking a second one makes two volumes (S29). A name
        // that no driver has is a slip in the class, or the claim is from another cluster.
        let (asked, wanted) = (asked.to_owned(), provisioner.to_owned());
        return ClaimDecision::waiting(claim, ClaimReason::OtherProvisioner { asked, wanted });
    }
    Decision::step(reason, Call::Write(patches::ask_provisioner(claim, provisioner)))
}
