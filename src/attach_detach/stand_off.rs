//! What the controller does about another one that writes to the same objects (S14): it has the objects read that tell
//! who did it, stands off, and looks again at what that concerns when it begins and when it ends.
//!
//! In: changes that the watch tells of, and what a live read says of who made them. Out: requests, dirty volumes and
//! nodes, and what there is to tell. Only a leader looks: to one that stands by every act is another's.

use tokio::time::Instant;

use super::{
    act::calls::Answer,
    actual::identification::candidates,
    controller::Controller,
    guard::{
        evidence::Target,
        second_writer::{Noted, Sighting},
    },
    tell::report::{Line, Report},
};
use crate::{
    controller::second_writer::{Changes, Owner},
    kube_api::{
        call::CallError,
        ids::{AttachmentName, Uid},
    },
};

impl Controller {
    /// Notes an act of another party on an object with this UID, if it was ours to do.
    pub(super) fn note_evidence(&mut self, target: Target, uid: &Uid, now: Instant) {
        if !self.leads {
            return;
        }
        match self.second_writer.note(target, uid, now) {
            Noted::Nothing => {}
            Noted::ReadsNode(name) => self.caches.queue.add_node(name),
            Noted::Reads(call) => self.dispatcher.send(call, now),
            Noted::Judged(act, changes) => {
                self.recorder.report(Report::SecondController(act, changes.acts));
                self.stands_off(&changes, now);
            }
        }
    }

    /// Takes the answer to the question who did it.
    pub(super) fn owner_read(&mut self, target: &Target, result: Result<Answer, CallError>, now: Instant) {
        if !self.leads {
            return;
        }
        let owner = match result {
            Ok(Answer::Owners(managers)) => Owner::of(&managers),
            _ => Owner::Unknown,
        };
        self.recorder.log(Line::WrittenByAnother {
            object: target.to_string(),
            field: target.field().as_str(),
            manager: owner.manager().unwrap_or_default().to_owned(),
        });
        if let Target::Node(name) = target {
            self.caches.actual.node_mut(name).requests.note_manager(owner.manager());
        }
        let changes = self.second_writer.learn(target, &owner, now);
        self.recorder.report(Report::SecondController(target.act(), changes.acts));
        self.stands_off(&changes, now);
    }

    /// Ends what is over.
    pub(super) fn end_stand_offs(&mut self, now: Instant) {
        let changes = self.second_writer.settle(now);
        if !changes.is_empty() {
            self.stands_off(&changes, now);
        }
    }

    /// Stand-offs begin or end: looks again at what they concern.
    fn stands_off(&mut self, changes: &Changes<Target>, now: Instant) {
        let (events, reports) = self.second_writer.tell(changes, self.caches.known(now));
        self.recorder.extend(events, reports);
        if changes.everywhere {
            self.caches.queue.add_all();
            return;
        }
        for target in changes.begun.iter().chain(&changes.ended) {
            let name = target.node();
            let volumes = self.caches.actual.node(name).map(|state| state.volumes.clone());
            self.caches.queue.add_on(name, volumes.into_iter().flatten(), &self.caches.actual);
            self.caches.queue.add_node(name.clone());
        }
    }

    /// Looks at what the watch says of an attachment, before the state takes it.
    pub(super) fn look_at_attachment(&mut self, name: &AttachmentName, now: Instant) {
        let objects = &self.caches.objects;
        let attachment = objects.attachments.get(name);
        if !self.leads {
            let revision = attachment.map(|attachment| attachment.metadata.resource_version);
            self.second_writer.listed(revision.unwrap_or_default());
            return;
        }
        let node_volume = self
            .caches
            .actual
            .node_volume_of(name, attachment.as_deref(), |attachment| candidates(objects, attachment));
        let Some(node_volume) = node_volume else { return };
        match self.second_writer.look_at(name, attachment.as_deref(), &node_volume, now) {
            None => {}
            Some(Sighting::Created(target, uid)) => self.note_evidence(target, &uid, now),
            Some(Sighting::Deleted(act)) => {
                self.recorder.log(Line::DeletedByAnother { attachment: name.clone(), act });
                self.recorder.report(Report::SecondController(act, 1));
            }
        }
    }
}
