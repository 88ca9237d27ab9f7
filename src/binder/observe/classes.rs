//! Classes that are read live, and classes all of whose open claims are to be looked at again.
//!
//! A class that its watch has not delivered yet may delay the bind of its claims, so its absence is proven before they
//! are bound at once (S28). One read serves all claims of the class that ask while it is under way: they join it, and
//! go on or pause together when it is answered. When a class changed or was read, its claims are taken a few at a time:
//! there may be as many as there are in the cluster, and what comes in meanwhile must not wait for all of them (L15).

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    binder::{act::op::Call, matching::choose_claim::ClaimIndex},
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

/// How far it has got with a class.
#[derive(Debug, Default)]
struct Wake {
    last: Option<ClaimKey>,
    /// Another began meanwhile: those that were looked at are looked at once more.
    again: bool,
}

/// Classes under way.
#[derive(Debug, Default)]
pub struct ClassWakes(BTreeMap<ClassName, Wake>);

impl ClassWakes {
    /// Every open claim of the class is to be looked at.
    pub fn begin(&mut self, class: ClassName) {
        let wake = self.0.entry(class).or_default();
        wake.again = wake.last.is_some();
    }

    /// Whether there is nothing left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// At most so many claims that come next.
    pub fn take(&mut self, claims: &ClaimIndex, most: usize) -> Vec<ClaimKey> {
        let mut next = Vec::new();
        while let Some(mut entry) = self.0.first_entry() {
            let room = most - next.len();
            if room == 0 {
                break;
            }
            let last = entry.get().last.clone().unwrap_or_default();
            let before = next.len();
            next.extend(claims.open_in_class_after(entry.key().as_str(), last).take(room).cloned());
            if next.len() - before == room {
                entry.get_mut().last = next.last().cloned();
            } else if entry.get().again {
                *entry.get_mut() = Wake::default();
            } else {
                entry.remove();
            }
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kube_api::kinds::PersistentVolumeClaim;

    #[test]
    fn l15_the_claims_of_a_class_are_taken_in_slices_and_once_more_if_it_changes_meanwhile() {
        let mut claims = ClaimIndex::default();
        for (class, names) in [("a", "1"), ("b", "23456")] {
            for name in names.chars() {
                let mut claim = PersistentVolumeClaim::default();
                claim.spec.storage_class_name = Some(class.into());
                claims.update(&ClaimKey::new("ns", &name.to_string()), Some(&claim));
            }
        }
        let mut wakes = ClassWakes::default();
        let take = |wakes: &mut ClassWakes, most| -> String {
            wakes.take(&claims, most).iter().map(ClaimKey::name).collect()
        };
        wakes.begin("b".into());
        wakes.begin("a".into());
        wakes.begin("none".into());
        assert_eq!(take(&mut wakes, 3), "123");
        assert_eq!(take(&mut wakes, 0), "");
        assert_eq!(take(&mut wakes, 2), "45");
        wakes.begin("b".into());
        assert_eq!(take(&mut wakes, 5), "62345");
        assert!(!wakes.is_empty());
        assert_eq!(take(&mut wakes, 5), "6");
        assert!(wakes.is_empty());
    }
}
