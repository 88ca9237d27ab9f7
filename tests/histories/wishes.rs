//! Since when no pod wants what, and what that entitles the daemon to.

use std::collections::{BTreeMap, BTreeSet};

use apiserver::{ids::NodeName, kinds::Node};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use mooring::attach_detach::{
    calls::{AttachmentRequest, Call},
    state::desired::volume_name::VolumeId,
};

use super::{
    authors::Author,
    daemon::Daemon,
    server::{DRIFT, NODES, PATIENCE, Server, VOLUMES, id, is_exclusive},
};

impl Server {
    /// Notes what the leader has seen wanted, and convicts it of what it has sent since it was last asked about.
    pub(super) fn judge(&mut self, daemon: &mut Daemon) -> Result<(), String> {
        self.note_wishes_seen_by(daemon);
        for (node, volume) in daemon.deletions() {
            self.is_off_the_list(&node, &volume)?;
        }
        for call in &std::mem::take(&mut daemon.unjudged) {
            match call {
                Call::Attachment(volume, node, AttachmentRequest::Create(_)) if is_exclusive(volume) => {
                    self.is_mounted_nowhere_else(volume, node, daemon)?;
                }
                Call::Attachment(volume, node, AttachmentRequest::Delete(..)) => {
                    self.is_entitled(node, volume)?;
                }
                Call::PatchNode(node, _, request) => {
                    for volume in daemon.lists_anew(node, request) {
                        self.is_mounted_nowhere_else(&volume, node, daemon)?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// S43: wherever else it is mounted, the wait for that is over, or nothing tells of it any more.
    fn is_mounted_nowhere_else(
        &self,
        volume: &VolumeId,
        here: &NodeName,
        daemon: &Daemon,
    ) -> Result<(), String> {
        for (pair, listed_by) in &self.mounted {
            let (node, mounted) = pair;
            // What another listed, and no watch has told of yet, is not held against it.
            let known = daemon.objects.nodes.get(node);
            let is_told = || known.as_ref().is_some_and(|node| node.lists(volume.as_str()));
            // People take away every witness only with the attachment.
            let attachment = volume.attachment_name(node);
            let is_unwitnessed = daemon.objects.attachments.get(&attachment).is_none()
                && (self.unwitnessed.contains(pair) || self.unreported.contains(node));
            let is_out = |node: Option<&Node>| node.is_some_and(Node::is_out_of_service);
            if mounted == volume
                && node != here
                && !self.overdue.contains(pair)
                && !is_unwitnessed
                && !is_out(known.as_deref())
                && !is_out(self.nodes.get(node))
                && (*listed_by == Author::Mooring || is_told())
            {
                return Err(format!(
                    "S1 S43: {volume} is to be given to {here} while it is mounted on {node}"
                ));
            }
        }
        Ok(())
    }

    /// S3, S4, S5: the volume was seen unused since it was unpublished, or force was due.
    fn is_entitled(&self, node: &NodeName, volume: &VolumeId) -> Result<(), String> {
        let pair = (node.clone(), volume.clone());
        let shown = self.unpublished.get(&pair).copied().unwrap_or_default();
        // What is mounted because another listed it need not have been told; nor has its kubelet told a new node object.
        let mounted = self.mounted.get(&pair) == Some(&Author::Mooring) && !self.unreported.contains(node);
        if shown.out_of_service || (shown.unused && !mounted) {
            return Ok(());
        }
        let gone = !self.nodes.contains_key(node);
        if !shown.unready && !gone {
            return Err(format!("S3 S5: {volume} deleted though {node} was well and used it"));
        }
        // A pod that came and went unseen has not begun the wait anew; nor has one that a new leader still saw.
        let unwanted = [&self.unwanted_since, &self.seen_unwanted_since].map(|since| since.get(&pair));
        let unwanted = unwanted.into_iter().flatten().min();
        let since = self.unready_since.get(node).max(unwanted).copied();
        match since {
            Some(since) if is_over(since, self.wall) => Ok(()),
            // The node recovered after it was last seen unwell; how long it had been so is forgotten.
            None if shown.unready => Ok(()),
            _ => Err(format!("S4: {volume} forced off {node} at {} though only since {since:?}", self.wall)),
        }
    }

    /// Notes what a new leader cannot know of but by the attachment, which people may take away, too: they took away the
    /// node object, or the list, and several kubelets report it, of which some only announce a pod. What mooring itself took
    /// off a list is no excuse.
    pub(super) fn leader_changes(&mut self) {
        let has_witness = |(name, volume): &&(NodeName, VolumeId)| {
            let reports = self.nodes.values().filter(|node| node.uses(volume.as_str())).count();
            let is_told =
                |node: &Node| node.lists(volume.as_str()) || (node.uses(volume.as_str()) && reports == 1);
            let by_mooring = self.authors.unlisted(&(name.clone(), volume.clone())) == Some(Author::Mooring);
            by_mooring || self.nodes.get(name).is_some_and(is_told)
        };
        let unwitnessed: Vec<_> = self.mounted.keys().filter(|pair| !has_witness(pair)).cloned().collect();
        self.unwitnessed.extend(unwitnessed);
    }

    /// S4: force is due for what has not been wanted on a node that is gone or not Ready for long enough.
    pub(super) fn patience_ends(&mut self) {
        self.overdue.retain(|pair| self.mounted.contains_key(pair));
        self.unwitnessed.retain(|pair| self.mounted.contains_key(pair));
        for pair in self.mounted.keys() {
            let unwanted = [&self.unwanted_since, &self.seen_unwanted_since].map(|since| since.get(pair));
            let (Some(unready), Some(unwanted)) =
                (self.unready_since.get(&pair.0), unwanted.into_iter().flatten().min())
            else {
                continue;
            };
            if is_over(*unready.max(unwanted), self.wall) {
                self.overdue.insert(pair.clone());
            }
        }
    }

    /// Notes since when no pod has wanted what.
    pub(super) fn note_wishes(&mut self) {
        let wanted = NODES.map(|node| (NodeName::from(node), self.to_be_attached(&node.into())));
        note(&mut self.unwanted_since, &wanted, self.wall);
    }

    /// Notes since when the leader has seen no pod want what.
    fn note_wishes_seen_by(&mut self, daemon: &Daemon) {
        let wanted = NODES.map(|node| (NodeName::from(node), daemon.wanted_on(&node.into())));
        note(&mut self.seen_unwanted_since, &wanted, self.wall);
    }

    /// The leader renews its lease, and says how long volumes have waited for force; it has seen that no pod wanted
    /// them for no longer than is noted here.
    pub(super) fn lease_is_renewed(&mut self, daemon: &Daemon) {
        self.told = daemon.note();
        self.kept.clear();
        let text = self.told.as_deref().unwrap_or_default();
        let is_carried = |node: &NodeName| {
            self.nodes.get(node).is_none_or(|node| text.contains(&node.metadata.uid.to_string()))
        };
        for since in [&self.unwanted_since, &self.seen_unwanted_since] {
            for (pair, since) in since.iter().filter(|((node, _), _)| is_carried(node)) {
                let elapsed: &mut SignedDuration = self.kept.entry(pair.clone()).or_default();
                *elapsed = (*elapsed).max(self.wall.duration_since(*since));
            }
        }
    }

    /// Notes what a new leader inherits of that: no more than had passed when the lease was renewed. Its predecessor
    /// may have seen a pod want a volume and died before it renewed the lease; that pod is gone, and nothing tells of it
    /// any more.
    pub(super) fn note_wishes_inherited_by(&mut self, daemon: &Daemon) {
        self.note_wishes_seen_by(daemon);
        for (pair, seen) in &mut self.seen_unwanted_since {
            if let Some(kept) = self.kept.get(pair) {
                *seen = (*seen).min(self.wall.checked_sub(*kept).unwrap());
            }
        }
        // It is of an earlier term from now on.
        self.told = None;
        self.kept.clear();
    }
}

/// Whether the patience with what began then is over, by a clock that is right but for its rate.
fn is_over(since: Timestamp, now: Timestamp) -> bool {
    now.duration_since(since) >= PATIENCE - DRIFT
}

fn note(
    since: &mut BTreeMap<(NodeName, VolumeId), Timestamp>,
    wanted: &[(NodeName, BTreeSet<VolumeId>)],
    wall: Timestamp,
) {
    for (node, wanted) in wanted {
        for volume in VOLUMES.map(|(volume, _)| id(volume)) {
            let is_wanted = wanted.contains(&volume);
            let pair = (node.clone(), volume);
            if is_wanted {
                since.remove(&pair);
            } else {
                since.entry(pair).or_insert(wall);
            }
        }
    }
}
