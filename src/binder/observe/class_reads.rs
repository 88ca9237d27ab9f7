//! Live reads of classes that the tables lack (S28).
//!
//! A class that its watch has not delivered yet may delay the bind of its claims, so its absence is proven
//! before they are bound at once. One read serves all claims of the class that ask while it is under way:
//! they join it, and go on or pause together when it is answered.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    binder::act::op::Call,
    kube_api::ids::{ClaimKey, ClassName, ResourceVersion},
};

/// A live read of a class that is under way.
#[derive(Debug)]
pub(crate) struct ClassRead {
    /// Revision of the newest claim in our tables when it was sent.
    pub(crate) newest_claim: ResourceVersion,
    /// The claims that joined.
    pub(crate) joined: BTreeSet<ClaimKey>,
}

/// All that are under way.
#[derive(Debug, Default)]
pub(crate) struct ClassReads(BTreeMap<ClassName, ClassRead>);

impl ClassReads {
    /// A class is read, when the newest claim in our tables is of this revision.
    pub(crate) fn begin(&mut self, class: &ClassName, newest_claim: ResourceVersion) {
        self.0.insert(class.clone(), ClassRead { newest_claim, joined: BTreeSet::new() });
    }

    /// Has a claim wait for the read of its class, if that is its step and one is under way.
    pub(crate) fn join(&mut self, step: &Call, claim: &ClaimKey) -> bool {
        let Call::ReadClass(class) = step else { return false };
        let Some(read) = self.0.get_mut(class) else { return false };
        read.joined.insert(claim.clone());
        true
    }

    /// A read was answered.
    pub(crate) fn end(&mut self, class: &ClassName) -> Option<ClassRead> {
        self.0.remove(class)
    }
}
