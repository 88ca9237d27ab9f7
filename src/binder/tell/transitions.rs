//! Which changes of claims and volumes are logged: one line each, when a phase or the reason for it changes. Pure.
//!
//! In: every look at a key with what it led to, and phases that our own writes change. Out: [`Transition`]s. Only
//! what is not settled is remembered, so that a cluster at rest costs nothing; a settled key of which nothing is
//! remembered has not changed.

use std::collections::BTreeMap;

use tokio::time::Instant;

use super::reason::{ClaimReason, VolumeReason};
use crate::{
    binder::{decide::decision::Target, planner::Planner},
    kube_api::{
        ids::{ClaimKey, ResourceVersion, VolumeName},
        kinds::{Narrow, PersistentVolume, PersistentVolumeClaim},
    },
    telemetry::transition::{Named, Transition},
};

/// The reason of a key whose object is gone.
const GONE: &str = "Gone";

/// The reason of a key about which a request fails.
const RETRY_BACKOFF: &str = "RetryBackoff";

/// What was last said of a key.
#[derive(Clone, Copy, Debug)]
struct Said {
    phase: &'static str,
    reason: &'static str,
    since: Instant,
}

/// What a look at a key has come to.
#[derive(Clone, Debug)]
struct Look {
    phase: &'static str,
    reason: &'static str,
    is_settled: bool,
    attempt: u32,
    revision: Option<ResourceVersion>,
    /// The other side, if there is one.
    partner: Option<String>,
}

/// What is to be said, and what was.
#[derive(Debug, Default)]
pub struct Transitions {
    /// Of keys that are not settled.
    said: BTreeMap<Target, Said>,
    /// Phases before writes of ours, until the look that follows them.
    written: BTreeMap<Target, &'static str>,
    news: Vec<Transition>,
}

impl Transitions {
    /// A write that may change the phase is about to be sent; it is this before.
    pub fn writes(&mut self, target: &Target, before: &'static str) {
        self.written.entry(target.clone()).or_insert(before);
    }

    fn looked(&mut self, target: &Target, look: &Look, now: Instant) {
        let written = self.written.remove(target);
        let before = self.said.remove(target);
        let from = before.map(|said| said.phase).or(written);
        let is_same = before.is_some_and(|said| (said.phase, said.reason) == (look.phase, look.reason));
        let is_known = look.is_settled && from.is_none_or(|from| from == look.phase) && before.is_none();
        if !is_same && !is_known {
            self.say(target, from, look, before, now);
        }
        if !look.is_settled {
            let since = before.filter(|_| is_same).map_or(now, |said| said.since);
            self.said.insert(target.clone(), Said { phase: look.phase, reason: look.reason, since });
        }
    }

    fn say(
        &mut self,
        target: &Target,
        from: Option<&'static str>,
        look: &Look,
        before: Option<Said>,
        now: Instant,
    ) {
        let (volume, claim) = match target {
            Target::Claim(_) => (look.partner.clone(), None),
            Target::Volume(_) => (None, look.partner.clone()),
        };
        self.news.push(Transition {
            object: named(target),
            reason: look.reason,
            from: from.unwrap_or(look.phase),
            to: look.phase,
            attempt: look.attempt,
            revision: look.revision.map(|revision| revision.to_string()),
            took: before.map(|said| now.saturating_duration_since(said.since)),
            volume,
            node: None,
            claim,
        });
    }

    /// The object is gone: told of one that was waited for.
    pub fn gone(&mut self, target: &Target, now: Instant) {
        self.written.remove(target);
        let Some(before) = self.said.remove(target) else { return };
        let (phase, reason) = (GONE, GONE);
        let look = Look { phase, reason, is_settled: true, attempt: 1, revision: None, partner: None };
        self.say(target, Some(before.phase), &look, Some(before), now);
    }

    /// What is to be said.
    pub fn take(&mut self) -> Vec<Transition> {
        std::mem::take(&mut self.news)
    }
}

/// A claim or volume as logs name it.
#[must_use]
pub fn named(target: &Target) -> Named {
    match target {
        Target::Claim(key) => Named::in_namespace(PersistentVolumeClaim::KIND, key.namespace(), key.name()),
        Target::Volume(name) => Named::in_cluster(PersistentVolume::KIND, name.as_str()),
    }
}

impl Planner {
    /// Which attempt is the next one about a claim or volume, from 1.
    #[must_use]
    pub fn attempt(&self, target: &Target) -> u32 {
        self.retries.failures(target).saturating_add(1)
    }

