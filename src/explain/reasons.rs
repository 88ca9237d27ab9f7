//! The pages of `docs/reasons`, in the program: who is called at night may not reach the repository.
//!
//! In: a reason's code. Out: its page, as Markdown.

macro_rules! pages {
    ($($code:ident)*) => {
        &[$((stringify!($code), include_str!(concat!("../../docs/reasons/", stringify!($code), ".md")))),*]
    };
}

/// Sorted by code.
const PAGES: &[(&str, &str)] = pages! {
    AccessModeMissing Annotating AssigningDefaultClass AttachError AttachNotRequired Attached AttacherLimited
    AttacherNotSeen AttachmentOfGoneNode AttributesClassMismatch Available Binding Bound BoundToOther Chosen
    ClaimBindsNext ClaimMissing ClaimNotBound ClaimNotOwnedByPod ClaimOrVolumeChanged ClassMismatch
    ClassNotFound ConfirmingClaimGone ConfirmingClass ConfirmingLost CsiDriverMissing DeleteFailed
    Deleting DetachError DetachWaitingForAttacher DetachWaitingForNode DetachWaitingForSettlement
    DetachWaitingForUnmount DetachWaitingForUnpublish DriverNotRegistered DynamicProvisioningDisabled
    ExclusiveAttachedTwice ExpansionUnsupported FenceAmiss FencedWithoutRuler FinalizerWithoutOwner FlexVolumeUnsupported
    Forbidden ForeignAttachment
    ForeignWriter HandOver HandleShared HeldByNode HoldsOtherVolume HoldsUnfitVolume LargerThanBest LeftToProvisioner
    LeftoverRecyclerPod LostMisbound LostReference LostVolumeMissing MalformedClaim MalformedSource
    ManyDefaultClasses ModeMismatch ModifyingAttributes MountError NamedVolumeMismatch NamedVolumeMissing
    NamedVolumeTaken NoCapacity NoClassAndNoMatch NoDefaultClass NoPodScheduled NoProvisioner NobodyRules
    NodeAffinityMismatch NodeGone NodeNotManaged NodeStatusRefused NotAttachable NotFound NotProtected NotReady
    NotReclaimable ObjectUnreadable OutOfServiceTaint PhaseNotAvailable PodEnded PodNotStarted Protected ProvisionerChanged
    ProvisionerError ProvisionerLimited ProvisionerNotSeen ProvisionerSeen ProvisionerUnknown Provisioning
    ProvisioningError ProvisioningUnsupported Publishing Ready RecycleFailed Recycling Releasing Reserved
    ReservedForOther ResizerNotSeen Resizing RestoreGrace Retained RetryBackoff SelectorMismatch Terminating TooSmall
    Unbinding Uncertain UnknownBindingMode UsedByPods VolumeBoundElsewhere VolumeBusy VolumeMissing
    WaitingForAttacher WaitingForDeletion WaitingForFirstConsumer WaitingForProvisioner WaitingForScheduling
    WaitingForVolumeAttachment WriteUndone
};

/// The page about a code.
pub fn page(code: &str) -> Option<&'static str> {
    entry(code).map(|(_, text)| *text)
}

/// A code that has a page.
pub(super) fn code(code: &str) -> Option<&'static str> {
    entry(code).map(|(code, _)| *code)
}

fn entry(code: &str) -> Option<&'static (&'static str, &'static str)> {
    PAGES.get(PAGES.binary_search_by_key(&code, |(code, _)| code).ok()?)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn every_page_is_in_the_program() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reasons");
        let entries =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut expected: Vec<String> = entries
            .filter_map(|name| name.strip_suffix(".md").map(str::to_owned))
            .filter(|code| code != "README")
            .collect();
        expected.sort();
        let codes: Vec<&str> = PAGES.iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, expected);
        for code in codes {
            assert!(page(code).is_some_and(|text| text.starts_with(&format!("# {code}\n"))), "{code}");
        }
        assert_eq!(page("Nonsense"), None);
    }
}
