//! The nodes that may have a volume, and the time when it may be taken away: S1, S2, S3, S9 and S10.
//!
//! In: VolumeAttachments, and nodes before and after. Out: the broken promises.

use std::collections::BTreeSet;

use serde_json::Value;

use super::text;
use crate::actors::attachment_name;

const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// A volume as the storage system knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Volume {
    /// Driver and handle.
    Csi(String, String),
    /// A PersistentVolume of an in-tree plugin.
    InTree(String),
}

impl Volume {
    /// The volume that a PersistentVolume stands for, and whether that is for one node alone.
    pub fn of(object: &Value) -> (Self, bool) {
        let csi = &object["spec"]["csi"];
        let volume = match (csi["driver"].as_str(), csi["volumeHandle"].as_str()) {
            (Some(driver), Some(handle)) => Self::Csi(driver.to_owned(), handle.to_owned()),
            _ => Self::InTree(text(object, "/metadata/name").to_owned()),
        };
        (volume, is_exclusive(&object["spec"]["accessModes"]))
    }

    /// As nodes list it, if it is a driver's.
    pub fn unique_name(&self) -> Option<String> {
        match self {
            Self::Csi(driver, handle) => Some(format!("kubernetes.io/csi/{driver}^{handle}")),
            Self::InTree(_) => None,
        }
    }

    /// What a node lists.
    pub fn parse(unique_name: &str) -> Option<Self> {
        let (driver, handle) = unique_name.strip_prefix("kubernetes.io/csi/")?.split_once('^')?;
        Some(Self::Csi(driver.to_owned(), handle.to_owned()))
    }
}

/// Whether there are access modes and none of them allows several nodes (attach-detach §6.5).
/// KCM: pkg/volume/util/util.go, `IsMultiAttachAllowed`.
fn is_exclusive(modes: &Value) -> bool {
    let allows = |mode: &Value| mode == "ReadWriteMany" || mode == "ReadOnlyMany";
    modes.as_array().is_some_and(|modes| !modes.is_empty() && !modes.iter().any(allows))
}

/// S1: all VolumeAttachments of an exclusive volume, in whatever state, name one node. These are the nodes, if they are
/// several.
///
/// `volume_of` knows the volumes of VolumeAttachments.
pub fn spread<'a, 'b>(
    attachment: &Value,
    all: impl Iterator<Item = &'a Value>,
    volume_of: impl Fn(&Value) -> Option<&'b (Volume, bool)>,
) -> Option<BTreeSet<&'a str>> {
    let (volume, _) = volume_of(attachment)?;
    let mut nodes = BTreeSet::new();
    let mut is_exclusive = false;
    for other in all {
        if let Some((of_other, exclusive)) = volume_of(other)
            && of_other == volume
        {
            nodes.extend(other["spec"]["nodeName"].as_str());
            // Two PersistentVolumes may stand for it. One that says so is enough.
            is_exclusive |= exclusive;
        }
    }
    (is_exclusive && nodes.len() > 1).then_some(nodes)
}

/// S9: name and attacher of a new VolumeAttachment are those of its volume.
///
/// What an in-tree plugin's volume is called by its driver is not known here.
pub fn misnamed(attachment: &Value, volume: &Volume) -> Option<String> {
    let Volume::Csi(driver, handle) = volume else { return None };
    let node = text(attachment, "/spec/nodeName");
    let is_right = text(attachment, "/spec/attacher") == driver
        && text(attachment, "/metadata/name") == attachment_name(handle, driver, node);
    (!is_right).then(|| format!("S9 a VolumeAttachment on {node} is not named after {driver} and {handle}"))
}

/// Of all volumes that the PersistentVolume of a VolumeAttachment ever stood for, oldest first, the one that it was made for: the one
/// that it is named after, or the last.
pub fn volume_of<'a>(attachment: &Value, all: &'a [(Volume, bool)]) -> Option<&'a (Volume, bool)> {
    all.iter().rev().find(|(volume, _)| misnamed(attachment, volume).is_none()).or(all.last())
}

/// S2 and S3, when the deletion of a VolumeAttachment begins. The states of its node come oldest first, and the last is the
/// present one; there are none if the node is gone.
///
/// Force is S4's: `is_forced` tells of a state whether the node may be forced then.
pub fn deleted_early(volume: &str, states: &[&Value], is_forced: impl Fn(&Value) -> bool) -> Option<String> {
    let now = states.last()?;
    let node = text(now, "/metadata/name");
    if lists(now, volume) {
        return Some(format!("S2 deleted while {node} lists {volume} as attached"));
    }
    // From the revision that took it from the list on, or from the beginning if it never was there.
    let listed = states.iter().rposition(|state| lists(state, volume));
    let mut since = states.iter().skip(listed.map_or(0, |position| position + 1));
    let is_due = since.any(|state| !uses(state, volume) || is_out_of_service(state) || is_forced(state));
    (!is_due).then(|| format!("S3 deleted although {node} reports {volume} in use"))
}