    fn reason_told(&self, target: &Target, code: &'static str) -> &'static str {
        if self.failures.told(target).is_some() { RETRY_BACKOFF } else { code }
    }

    /// Notes what a look at a claim has come to.
    pub(crate) fn note_claim(&mut self, claim: &PersistentVolumeClaim, reason: &ClaimReason, now: Instant) {
        let target = Target::Claim(claim.key());
        let named = &claim.spec.volume_name;
        let volume = match reason {
            ClaimReason::Binding(volume, _) => Some(volume.to_string()),
            _ if named.is_empty() => None,
            _ => Some(named.to_string()),
        };
        let reason_told = self.reason_told(&target, reason.code());
        let look = Look {
            phase: claim.status.phase.as_str(),
            reason: reason_told,
            is_settled: reason.is_settled() && reason_told == reason.code(),
            attempt: self.attempt(&target),
            revision: Some(claim.metadata.resource_version),
            partner: volume,
        };
        self.transitions.looked(&target, &look, now);
    }

    /// Notes what a look at a volume has come to.
    pub(crate) fn note_volume(&mut self, volume: &PersistentVolume, reason: &VolumeReason, now: Instant) {
        let target = Target::Volume(volume.key());
        let reason_told = self.reason_told(&target, reason.code());
        let look = Look {
            phase: volume.status.phase.as_str(),
            reason: reason_told,
            is_settled: reason.is_settled() && reason_told == reason.code(),
            attempt: self.attempt(&target),
            revision: Some(volume.metadata.resource_version),
            partner: volume.spec.claim_ref.as_ref().map(|reference| reference.key().to_string()),
        };
        self.transitions.looked(&target, &look, now);
    }

    /// A request about a claim or volume fails, and that is why it waits.
    pub(crate) fn note_failure(&mut self, target: &Target, now: Instant) {
        match target {
            Target::Claim(key) => self.note_claim_failure(key, now),
            Target::Volume(name) => self.note_volume_failure(name, now),
        }
    }

    fn note_claim_failure(&mut self, key: &ClaimKey, now: Instant) {
        if let (Some(claim), Some(reason)) = (self.objects.claims.get(key), self.standing.claim(key)) {
            self.note_claim(&claim, &reason, now);
        }
    }

    fn note_volume_failure(&mut self, name: &VolumeName, now: Instant) {
        if let (Some(volume), Some(reason)) = (self.objects.volumes.get(name), self.standing.volume(name)) {
            self.note_volume(&volume, &reason, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn look(phase: &'static str, reason: &'static str, is_settled: bool) -> Look {
        Look { phase, reason, is_settled, attempt: 1, revision: None, partner: None }
    }

    /// What is said of looks at a claim, one a second.
    fn said(looks: &[(&'static str, &'static str, bool)]) -> Vec<String> {
        let (start, claim) = (Instant::now(), Target::Claim(ClaimKey::new("ns", "c")));
        let mut transitions = Transitions::default();
        for (second, (phase, reason, is_settled)) in (0..).zip(looks) {
            transitions.looked(
                &claim,
                &look(phase, reason, *is_settled),
                start + Duration::from_secs(second),
            );
        }
        let lines = transitions.take().into_iter().map(|line| {
            let Transition { from, to, reason, took, .. } = line;
            format!("{from} {to} {reason} {:?}", took.map(|took| took.as_secs()))
        });
        lines.collect()
    }

    #[test]
    fn a_line_for_each_change_of_phase_or_reason_and_none_for_a_look() {
        let (waits, binds) = (("Pending", "WaitingForFirstConsumer", false), ("Pending", "Binding", false));
        let bound = ("Bound", "Bound", true);
        let expected = [
            "Pending Pending WaitingForFirstConsumer None",
            "Pending Pending Binding Some(2)",
            "Pending Bound Bound Some(2)",
        ];
        assert_eq!(said(&[waits, waits, binds, binds, bound, bound]), expected);
        assert_eq!(said(&[bound, bound]), [""; 0], "what was settled before this process led");
        let lost = ("Lost", "LostVolumeMissing", false);
        let expected = ["Bound Bound ConfirmingLost None", "Bound Lost LostVolumeMissing Some(1)"];
        assert_eq!(said(&[bound, ("Bound", "ConfirmingLost", false), lost, lost]), expected);
    }

    #[test]
    fn a_volume_that_a_bind_changed_is_said_to_have_changed_at_the_next_look() {
        let (now, volume) = (Instant::now(), Target::Volume(VolumeName::from("v")));
        let mut transitions = Transitions::default();
        transitions.looked(&volume, &look("Available", "Available", true), now);
        transitions.writes(&volume, "Available");
        transitions.writes(&volume, "Bound");
        transitions.looked(&volume, &look("Bound", "Bound", true), now);
        transitions.writes(&volume, "Bound");
        transitions.looked(&volume, &look("Bound", "Bound", true), now);
        let said: Vec<_> = transitions.take().iter().map(|line| (line.from, line.to)).collect();
        assert_eq!(said, [("Available", "Bound")]);
    }

    #[test]
    fn what_was_waited_for_is_said_to_be_gone() {
        let (now, volume) = (Instant::now(), Target::Volume(VolumeName::from("v")));
        let mut transitions = Transitions::default();
        let left = look("Released", "LeftToProvisioner", false);
        transitions.looked(&volume, &left, now);
        transitions.gone(&volume, now + Duration::from_secs(4));
        transitions.gone(&volume, now);
        let said: Vec<_> = transitions.take().iter().map(|line| (line.from, line.to, line.took)).collect();
        assert_eq!(said, [("Released", "Released", None), ("Released", GONE, Some(Duration::from_secs(4)))]);
    }
}
