//! Which plugins are asked for, and how volumes are recycled, as flags and files say.

use apiserver::kinds::{FileSource, Narrow, Pod};
use serde_json::{Value, json};

/// Which plugins are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginOptions {
    /// Whether volumes of `kubernetes.io/host-path` are made and deleted.
    pub enable_hostpath_provisioner: bool,
    /// How volumes are recycled, if they are.
    pub recyclers: Option<Recyclers>,
}

/// How volumes of one kind of source are recycled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recycler {
    /// The pod; the source of its first volume and its deadline are the run's own.
    pub template: Value,
    /// Shortest deadline of a run, in seconds.
    pub minimum_timeout: u32,
    /// What each GiB adds, in seconds; the larger of both counts.
    pub increment_timeout: u32,
}

/// How volumes are recycled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recyclers {
    /// Directories of a node.
    pub host_path: Recycler,
    /// NFS.
    pub nfs: Recycler,
}

impl Recycler {
    /// The pod that is used unless a file describes another.
    // KCM: pkg/volume/plugins.go, NewPersistentVolumeRecyclerPodTemplate.
    pub fn default_template() -> Value {
        let script =
            "test -e /scrub && find /scrub -mindepth 1 -delete && test -z \"$(ls -A /scrub)\" || exit 1";
        json!({
            "apiVersion": "v1",
            "kind": Pod::KIND,
            "metadata": { "namespace": "default" },
            "spec": {
                "restartPolicy": "Never",
                "volumes": [{ "name": "vol" }],
                "containers": [{
                    "name": "pv-recycler",
                    "image": "registry.k8s.io/build-image/debian-base:bookworm-v1.0.6",
                    "command": ["/bin/sh"],
                    "args": ["-c", script],
                    "volumeMounts": [{ "name": "vol", "mountPath": "/scrub" }],
                }],
            },
        })
    }

    /// The namespace of the pods.
    pub fn namespace(&self) -> &str {
        let namespace = self.template.pointer("/metadata/namespace").and_then(Value::as_str);
        namespace.filter(|namespace| !namespace.is_empty()).unwrap_or("default")
    }
}

impl Recyclers {
    /// The recycler of a source.
    pub fn of(&self, source: &FileSource) -> &Recycler {
        match source {
            FileSource::HostPath(_) => &self.host_path,
            FileSource::Nfs(_) => &self.nfs,
        }
    }
}
