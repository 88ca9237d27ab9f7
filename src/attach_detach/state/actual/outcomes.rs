//! What the answers to our requests about one volume on a node say of it. Pure.
//!
//! In: answers, with what they prove by when they were asked for. Out: the volume on the node as it is known then. Silence
//! after a write never counts as "nothing happened" (S17).

use std::time::Duration;

use apiserver::{
    call::CallError,
    ids::{AttachmentName, ResourceVersion, Uid},
};

use super::node_volume::{Deletion, NodeVolume, Uncertain, WhyRead};
use super::{answer_time::Answered, unpublishing::Unpublishing};
use crate::controller::retry::Retry;

impl NodeVolume {
    /// The attachment was created.
    pub fn created(&mut self, answered: &Answered) {
        self.uncertain = self.uncertain.filter(|uncertain| uncertain.until > answered.now);
        self.retry = Retry::default();
        if let Some(undone) = &mut self.undone {
            undone.landed(answered.now, answered.jitter);
        }
    }

    /// The attachment was not created, or it is unknown whether it was.
    pub fn create_failed(&mut self, error: &CallError, answered: &Answered) {
        if let CallError::Unknown(_) | CallError::AlreadyExists(_) = error {
            if error.is_certain() && self.uncertain.is_none() && self.known.is_none() {
                self.why_read = Some(WhyRead::MadeByAnother);
            }
            self.uncertain = Some(Uncertain { until: answered.in_doubt_until(), read_absent: false });
        }
        if !matches!(error, CallError::AlreadyExists(_)) {
            self.failed(error, false, answered);
        }
    }

    /// The DELETE of the attachment of this UID and revision failed, or it is unknown what became of it. Returns whether the
    /// attachment is to be read: it has changed, or is another one, and the watch has not told of that.
    pub fn delete_failed(
        &mut self,
        (uid, revision): (&Uid, ResourceVersion),
        error: &CallError,
        answered: &Answered,
    ) -> bool {
        // The next try begins with a fresh look at the node.
        self.unpublishing = Unpublishing::None;
        if !error.is_certain() {
            self.note_deletion(uid, Deletion::InDoubt { until: answered.in_doubt_until() });
        }
        if !matches!(error, CallError::Conflict(_)) {
            self.failed(error, false, answered);
            return false;
        }
        self.pause(|retry| retry.after_conflict(answered.now, answered.jitter));
        self.attachment().is_some_and(|attachment| attachment.metadata.resource_version <= revision)
    }

    /// A live read has found an attachment of that name, which this now knows if it is about this volume on this node (S9).
    /// `is_there` unless the watch has told since that it is gone. Returns the UID of one that another party has made.
    pub fn read_found(&mut self, name: &AttachmentName, is_there: bool, answered: &Answered) -> Option<Uid> {
        let (why_read, was_uncertain) = (self.why_read.take(), self.uncertain.is_some());
        self.uncertain = self.uncertain.filter(|uncertain| uncertain.until > answered.asked);
        let is_settled = self.settle_deletion(answered.asked);
        if is_there && self.known.is_none() {
            if why_read == Some(WhyRead::MadeByAnother) {
                self.uncertain = None;
            }
            self.why_read = Some(WhyRead::NameTaken(name.clone()));
            self.pause(|retry| answered.in_vain(retry));
            return None;
        }
        if self.known.is_none() {
            // It is older than what the watch has told of it, and as unknown as it was.
            self.pause(|retry| retry.after_conflict(answered.now, answered.jitter));
            return None;
        }
        // A DELETE that was refused is a failure until one is not.
        if (was_uncertain && self.uncertain.is_none()) || is_settled || why_read.is_some() {
            self.retry = Retry::default();
        }
        self.uid().filter(|_| is_there && why_read == Some(WhyRead::MadeByAnother)).cloned()
    }

    /// A live read has found nothing of that name. `is_desired` if a pod needs the volume here.
    pub fn read_absent(&mut self, is_desired: bool, answered: &Answered) {
        self.why_read = None;
        if self.known.is_some() {
            self.pause(|retry| retry.after_failure(answered.now, 0.0, Duration::ZERO));
        }
        let Some(uncertain) = &mut self.uncertain else { return };
        uncertain.read_absent = true;
        if uncertain.until <= answered.asked {
            self.uncertain = None;
        } else if !is_desired {
            // The create may still land; look again when it no longer can.
            let left = uncertain.until.saturating_duration_since(answered.now);
            self.pause(|retry| retry.after_failure(answered.now, 0.0, left));
        }
    }

