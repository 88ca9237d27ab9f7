//! Others who do what only an attach/detach controller does, or nearly: a second controller that rewrites
//! lists, creates and deletes VolumeAttachments, and strangers whose attachments are not to be touched.

use apiserver::{
    ids::{AttachmentName, DriverName, NodeName, Uid},
    kinds::{AttachedVolume, VolumeAttachment},
};
use fastrand::Rng;
use k8s_openapi::jiff::Timestamp;
use mooring::attach_detach::state::desired::volume_name::VolumeKind;
use serde_json::json;

use super::{
    authors::Author,
    server::{DRIVER, NODES, Server, VOLUMES, id},
};

impl Server {
    /// Another attach/detach controller does something, wanted or not.
    pub fn second_controller_acts(&mut self, rng: &mut Rng) {
        let node = NodeName::from(NODES[rng.usize(0..NODES.len())]);
        let volume = VOLUMES[rng.usize(0..2)].0;
        let name = id(volume).attachment_name(&node);
        match (rng.u32(0..4), self.attachments.get(&name).cloned()) {
            (0, _) => self.somebody_lists(&node, &[], Author::Rival),
            (1, _) => {
                let volumes = VOLUMES.map(|(volume, _)| volume).into_iter();
                let attached = volumes.filter(|volume| {
                    let attachment = self.attachments.get(&id(volume).attachment_name(&node));
                    id(volume).kind() == VolumeKind::Csi && attachment.is_some_and(|va| va.status.attached)
                });
                let attached: Vec<&str> = attached.collect();
                self.somebody_lists(&node, &attached, Author::Rival);
            }
            (2, None) => self.somebody_attaches(&name, (DRIVER, volume, &node), Author::Rival),
            (_, Some(_)) => self.somebody_detaches(&name, Author::Rival),
            _ => {}
        }
    }

    /// A user deletes by hand what is attached, in use or not, and may even empty the list.
    pub fn meddler_acts(&mut self, rng: &mut Rng) {
        let node = NodeName::from(NODES[rng.usize(0..NODES.len())]);
        let volume = VOLUMES[rng.usize(0..2)].0;
        self.somebody_detaches(&id(volume).attachment_name(&node), Author::Person);
        if rng.u32(0..4) == 0 {
            self.somebody_lists(&node, &[], Author::Person);
        }
    }

    /// Another client deletes an attachment of ours.
    pub(super) fn somebody_detaches(&mut self, name: &AttachmentName, author: Author) {
        let Some(mut attachment) = self.attachments.get(name).cloned() else { return };
        if attachment.metadata.is_terminating() || is_a_strangers(name, &attachment) {
            return;
        }
        self.authors.note_deletion(&attachment.metadata.uid, author);
        if attachment.metadata.finalizers.is_empty() {
            self.remove_attachment(name);
        } else {
            attachment.metadata.deletion_timestamp = Timestamp::from_second(1).ok().map(Box::new);
            self.put_attachment(attachment);
        }
    }

    /// Another client writes the list of a node.
    pub(super) fn somebody_lists(&mut self, name: &NodeName, volumes: &[&str], author: Author) {
        let Some(mut node) = self.nodes.get(name).cloned() else { return };
        let entry =
            |volume: &&str| AttachedVolume { name: id(volume).as_str().into(), device_path: "".into() };
        node.status.volumes_attached = volumes.iter().map(entry).collect();
        if node != self.nodes[name] {
            self.put_list(node, author);
        }
    }

    /// A stranger makes or removes a VolumeAttachment for a volume of ours: under a name of its own, or, with
    /// another driver, under the very name that ours would have (H6).
    pub fn stranger_acts(&mut self, rng: &mut Rng) {
        let node = NodeName::from(NODES[rng.usize(0..NODES.len())]);
        let volume = VOLUMES[rng.usize(0..2)].0;
        let (name, attacher) = match rng.u32(0..3) {
            0 => (id(volume).attachment_name(&node), "other"),
            1 => (AttachmentName::from(format!("stranger-{volume}-{node}").as_str()), "other"),
            _ => (AttachmentName::from(format!("stranger-{volume}-{node}").as_str()), DRIVER),
        };
        match self.attachments.get(&name) {
            None => self.somebody_attaches(&name, (attacher, volume, &node), Author::Stranger),
            Some(attachment) if is_a_strangers(&name, attachment) => self.remove_attachment(&name),
            Some(_) => {}
        }
    }

    /// What strangers have, they give up.
    pub(super) fn strangers_leave(&mut self) {
        let theirs = self.attachments.iter().filter(|(name, attachment)| is_a_strangers(name, attachment));
        let theirs: Vec<AttachmentName> = theirs.map(|(name, _)| name.clone()).collect();
        for name in theirs {
            self.remove_attachment(&name);
        }
    }

    fn somebody_attaches(
        &mut self,
        name: &AttachmentName,
        (attacher, volume, node): (&str, &str, &NodeName),
        author: Author,
    ) {
        self.uids += 1;
        let mut attachment = VolumeAttachment::default();
        attachment.metadata.name = name.as_str().into();
        attachment.metadata.uid = Uid::from(format!("va-{}", self.uids).as_str());
        attachment.spec.attacher = DriverName::from(attacher);
        attachment.spec.node_name = node.clone();
        attachment.spec.source =
            serde_json::from_value(json!({"persistentVolumeName": volume})).expect("a source");
        self.authors.note_creation(&attachment.metadata.uid, author);
        self.put_attachment(attachment);
    }
}

fn is_a_strangers(name: &AttachmentName, attachment: &VolumeAttachment) -> bool {
    name.as_str().starts_with("stranger-") || attachment.spec.attacher.as_str() != DRIVER
}
