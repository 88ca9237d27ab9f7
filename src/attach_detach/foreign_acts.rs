//! The controller's eye on others who do its work (S14): recognises their acts, and stands off while they
//! make a pattern.
//!
//! In: changes that the watch tells of, against what we have asked for ourselves. Out: the alarm, in the
//! metrics, in the log, under `/readyz` and `/debug/attach-detach`; everything is judged anew when it begins
//! and when it ends.

use tokio::time::Instant;

use super::{
    actual_state::{Pair, PairCall},
    controller::Controller,
    identification::candidates,
    second_controller::ForeignAct,
};
use crate::kube_api::{ids::AttachmentName, kinds::VolumeAttachment};

impl Controller {
    /// Notes an act of somebody else, if it was ours to do.
    pub(super) fn suspect(&mut self, act: ForeignAct, now: Instant) {
        if !self.leads {
            return;
        }
        self.metrics.foreign(act);
        if self.suspicion.note(act, now) {
            tracing::error!("another attach/detach controller is at work: nothing is detached while it is");
            self.standing.set_alarm(true);
            self.metrics.alarm(self.standing.alarm());
            self.look_at_everything();
        }
    }

    /// Ends the alarm when nothing has been seen for long enough.
    pub(super) fn calm_down(&mut self, now: Instant) {
        if self.suspicion.settle(now) {
            tracing::warn!("no other attach/detach controller has been seen for a while: detaching again");
            self.standing.set_alarm(false);
            self.metrics.alarm(None);
            self.look_at_everything();
        }
    }

    /// Looks at what the watch says of an attachment, before the state takes it.
    pub(super) fn suspect_attachment(&mut self, name: &AttachmentName, now: Instant) {
        let objects = &self.objects;
        let attachment = objects.attachments.get(name);
        let pair =
            self.actual.pair_of(name, attachment.as_deref(), |attachment| candidates(objects, attachment));
        let Some(pair) = pair else { return };
        let act = foreign_act(&pair, attachment.as_deref());
        if let Some(attachment) = &attachment {
            // A watch may begin again in the past, where what we did ourselves looks like news.
            let revision = attachment.metadata.resource_version;
            if revision <= self.newest_attachment {
                return;
            }
            self.newest_attachment = revision;
        }
        let Some(act) = act else { return };
        tracing::warn!(attachment = %name, act = act.label(), "somebody else created or deletes it");
        self.suspect(act, now);
    }
}

/// What the new state of the attachment of a pair shows that we did not ask for.
fn foreign_act(pair: &Pair, attachment: Option<&VolumeAttachment>) -> Option<ForeignAct> {
    let known = pair.attachment.as_deref();
    let is_new = match (known, attachment) {
        (Some(known), Some(attachment)) => known.metadata.uid != attachment.metadata.uid,
        (None, Some(_)) => true,
        (_, None) => false,
    };
    if is_new {
        let asked = pair.call == Some(PairCall::Create) || pair.uncertain.is_some();
        return (!asked).then_some(ForeignAct::AttachmentCreated);
    }
    let was_staying = known.is_some_and(|known| !known.metadata.is_terminating());
    let is_staying = attachment.is_some_and(|attachment| !attachment.metadata.is_terminating());
    let asked = pair.call == Some(PairCall::Delete)
        || pair.deletion_accepted.is_some()
        || pair.deletion_doubt.is_some();
    (was_staying && !is_staying && !asked).then_some(ForeignAct::AttachmentDeleted)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attach_detach::actual_state::Uncertain;

    fn attachment(uid: &str, terminating: bool) -> VolumeAttachment {
        let mut attachment = VolumeAttachment::default();
        attachment.metadata.uid = uid.into();
        attachment.metadata.deletion_timestamp = terminating.then(Default::default);
        attachment
    }

    #[test]
    fn s14_only_what_we_did_not_ask_for_is_foreign() {
        let [one, other, going] = [attachment("1", false), attachment("2", false), attachment("1", true)];
        let with = |known: Option<&VolumeAttachment>, change: fn(&mut Pair)| {
            let mut pair = Pair { attachment: known.cloned().map(Arc::new), ..Pair::default() };
            change(&mut pair);
            pair
        };
        let uncertain = |pair: &mut Pair| {
            pair.uncertain = Some(Uncertain { until: Instant::now(), read_absent: false });
        };
        let (created, deleted) = (Some(ForeignAct::AttachmentCreated), Some(ForeignAct::AttachmentDeleted));
        let cases = [
            ("the driver attached it", with(Some(&one), |_| ()), Some(&one), None),
            ("created by others", with(None, |_| ()), Some(&one), created),
            ("created by us", with(None, |pair| pair.call = Some(PairCall::Create)), Some(&one), None),
            ("created by us, unanswered", with(None, uncertain), Some(&one), None),
            ("replaced by others", with(Some(&one), |_| ()), Some(&other), created),
            ("being deleted by others", with(Some(&one), |_| ()), Some(&going), deleted),
            ("deleted by others", with(Some(&one), |_| ()), None, deleted),
            ("being deleted for long", with(Some(&going), |_| ()), Some(&going), None),
            ("gone at last", with(Some(&going), |_| ()), None, None),
            ("deletion sent", with(Some(&one), |pair| pair.call = Some(PairCall::Delete)), None, None),
            (
                "deletion accepted",
                with(Some(&one), |pair| pair.deletion_accepted = Some("1".into())),
                Some(&going),
                None,
            ),
            (
                "deletion unanswered",
                with(Some(&one), |pair| pair.deletion_doubt = Some(Instant::now())),
                None,
                None,
            ),
        ];
        for (name, pair, seen, expected) in cases {
            assert_eq!(foreign_act(&pair, seen), expected, "{name}");
        }
    }
}