/// S2: what is being deleted is not listed again. S10: what a node lists anew is attached, or was.
///
/// `attachment_of` knows the VolumeAttachments by name, and whether each was ever attached.
pub fn listed_falsely<'a>(
    node: &str,
    before: Option<&Value>,
    now: &Value,
    attachment_of: impl Fn(&str) -> Option<(&'a Value, bool)>,
) -> Vec<String> {
    let mut broken = Vec::new();
    for name in listed(now).filter(|name| before.is_none_or(|before| !lists(before, name))) {
        let Some(Volume::Csi(driver, handle)) = Volume::parse(name) else { continue };
        match attachment_of(&attachment_name(&handle, &driver, node)) {
            None => broken.push(format!("S10 lists {name}, which has no VolumeAttachment")),
            Some((attachment, _)) if is_terminating(attachment) => {
                broken.push(format!("S2 lists {name} again, whose VolumeAttachment is being deleted"));
            }
            Some((_, true)) => {}
            Some((_, false)) => broken.push(format!("S10 lists {name}, which is not attached")),
        }
    }
    broken
}

/// What a node lists as attached.
pub fn listed(node: &Value) -> impl Iterator<Item = &str> {
    let list = node["status"]["volumesAttached"].as_array();
    list.into_iter().flatten().filter_map(|entry| entry["name"].as_str())
}

/// Whether somebody has begun to delete an object.
pub fn is_terminating(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Whether a node says that it is not Ready.
pub fn is_unready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let mut ready = conditions.into_iter().flatten().filter(|condition| condition["type"] == "Ready");
    ready.any(|condition| condition["status"] != "True")
}

fn lists(node: &Value, volume: &str) -> bool {
    listed(node).any(|name| name == volume)
}

/// Whether a node reports a volume in use.
pub fn uses(node: &Value, volume: &str) -> bool {
    node["status"]["volumesInUse"].as_array().into_iter().flatten().any(|name| name == volume)
}

