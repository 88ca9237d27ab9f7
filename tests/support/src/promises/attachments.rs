//! Who may have a volume: S1.

use std::collections::BTreeSet;

use serde_json::Value;

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
            _ => Self::InTree(object["metadata"]["name"].as_str().unwrap_or_default().to_owned()),
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

/// Whether no access mode allows several nodes (attach-detach §6.5).
fn is_exclusive(modes: &Value) -> bool {
    let allows = |mode: &Value| mode == "ReadWriteMany" || mode == "ReadOnlyMany";
    !modes.as_array().into_iter().flatten().any(allows)
}

/// S1: all VolumeAttachments of an exclusive volume, in whatever state, name one node. These are the nodes, if they are
/// several.
///
/// `volume_of` knows the volumes by the names of their PersistentVolumes.
pub fn spread<'a, 'b>(
    attachment: &Value,
    all: impl Iterator<Item = &'a Value>,
    volume_of: impl Fn(&str) -> Option<&'b (Volume, bool)>,
) -> Option<BTreeSet<&'a str>> {
    let source = |of: &Value| of["spec"]["source"]["persistentVolumeName"].as_str().map(str::to_owned);
    let known = |of: &Value| source(of).and_then(|name| volume_of(&name));
    let (volume, _) = known(attachment)?;
    let mut nodes = BTreeSet::new();
    let mut is_exclusive = false;
    for other in all {
        if let Some((of_other, exclusive)) = known(other)
            && of_other == volume
        {
            nodes.extend(other["spec"]["nodeName"].as_str());
            // Two PersistentVolumes may stand for it. One that says so is enough.
            is_exclusive |= exclusive;
        }
    }
    (is_exclusive && nodes.len() > 1).then_some(nodes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn s1_an_exclusive_volume_is_told_on_two_nodes_under_whatever_names() {
        let volume = |name: &str, handle: &str, mode: &str| {
            let spec = json!({ "csi": { "driver": "d", "volumeHandle": handle }, "accessModes": [mode] });
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
        ];
        for (modes, nodes, is_told) in cases {
            let volumes = [volume("one", "h", modes[0]), volume("two", "h", modes[1])];
            let all = [attachment("one", nodes[0]), attachment("two", nodes[1]), attachment("other", "c")];
            let known = |name: &str| match name {
                "one" => Some(&volumes[0]),
                "two" => Some(&volumes[1]),
                _ => None,
            };
            let told = spread(&all[0], all.iter(), known);
            assert_eq!(told.is_some(), is_told, "{modes:?} {nodes:?}");
        }
    }
}
