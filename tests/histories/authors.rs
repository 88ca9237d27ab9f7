//! Who wrote what. Each write to an attachment or a list has an author, and a check convicts mooring of what its own
//! write brings about. What another wrote excuses mooring only until it is told of it.

use std::collections::BTreeMap;

use apiserver::{
    ids::{NodeName, Uid},
    kinds::{Narrow as _, Node},
};
use mooring::attach_detach::state::desired::volume_name::VolumeId;

use super::server::{VOLUMES, id};

/// Who writes what only an attach/detach controller writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    Mooring,
    /// Another attach/detach controller.
    Rival,
    /// A client with attachments of its own.
    Stranger,
    Person,
}

impl Author {
    /// As `managedFields` names it.
    pub(super) fn manager(self) -> &'static str {
        match self {
            Self::Mooring => "mooring",
            Self::Rival => "kube-controller-manager",
            Self::Stranger => "stranger",
            Self::Person => "kubectl-edit",
        }
    }
}

/// The authors of what stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Authors {
    /// Who created each VolumeAttachment.
    created: BTreeMap<Uid, Author>,
    /// Who last asked for the deletion of each that is terminating.
    deleted: BTreeMap<Uid, Author>,
    /// Who listed each volume that a node lists.
    listed: BTreeMap<(NodeName, VolumeId), Author>,
    /// Who took each volume off the list that a node listed.
    unlisted: BTreeMap<(NodeName, VolumeId), Author>,
    /// Who wrote each list last, of those that have an entry: an empty one has no owner.
    owners: BTreeMap<NodeName, Author>,
}

impl Authors {
    pub(super) fn note_creation(&mut self, uid: &Uid, author: Author) {
        self.created.insert(uid.clone(), author);
    }

    pub(super) fn note_deletion(&mut self, uid: &Uid, author: Author) {
        self.deleted.insert(uid.clone(), author);
    }

    pub(super) fn note_end(&mut self, uid: &Uid) {
        self.created.remove(uid);
        self.deleted.remove(uid);
    }

    /// Notes who changed the list of a node. Returns what was taken off it, and who had listed that.
    pub(super) fn note_list(
        &mut self,
        before: Option<&Node>,
        after: &Node,
        author: Author,
    ) -> BTreeMap<VolumeId, Author> {
        let mut taken_off = BTreeMap::new();
        if after.status.volumes_attached.is_empty() {
            self.owners.remove(&after.key());
        } else {
            self.owners.insert(after.key(), author);
        }
        for volume in VOLUMES.map(|(volume, _)| id(volume)) {
            let lists = |node: &Node| node.lists(volume.as_str());
            let pair = (NodeName::from(after.metadata.name.as_str()), volume.clone());
            match (before.is_some_and(lists), lists(after)) {
                (false, true) => {
                    self.unlisted.remove(&pair);
                    self.listed.insert(pair, author);
                }
                (true, false) => {
                    self.unlisted.insert(pair.clone(), author);
                    taken_off.extend(self.listed.remove(&pair).map(|by| (volume, by)));
                }
                _ => {}
            }
        }
        taken_off
    }

    /// Nothing is listed any more on a node that is gone.
    pub(super) fn note_gone(&mut self, node: &NodeName) {
        self.listed.retain(|(of, _), _| of != node);
        self.unlisted.retain(|(of, _), _| of != node);
        self.owners.remove(node);
    }

    pub(super) fn created(&self, uid: &Uid) -> Option<Author> {
        self.created.get(uid).copied()
    }

    pub(super) fn deleted(&self, uid: &Uid) -> Option<Author> {
        self.deleted.get(uid).copied()
    }

    pub(super) fn owner(&self, node: &NodeName) -> Option<Author> {
        self.owners.get(node).copied()
    }

    pub(super) fn listed(&self, pair: &(NodeName, VolumeId)) -> Option<Author> {
        self.listed.get(pair).copied()
    }

    pub(super) fn unlisted(&self, pair: &(NodeName, VolumeId)) -> Option<Author> {
        self.unlisted.get(pair).copied()
    }
}
