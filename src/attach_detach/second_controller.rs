//! Second controller: tells whether somebody else does our work beside us, above all a
//! kube-controller-manager whose attach/detach controller was not switched off (S14). Pure.
//!
//! In: acts of others on what only an attach/detach controller writes, one at a time. Out: an alarm, while
//! which nothing is taken away from nodes or drivers. One act is an administrator's; a few within minutes,
//! among them one that administrators hardly do, are another controller's. When nothing of the kind has been
//! seen for a while, the alarm ends by itself.

use std::{collections::VecDeque, time::Duration};

use tokio::time::Instant;

/// Acts within this time count together, and after this long without any the alarm ends.
const MEMORY: Duration = Duration::from_mins(10);

/// So many acts are a pattern. Another controller makes three with the first move of a pod.
const PATTERN: usize = 3;

/// What somebody else did. A label of the metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForeignAct {
    /// `volumesAttached` of a node changed after we had written it (S14).
    ListChanged,
    /// A VolumeAttachment appeared under a name that we compute, and we did not ask for it.
    AttachmentCreated,
    /// One of ours is being deleted, and we did not ask for it. Administrators do that, in numbers, when a
    /// node is lost.
    AttachmentDeleted,
}

impl ForeignAct {
    /// Value of the label `kind`.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::ListChanged => "node_list_changed",
            Self::AttachmentCreated => "attachment_created",
            Self::AttachmentDeleted => "attachment_deleted",
        }
    }

    fn is_hardly_an_administrators(self) -> bool {
        self != Self::AttachmentDeleted
    }
}

/// The acts of late, and whether they make a pattern.
#[derive(Clone, Debug, Default)]
pub struct Suspicion {
    acts: VecDeque<(Instant, ForeignAct)>,
    alarmed: bool,
}

impl Suspicion {
    /// Notes an act. Returns whether it raises the alarm.
    pub fn note(&mut self, act: ForeignAct, now: Instant) -> bool {
        self.forget(now);
        self.acts.push_back((now, act));
        let telling = self.acts.iter().any(|(_, act)| act.is_hardly_an_administrators());
        let raised = !self.alarmed && telling && self.acts.len() >= PATTERN;
        self.alarmed |= raised;
        if self.alarmed {
            // Only the last one is needed from here on: it says when the alarm ends.
            self.acts.drain(..self.acts.len() - 1);
        }
        raised
    }

    /// Whether nothing may be taken away.
    #[must_use]
    pub fn is_alarmed(&self) -> bool {
        self.alarmed
    }

    /// When the alarm ends, unless something is seen before.
    #[must_use]
    pub fn ends_at(&self) -> Option<Instant> {
        self.acts.back().filter(|_| self.alarmed).map(|(last, _)| *last + MEMORY)
    }

    /// Ends the alarm if it is time. Returns whether it did.
    pub fn settle(&mut self, now: Instant) -> bool {
        if self.ends_at().is_none_or(|end| now < end) {
            return false;
        }
        *self = Self::default();
        true
    }

    /// In a burst of deletions only the newest acts matter, so memory is bounded.
    fn forget(&mut self, now: Instant) {
        while self.acts.front().is_some_and(|(at, _)| *at + MEMORY <= now) || self.acts.len() > PATTERN {
            self.acts.pop_front();
        }
    }
}
