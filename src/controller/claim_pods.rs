//! Which pods use which claims.
//!
//! In: pods as they change; which pods count, each owner of an index says. Out: the claims that a pod used and uses, and
//! the pods that use a claim.

use std::collections::{BTreeSet, HashMap};

use apiserver::{
    ids::{ClaimKey, PodKey},
    kinds::Pod,
    tables::{Relation, give_back_room},
};

/// Pods by the claims that they use.
#[derive(Debug, Default)]
pub struct ClaimPods {
    claims: HashMap<PodKey, BTreeSet<ClaimKey>>,
    pods: Relation<ClaimKey, PodKey>,
}

impl ClaimPods {
    /// Takes a pod as it is now, if it counts. Returns the claims that it used before, and those that it uses now.
    pub fn update(&mut self, key: &PodKey, pod: Option<&Pod>) -> [BTreeSet<ClaimKey>; 2] {
        let volumes =
            pod.into_iter().flat_map(|pod| pod.spec.volumes.iter().map(move |volume| (pod, volume)));
        let now: BTreeSet<ClaimKey> = volumes.filter_map(|(pod, volume)| pod.claim_of(volume)).collect();
        let before = self.claims.remove(key).unwrap_or_default();
        for gone in before.difference(&now) {
            self.pods.remove(gone, key);
        }
        for new in now.difference(&before) {
            self.pods.insert(new.clone(), key.clone());
        }
        if !now.is_empty() {
            self.claims.insert(key.clone(), now.clone());
        } else if !before.is_empty() {
            give_back_room(&mut self.claims);
        }
        [before, now]
    }

    /// The pods that use a claim.
    pub fn of(&self, claim: &ClaimKey) -> impl Iterator<Item = &PodKey> {
        self.pods.of(claim.clone())
    }
}
