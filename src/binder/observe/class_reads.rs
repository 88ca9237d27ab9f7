//! Live reads of classes that the tables lack (S28).
//!
//! A class that its watch has not delivered yet may delay the bind of its claims, so its absence is proven
//! before they are bound at once. One read serves all claims of the class that ask while it is under way:
//! they join it, and go on or pause together when it is answered.

use std::collections::BTreeSet;

use tokio::time::Instant;

use crate::{
    binder::{
        act::op::{Answer, Op},
        decide::decision::Target,
        planner::Planner,
        tell::failures::Failure,
    },
    kube_api::{
        call::CallError,
        ids::{ClaimKey, ClassName, ResourceVersion},
    },
};

/// A live read of a class that is under way.
#[derive(Debug)]
pub struct ClassRead {
    /// Revision of the newest claim in our tables when it was sent.
    newest_claim: ResourceVersion,
    /// The claims that joined.
    joined: BTreeSet<ClaimKey>,
}

impl Planner {
    /// Notes that a class is read for a claim.
    pub(crate) fn class_read_begins(&mut self, class: &ClassName, subject: &Target) {
        // A claim whose change is of no interest here comes into the table without being told of.
        let own = match subject {
            Target::Claim(key) => self.objects.claims.get(key).map(|claim| claim.metadata.resource_version),
            Target::Volume(_) => None,
        };
        let newest_claim = own.unwrap_or_default().max(self.objects.claims.observed());
        self.class_reads.insert(class.clone(), ClassRead { newest_claim, joined: BTreeSet::new() });
    }

    /// Has a claim wait for a read of its class, if one is under way.
    pub(crate) fn join_class_read(&mut self, class: &ClassName, claim: &ClaimKey) -> bool {
        let Some(read) = self.class_reads.get_mut(class) else { return false };
        read.joined.insert(claim.clone());
        true
    }

    /// Takes in what a live read said about a class.
    pub(crate) fn class_read(
        &mut self,
        op: &Op,
        class: &ClassName,
        result: Result<Answer, CallError>,
        now: Instant,
        jitter: f64,
    ) {
        let Some(read) = self.class_reads.remove(class) else { return self.release(op, now) };
        let joined: Vec<Target> = read.joined.into_iter().map(Target::Claim).collect();
        let askers = || joined.iter().chain([&op.subject]);
        match result {
            Ok(answer @ Answer::Class(_)) => {
                self.absorb(answer, now);
                if self.objects.classes.get(class).is_none() {
                    // It is gone again, of which the watch has told: nothing is proven, and asked again later.
                    for asker in askers() {
                        self.retries.failed(asker, now, jitter);
                    }
                }
            }
            Err(CallError::NotFound(_)) => self.proofs.note_no_class(class, read.newest_claim),
            Ok(_) => {
                // An answer of another kind than asked for proves nothing.
                for asker in askers() {
                    self.retries.failed(asker, now, jitter);
                }
            }
            Err(error) => {
                for asker in askers() {
                    self.wait_for_read(asker, &error, now, jitter);
                    if let Some(failure) = Failure::of_class(class, &error) {
                        self.fails(asker, failure, now);
                    }
                }
            }
        }
        if !joined.is_empty() {
            self.class_wakes.begin(class.clone());
        }
        self.release(op, now);
    }
}