fn is_out_of_service(node: &Value) -> bool {
    node["spec"]["taints"].as_array().into_iter().flatten().any(|taint| taint["key"] == OUT_OF_SERVICE)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NAME: &str = "kubernetes.io/csi/d^h";

    fn node(lists: bool, uses: bool) -> Value {
        let list = if lists { json!([{ "name": NAME }]) } else { json!([]) };
        json!({ "status": { "volumesAttached": list, "volumesInUse": if uses { json!([NAME]) } else { json!([]) } } })
    }

    fn id(rule: &str) -> &str {
        rule.split(' ').next().unwrap_or_default()
    }

    #[test]
    fn s2_s3_a_deletion_is_told_that_comes_before_the_node_is_done() {
        let (listed, unlisted, unused) = (node(true, true), node(false, true), node(false, false));
        let mut out = unlisted.clone();
        out["spec"]["taints"] = json!([{ "key": OUT_OF_SERVICE }]);
        let mut unwell = unlisted.clone();
        unwell["unwell"] = json!(true);
        let cases = [
            (vec![], ""),
            (vec![&listed], "S2"),
            (vec![&unlisted, &listed], "S2"),
            (vec![&listed, &unlisted], "S3"),
            // What it showed before the un-publishing proves nothing.
            (vec![&unused, &listed, &unlisted], "S3"),
            (vec![&listed, &unused], ""),
            (vec![&listed, &unused, &unlisted], ""),
            (vec![&listed, &out], ""),
            (vec![&out, &listed, &unlisted], "S3"),
            // Read before the taint was taken off again.
            (vec![&listed, &out, &unlisted], ""),
            (vec![&listed, &unwell, &unlisted], ""),
            (vec![&unwell, &listed, &unlisted], "S3"),
        ];
        for (states, expected) in cases {
            let told = deleted_early(NAME, &states, |state| state["unwell"] == true);
            assert_eq!(told.as_deref().map_or("", id), expected, "{states:?}");
        }
    }

    #[test]
    fn s2_s10_an_entry_is_told_whose_volume_is_not_attached() {
        let attached = json!({ "metadata": {} });
        let going = json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } });
        let (empty, full) = (node(false, false), node(true, false));
        let cases = [
            (None, Some((&attached, true)), ""),
            (Some(&empty), Some((&attached, false)), "S10"),
            (Some(&empty), None, "S10"),
            (Some(&empty), Some((&going, true)), "S2"),
            // It stood there before.
            (Some(&full), None, ""),
        ];
        for (before, attachment, expected) in cases {
            let known = |name: &str| attachment.filter(|_| name == attachment_name("h", "d", "n"));
            let told = listed_falsely("n", before, &full, known);
            let ids: Vec<&str> = told.iter().map(|rule| id(rule)).collect();
            let expected: Vec<&str> = Some(expected).filter(|id| !id.is_empty()).into_iter().collect();
            assert_eq!(ids, expected, "{before:?} {attachment:?}");
        }
    }

    #[test]
    fn s9_a_name_is_told_that_is_another_volume_s_or_node_s() {
        let right = attachment_name("h", "d", "n");
        let cases = [
            (right.clone(), "d", "n", false),
            (right.clone(), "other", "n", true),
            (right, "d", "m", true),
            (attachment_name("g", "d", "n"), "d", "n", true),
        ];
        for (name, attacher, node, is_told) in cases {
            let attachment =
                json!({ "metadata": { "name": name }, "spec": { "attacher": attacher, "nodeName": node } });
            let volume = Volume::Csi("d".to_owned(), "h".to_owned());
            assert_eq!(misnamed(&attachment, &volume).is_some(), is_told, "{attachment}");
        }
    }

    #[test]
    fn s2_an_attachment_is_of_the_volume_that_it_is_named_after_though_the_persistent_volume_was_made_anew() {
        let volume = |handle: &str| (Volume::Csi("d".to_owned(), handle.to_owned()), true);
        let all = [volume("old"), volume("new")];
        for (name, expected) in [
            (attachment_name("old", "d", "n"), "old"),
            (attachment_name("new", "d", "n"), "new"),
            ("by-hand".to_owned(), "new"),
        ] {
            let attachment =
                json!({ "metadata": { "name": name }, "spec": { "attacher": "d", "nodeName": "n" } });
            assert_eq!(volume_of(&attachment, &all), Some(&volume(expected)), "{attachment}");
        }
        assert_eq!(volume_of(&json!({}), &[]), None);
    }

    #[test]
    fn s1_an_exclusive_volume_is_told_on_two_nodes_under_whatever_names() {
        let volume = |name: &str, handle: &str, mode: &str| {
            let modes: Vec<&str> = Some(mode).filter(|mode| !mode.is_empty()).into_iter().collect();
            let spec = json!({ "csi": { "driver": "d", "volumeHandle": handle }, "accessModes": modes });
            Volume::of(&json!({ "metadata": { "name": name }, "spec": spec }))
        };
        let attachment = |volume: &str, node: &str| json!({ "spec": { "nodeName": node, "source": { "persistentVolumeName": volume } } });
        let cases = [
            // Modes of two PersistentVolumes of one handle; nodes; whether it is told.
            (["ReadWriteOnce", "ReadWriteOnce"], ["a", "b"], true),
            (["ReadWriteOncePod", "ReadWriteOncePod"], ["a", "b"], true),
            (["ReadWriteOnce", "ReadWriteOnce"], ["a", "a"], false),
            (["ReadWriteMany", "ReadWriteMany"], ["a", "b"], false),
            (["ReadWriteMany", "ReadWriteOnce"], ["a", "b"], true),
            (["ReadOnlyMany", "ReadOnlyMany"], ["a", "b"], false),
            // Without any mode nobody knows, and the attacher is left to refuse.
            (["", ""], ["a", "b"], false),
            (["", "ReadWriteOnce"], ["a", "b"], true),
            (["Rubbish", "Rubbish"], ["a", "b"], true),
        ];
        for (modes, nodes, is_told) in cases {
            let volumes = [volume("one", "h", modes[0]), volume("two", "h", modes[1])];
            let all = [attachment("one", nodes[0]), attachment("two", nodes[1]), attachment("other", "c")];
            let known = |of: &Value| match of["spec"]["source"]["persistentVolumeName"].as_str() {
                Some("one") => Some(&volumes[0]),
                Some("two") => Some(&volumes[1]),
                _ => None,
            };
            let told = spread(&all[0], all.iter(), known);
            assert_eq!(told.is_some(), is_told, "{modes:?} {nodes:?}");
        }
    }
}
