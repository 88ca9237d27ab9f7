//! What the daemon sends must follow from what it knows when it sends it: from the objects delivered to it, not
//! from those that there are. Nothing here asks the controller but whether its alarm is raised.

use std::{collections::BTreeSet, sync::Arc};

use apiserver::{
    call::Request,
    ids::{ClaimKey, DriverName, NodeName},
    kinds::{ClaimPhase, VolumeAttachment},
};
use mooring::attach_detach::{
    calls::{AttachmentRequest, Call},
    state::desired::volume_name::{VolumeId, VolumeKind},
};

use super::{
    daemon::Daemon,
    server::{DRIVER, VOLUMES, id, is_exclusive},
};

impl Daemon {
    /// S1, S8, S14, S15, S16, and for the lists of nodes S3, S10, S11.
    pub(super) fn is_justified(&self, call: &Call) -> Result<(), String> {
        let alarm = |node| self.is_alarmed_on(node);
        match call {
            Call::Attachment(volume, node, AttachmentRequest::Create(_)) => {
                if !self.wants(volume, node) {
                    return Err(format!(
                        "S8 S16: {volume} is to be attached to {node}, where it is not wanted"
                    ));
                }
                if is_exclusive(volume)
                    && let Some(other) = self.elsewhere(volume, node)
                {
                    return Err(format!("S1: {volume} is to be attached to {node}, and {other} has it"));
                }
                Ok(())
            }
            Call::Attachment(volume, node, AttachmentRequest::Delete(..)) if alarm(node) => {
                Err(format!("S14: {volume} is to be detached from {node} while another does so, too"))
            }
            Call::Attachment(volume, node, AttachmentRequest::Delete(..)) if self.wants(volume, node) => {
                Err(format!("S15: {volume} is to be detached from {node}, where it is wanted"))
            }
            Call::Attachment(volume, node, AttachmentRequest::Delete(..))
                if self.objects.nodes.get(node).is_some_and(|node| node.lists(volume.as_str())) =>
            {
                Err(format!("S2: {volume} is to be detached from {node}, which lists it"))
            }
            Call::PatchNode(name, _, request) => self.is_list_justified(name, request, alarm(name)),
            _ => Ok(()),
        }
    }

    /// Exclusive volumes without attachments that a patch of a node's list adds, by which they are attached.
    pub(super) fn lists_anew(&self, name: &NodeName, request: &Request) -> Vec<VolumeId> {
        let list = request.body.as_ref().and_then(|body| body["status"]["volumesAttached"].as_array());
        let node = self.objects.nodes.get(name);
        let is_new = |volume: &VolumeId| {
            list.into_iter().flatten().any(|entry| entry["name"] == volume.as_str())
                && !node.as_ref().is_some_and(|node| node.lists(volume.as_str()))
        };
        let volumes = VOLUMES.map(|(volume, _)| id(volume)).into_iter();
        let attached = volumes.filter(|volume| volume.kind() == VolumeKind::NoOp && is_exclusive(volume));
        attached.filter(is_new).collect()
    }

    fn is_list_justified(&self, name: &NodeName, request: &Request, alarm: bool) -> Result<(), String> {
        let body = request.body.clone().unwrap_or_default();
        let list = body["status"]["volumesAttached"].as_array().cloned().unwrap_or_default();
        let node = self.objects.nodes.get(name);
        for volume in VOLUMES.map(|(volume, _)| id(volume)) {
            let listed = list.iter().any(|entry| entry["name"] == volume.as_str());
            let was_listed = node.as_ref().is_some_and(|node| node.lists(volume.as_str()));
            let attachment = self.attachment(&volume, name);
            let has_none = volume.kind() == VolumeKind::NoOp;
            if listed && !was_listed && attachment.is_none() && !has_none {
                return Err(format!("S10: {volume} is to be listed on {name} without being attached"));
            }
            if listed || !was_listed {
                continue;
            }
            // What it has asked to be detached may be so, as far as it knows.
            let is_held = has_none
                || attachment.is_some_and(|attachment| !self.deleted.contains(&attachment.metadata.uid));
            if alarm {
                let rows = self.second_writers();
                return Err(format!(
                    "S14: {volume} is to be taken off {name} while another does so, too: {rows}"
                ));
            }
            if is_held && self.wants(&volume, name) {
                return Err(format!(
                    "S11: {volume} is to be taken off {name}, where it is attached and wanted"
                ));
            }
            let is_well = node.as_ref().is_some_and(|node| node.is_ready() && !node.is_out_of_service());
            if is_held && is_well && node.as_ref().is_some_and(|node| node.uses(volume.as_str())) {
                return Err(format!("S3 S11: {volume} is to be taken off {name}, which is well and uses it"));
            }
        }
        Ok(())
    }

    fn wants(&self, volume: &VolumeId, node: &NodeName) -> bool {
        self.wanted_on(node).contains(volume)
    }

    /// What pods on a node need attached, where everything between the two is in order.
    pub(super) fn wanted_on(&self, node: &NodeName) -> BTreeSet<VolumeId> {
        // A node that was never seen to be managed is given nothing.
        if !self.objects.nodes.get(node).is_some_and(|node| node.is_managed()) {
            return BTreeSet::new();
        }
        let driver = self.objects.drivers.get(&DriverName::from(DRIVER));
        let driver_attaches = driver.is_none_or(|driver| driver.spec.attach_required != Some(false));
        let pods = self.objects.pods.snapshot();
        let pods = pods.values().filter(|pod| pod.spec.node_name == *node && !pod.is_terminated());
        pods.flat_map(|pod| &pod.spec.volumes)
            .filter(|volume| self.is_bound(&volume.name))
            .map(|volume| id(&volume.name))
            .filter(|volume| driver_attaches || volume.kind() == VolumeKind::NoOp)
            .collect()
    }

    /// Whether claim and volume of this name belong to each other.
    fn is_bound(&self, name: &str) -> bool {
        let Some(claim) = self.objects.claims.get(&ClaimKey::new("ns", name)) else { return false };
        let Some(found) = self.objects.volumes.get(&claim.spec.volume_name) else { return false };
        let names_claim = found.spec.claim_ref.as_ref().is_some_and(|to| to.uid == claim.metadata.uid);
        claim.status.phase == ClaimPhase::Bound && names_claim && !found.metadata.is_terminating()
    }

    /// Another node that a VolumeAttachment names for the volume, made by any client.
    fn elsewhere(&self, volume: &VolumeId, node: &NodeName) -> Option<NodeName> {
        let is_about = |attachment: &VolumeAttachment| {
            let source = attachment.spec.source.persistent_volume_name.as_ref();
            source.is_some_and(|source| id(source.as_str()) == *volume)
        };
        let attachments = self.objects.attachments.snapshot();
        let mut others = attachments.values().filter(|attachment| attachment.spec.node_name != *node);
        others.find(|attachment| is_about(attachment)).map(|attachment| attachment.spec.node_name.clone())
    }

    /// The attachment of a volume that is attached.
    fn attachment(&self, volume: &VolumeId, node: &NodeName) -> Option<Arc<VolumeAttachment>> {
        let attachment = self.objects.attachments.get(&volume.attachment_name(node));
        attachment.filter(|attachment| {
            attachment.spec.attacher.as_str() == DRIVER
                && attachment.status.attached
                && !attachment.metadata.is_terminating()
        })
    }
}
