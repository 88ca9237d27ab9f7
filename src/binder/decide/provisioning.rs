//! Who is asked to provide a volume for a claim (pv-binder §7).
//!
//! In: a claim no volume fits, and its class. Out: a decision that at most annotates the claim; the
//! volume itself is made by an external provisioner, by the plugin [`host_path`] if that is switched
//! on, or by nobody.

use super::{
    annotations::{self, BETA_STORAGE_PROVISIONER, STORAGE_PROVISIONER},
    claim::ClaimDecision,
    decision::{Decision, Step, Write, WriteKind, normal, warning},
    reclaim::NFS_PLUGIN,
    view::View,
};
use crate::{
    binder::{
        act::patches,
        plugins::host_path,
        tell::reason::{ClaimReason, Unprovisioned},
    },
    kube_api::{
        ids::ClassName,
        kinds::{PersistentVolumeClaim, StorageClass},
    },
};

/// Asks for a volume of the class.
// KCM: pkg/controller/volume/persistentvolume/pv_controller.go, provisionClaim and
// provisionClaimOperationExternal.
#[must_use]
pub fn provision(
    claim: &PersistentVolumeClaim,
    name: &ClassName,
    class: Option<&StorageClass>,
    view: &View<'_>,
) -> ClaimDecision {
    if !view.options.enable_dynamic_provisioning {
        let event = normal(claim, "DynamicProvisioningDisabled", ClaimReason::ProvisioningOff.to_string());
        return Decision::rest(ClaimReason::ProvisioningOff).telling(event);
    }
    let Some(class) = class else {
        return failed(claim, ClaimReason::NoClass(name.clone()));
    };
    let here = view.options.enable_hostpath_provisioner && class.provisioner == host_path::PLUGIN;
    let provisioner = match annotations::csi_name(&class.provisioner) {
        Some(driver) => driver,
        None if here => host_path::PLUGIN,
        None if class.provisioner == NFS_PLUGIN => {
            return failed(claim, ClaimReason::CannotProvision(class.provisioner.clone()));
        }
        None if annotations::is_in_tree(&class.provisioner) => {
            return failed(claim, ClaimReason::NoProvisioner(class.provisioner.clone()));
        }
        None => class.provisioner.as_str(),
    };
    if here && claim.spec.data_source.is_some() {
        let only = format!(
            "plugin {:?} is not a CSI plugin. Only CSI plugin can provision a claim with a datasource",
            host_path::PLUGIN
        );
        return failed(claim, ClaimReason::NotProvisioned(Unprovisioned::Refused(only)));
    }
    let stable = claim.metadata.annotation(STORAGE_PROVISIONER);
    if stable == Some(provisioner) && here {
        return host_path::provision(claim, class, view);
    }
    let reason = ClaimReason::WaitsForProvisioner(provisioner.to_owned());
    if stable == Some(provisioner) {
        let event = normal(claim, "ExternalProvisioning", reason.to_string());
        return Decision::rest(reason).telling(event);
    }
    if let Some(asked) = stable.or(claim.metadata.annotation(BETA_STORAGE_PROVISIONER))
        && asked != provisioner
        && annotations::csi_name(asked) != Some(provisioner)
    {
        // The one asked first may have begun; asking a second one makes two volumes (S29).
        let (asked, wanted) = (asked.to_owned(), provisioner.to_owned());
        return failed(claim, ClaimReason::OtherProvisioner { asked, wanted });
    }
    let request = patches::ask_provisioner(claim, provisioner);
    Decision::step(reason, Step::Write(Write::claim(claim, WriteKind::AskProvisioner, request)))
}

fn failed(claim: &PersistentVolumeClaim, reason: ClaimReason) -> ClaimDecision {
    let event = warning(claim, "ProvisioningFailed", reason.to_string());
    Decision::rest(reason).telling(event)
}
