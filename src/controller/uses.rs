//! Which objects use which others, found from both sides.
//!
//! In: a user as it changes, with what it uses now; which users count, each owner of an index says. Out: what it used before
//! and uses now, and the users of an object.

use std::collections::BTreeSet;

use apiserver::{
    ids::{ClaimKey, PodKey},
    kinds::Pod,
    tables::Relation,
};

/// Users by what they use.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Uses<User, Used> {
    used: Relation<User, Used>,
    users: Relation<Used, User>,
}

impl<User: Clone + Default + Ord, Used: Clone + Default + Ord> Uses<User, Used> {
    /// Takes a user as it is now, with all that it uses. Returns what it used before, and what it uses now.
    pub fn set(&mut self, user: &User, now: BTreeSet<Used>) -> [BTreeSet<Used>; 2] {
        let before: BTreeSet<Used> = self.used.of(user.clone()).cloned().collect();
        for gone in before.difference(&now) {
            self.used.remove(user, gone);
            self.users.remove(gone, user);
        }
        for new in now.difference(&before) {
            self.used.insert(user.clone(), new.clone());
            self.users.insert(new.clone(), user.clone());
        }
        [before, now]
    }

    /// The users of an object, in order.
    pub fn of(&self, used: &Used) -> impl Iterator<Item = &User> {
        self.users.of(used.clone())
    }
}

/// Pods by the claims that they use.
pub type ClaimPods = Uses<PodKey, ClaimKey>;

impl ClaimPods {
    /// Takes a pod as it is now, if it counts. Returns the claims that it used before, and those that it uses now.
    pub fn update(&mut self, key: &PodKey, pod: Option<&Pod>) -> [BTreeSet<ClaimKey>; 2] {
        let volumes =
            pod.into_iter().flat_map(|pod| pod.spec.volumes.iter().map(move |volume| (pod, volume)));
        self.set(key, volumes.filter_map(|(pod, volume)| pod.claim_of(volume)).collect())
    }
}