    /// A read or a write failed.
    pub fn failed(&mut self, error: &CallError, is_read: bool, answered: &Answered) {
        self.pause(|retry| answered.failed(retry, error, is_read));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use apiserver::kinds::VolumeAttachment;
    use tokio::time::Instant;

    use super::{super::unpublishing::Sequence, *};

    const SECOND: Duration = Duration::from_secs(1);

    /// The answer to what was asked so many seconds after the start came two seconds later.
    fn answered(start: Instant, asked: u32) -> Answered {
        let asked = start + asked * SECOND;
        Answered { asked, now: asked + 2 * SECOND, jitter: 0.5, settle_time: 10 * SECOND }
    }

    fn errors() -> [(&'static str, CallError); 7] {
        [
            ("not the leader", CallError::NotLeader),
            ("not sent", CallError::NotSent("cut".to_owned())),
            ("conflict", CallError::Conflict("moved on".to_owned())),
            ("exists", CallError::AlreadyExists("there".to_owned())),
            ("throttled", CallError::Throttled { message: "busy".to_owned(), after: SECOND }),
            ("refused", CallError::Refused { code: 403, message: "no".to_owned() }),
            ("unknown", CallError::Unknown("cut".to_owned())),
        ]
    }

    /// What a failure does, in words.
    fn effects(node_volume: &NodeVolume) -> String {
        let effects = [
            (node_volume.retry.at().is_some(), "pause"),
            (node_volume.uncertain.is_some(), "uncertain"),
            (node_volume.deletion_in_doubt().is_some(), "in doubt"),
            (node_volume.why_read.is_some(), "read"),
            (node_volume.retry.message().is_some(), "event"),
        ];
        effects
            .into_iter()
            .filter_map(|(is_so, effect)| is_so.then_some(effect))
            .collect::<Vec<_>>()
            .join(", ")
    }

    #[test]
    fn s17_what_a_create_that_failed_leaves_to_be_known() {
        let expected =
            ["", "pause", "pause, event", "uncertain, read", "pause", "pause, event", "pause, uncertain"];
        for ((name, error), expected) in errors().into_iter().zip(expected) {
            let mut node_volume = NodeVolume::default();
            node_volume.create_failed(&error, &answered(Instant::now(), 0));
            assert_eq!(effects(&node_volume), expected, "{name}");
        }
    }

    #[test]
    fn s19_what_a_delete_that_failed_leaves_to_be_known() {
        let expected = ["", "pause", "", "pause, event", "pause", "pause, event", "pause, in doubt"];
        for ((name, error), expected) in errors().into_iter().zip(expected) {
            let mut node_volume = NodeVolume::with_attachment(true, false);
            node_volume.unpublishing = Unpublishing::Since(Sequence::default());
            let uid = node_volume.uid().cloned().unwrap();
            let deleted = (&uid, ResourceVersion(0));
            let is_read = node_volume.delete_failed(deleted, &error, &answered(Instant::now(), 0));
            assert_eq!(is_read, name == "conflict", "{name}");
            assert_eq!(effects(&node_volume), expected, "{name}");
            assert_eq!(node_volume.unpublishing, Unpublishing::None, "{name}: the node is looked at anew");
        }
    }

    #[test]
    fn s17_a_read_says_nothing_of_a_create_that_could_still_land_when_it_was_sent() {
        let start = Instant::now();
        let uncertain = Some(Uncertain { until: start + 10 * SECOND, read_absent: false });
        // asked, whether a pod needs it, whether the create may still land, whether it waits until it no longer can
        let cases = [
            (9, true, true, false),
            (9, false, true, true),
            (7, false, true, true),
            (10, true, false, false),
        ];
        for (asked, is_desired, may_land, waits) in cases {
            let mut node_volume = NodeVolume { uncertain, ..NodeVolume::default() };
            let answered = answered(start, asked);
            node_volume.read_absent(is_desired, &answered);
            assert_eq!(node_volume.uncertain.is_some(), may_land, "asked at {asked}");
            assert!(node_volume.uncertain.is_none_or(|uncertain| uncertain.read_absent));
            let pause = node_volume.retry.pending(answered.now);
            assert_eq!(pause.is_some_and(|at| at >= start + 10 * SECOND), waits, "asked at {asked}");
        }
    }

    #[test]
    fn l3_s7_what_became_of_a_delete_is_about_the_object_that_it_named() {
        let mut node_volume = NodeVolume::with_attachment(true, false);
        let earlier = (&"earlier".into(), ResourceVersion(0));
        node_volume.note_deletion(earlier.0, Deletion::Accepted);
        node_volume.delete_failed(
            earlier,
            &CallError::Unknown("cut".to_owned()),
            &answered(Instant::now(), 0),
        );
        assert_eq!(node_volume.deletion(), Deletion::None, "the one that has its name now stays");
    }

    #[test]
    fn s40_a_delete_that_is_refused_again_and_again_pauses_also_while_a_create_may_still_land() {
        let answered = answered(Instant::now(), 0);
        let mut node_volume = NodeVolume::with_attachment(true, false);
        node_volume.uncertain = Some(Uncertain { until: answered.now + SECOND, read_absent: false });
        let uid = node_volume.uid().cloned().unwrap();
        let refused = CallError::Conflict("moved on".to_owned());
        for _ in 0..=3 {
            assert!(node_volume.retry.pending(answered.now).is_none());
            assert!(node_volume.delete_failed((&uid, ResourceVersion(0)), &refused, &answered));
            assert_eq!(node_volume.read_found(&"va".into(), true, &answered), None);
        }
        assert!(node_volume.retry.pending(answered.now).is_some());
    }

    #[test]
    fn what_a_read_finds_is_ours_or_anothers_or_about_something_else() {
        let answered = answered(Instant::now(), 0);
        let other = || Some(WhyRead::MadeByAnother);
        // name, why it is read, whether it is known now, whether it is there still, what is found, and a pause
        let cases = [
            ("what we made", None, true, true, None, false),
            ("S14 what another made", other(), true, true, Some("".into()), false),
            ("it has gone since", other(), true, false, None, false),
            ("S9 another volume's", other(), false, true, None, true),
            ("neither there nor known", other(), false, false, None, false),
        ];
        for (name, why_read, is_known, is_there, expected, pauses) in cases {
            let mut node_volume = NodeVolume { why_read, ..NodeVolume::default() };
            if is_known {
                node_volume.observe_attachment(Arc::new(VolumeAttachment::default()));
            }
            assert_eq!(node_volume.read_found(&"va".into(), is_there, &answered), expected, "{name}");
            assert_eq!(node_volume.retry.at().is_some(), pauses, "{name}");
        }
    }
}
