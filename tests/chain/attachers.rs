//! The stand-in for external-attacher beside the real one: what each writes to attachments and volumes, and what it asks of
//! the driver, in the same scenes on the same API server.

use std::fmt::Write as _;

use k8s_openapi::{
    api::{
        core::v1::PersistentVolume,
        storage::v1::{CSINode, VolumeAttachment},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::api::{DeleteParams, Patch, PatchParams};
use libtest_mimic::Failed;
use serde_json::json;
use test_support::{
    actors::{Attacher, AttacherBehaviour, Step, Storage},
    cluster::{Cluster, DRIVER, VolumeShape, create, patch, until, within_deadline},
    control_plane::User,
    process::Process,
};

use crate::stage::{Theatre, theatre};

/// One that attaches, and the driver that it asks.
enum Attaching {
    Real { driver: Process, _attacher: Process },
    StandIn { storage: Storage, _attacher: Attacher },
}

impl Attaching {
    fn real(theatre: &Theatre) -> Self {
        let (driver, address) = theatre.driver(DRIVER);
        let attacher = theatre.program("csi-attacher", User::Attacher, &[&address, "--v=4"]);
        Self::Real { driver, _attacher: attacher }
    }

    fn stand_in(theatre: &Theatre) -> Self {
        let storage = Storage::default();
        let behaviour = AttacherBehaviour { storage: storage.clone(), ..AttacherBehaviour::default() };
        let attacher = Attacher::start(theatre.real.plane.client(User::Attacher), DRIVER, behaviour);
        Self::StandIn { storage, _attacher: attacher }
    }

    /// Waits until the driver has been asked to take a handle off.
    async fn detached(&self, handle: &str) {
        let asked = async {
            match self {
                Self::Real { driver, .. } => {
                    let id = format!("\"volume_id\":\"{handle}\"");
                    let is_it = |line: &str| line.contains("ControllerUnpublishVolume") && line.contains(&id);
                    driver.log().find(|line| is_it(line).then_some(())).await.is_some()
                }
                // What it asks for comes before what it writes, which has been seen.
                Self::StandIn { storage, .. } => {
                    let disk = format!("kubernetes.io/csi/{DRIVER}^{handle}");
                    storage.facts().iter().any(|fact| fact.step == Step::Unpublished && fact.disk == disk)
                }
            }
        };
        let what = format!("the driver is asked to detach {handle}");
        assert!(within_deadline(&what, asked).await.unwrap(), "{what}");
    }
}

/// What is seen of an attachment, without what differs in each run.
fn seen(attachment: Option<&VolumeAttachment>) -> String {
    let Some(VolumeAttachment { metadata, status, .. }) = attachment else { return "gone".to_owned() };
    let error = |of: Option<&k8s_openapi::api::storage::v1::VolumeError>| {
        of.map_or("-".to_owned(), |error| error.message.clone().unwrap_or_default())
    };
    let status = status.as_ref();
    format!(
        "attached={} attachError={} detachError={} finalizers={:?} annotations={:?}",
        status.is_some_and(|status| status.attached),
        error(status.and_then(|status| status.attach_error.as_ref())),
        error(status.and_then(|status| status.detach_error.as_ref())),
        metadata.finalizers.clone().unwrap_or_default(),
        metadata.annotations.iter().flatten().map(|(key, _)| key).collect::<Vec<_>>(),
    )
}

/// When an attachment's last error was written.
fn told(attachment: &VolumeAttachment) -> Option<&Time> {
    let status = attachment.status.as_ref()?;
    status.attach_error.as_ref().or(status.detach_error.as_ref())?.time.as_ref()
}

/// Plays all scenes, and writes down what there was to see.
struct Scenes<'a> {
    cluster: Cluster,
    attaching: &'a Attaching,
    seen: String,
}

impl Scenes<'_> {
    async fn note(&mut self, scene: &str, name: &str, is_so: impl Fn(Option<&VolumeAttachment>) -> bool) {
        let found = until(self.cluster.all::<VolumeAttachment>(), name, scene, is_so).await;
        let _ = writeln!(self.seen, "{scene}: {}", seen(found.as_ref()));
    }

    async fn note_volume(&mut self, scene: &str, name: &str) {
        let found = self.cluster.all::<PersistentVolume>().get_opt(name).await.unwrap();
        let finalizers = found.map(|volume| volume.metadata.finalizers.unwrap_or_default());
        let of_attacher =
            finalizers.map(|all| all.iter().any(|finalizer| finalizer.starts_with("external-attacher/")));
        let _ = writeln!(self.seen, "{scene}: the attacher's finalizer on {name}: {of_attacher:?}");
    }

    async fn volume(&self, name: &str, handle: &str) {
        let shape = VolumeShape::default();
        let object = json!({
            "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": shape.capacity }, "accessModes": shape.access_modes,
                "persistentVolumeReclaimPolicy": "Retain",
                "csi": { "driver": DRIVER, "volumeHandle": handle },
            },
        });
        let volumes = self.cluster.all::<PersistentVolume>();
        create(&volumes, object).await;
        // Admission has the volume protected, by a controller that does not run here.
        patch(&volumes, name, json!({ "metadata": { "finalizers": null } })).await;
    }

    async fn attachment(&self, name: &str, volume: &str) {
        let object = json!({
            "metadata": { "name": name },
            "spec": { "attacher": DRIVER, "nodeName": "n1", "source": { "persistentVolumeName": volume } },
        });
        create(&self.cluster.all::<VolumeAttachment>(), object).await;
    }

    async fn delete(&self, name: &str) {
        self.cluster.all::<VolumeAttachment>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Deletes a volume, also against finalizers.
    async fn remove_volume(&self, name: &str) {
        let volumes = self.cluster.all::<PersistentVolume>();
        volumes.delete(name, &DeleteParams::default()).await.unwrap();
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        // It is gone, if none held it.
        let _ = volumes.patch(name, &PatchParams::default(), &free).await;
        until(volumes, name, "the volume is gone", |volume| volume.is_none()).await;
    }

    async fn attached(&mut self, scene: &str, name: &str) {
        let is_attached = |attachment: Option<&VolumeAttachment>| {
            let status = attachment.and_then(|attachment| attachment.status.as_ref());
            status.is_some_and(|status| status.attached)
        };
        self.note(scene, name, is_attached).await;
    }

    /// Waits for an error, and until it is told again.
    async fn fails(&mut self, scene: &str, name: &str) {
        self.note(scene, name, |attachment| attachment.is_some_and(|it| told(it).is_some())).await;
        let now = self.cluster.all::<VolumeAttachment>().get(name).await.unwrap();
        let first = told(&now).cloned();
        let is_later = |attachment: Option<&VolumeAttachment>| {
            attachment.and_then(told).is_some_and(|time| Some(time) != first.as_ref())
        };
        self.note(&format!("{scene}, again"), name, is_later).await;
    }

    async fn play(&mut self) {
        self.volume("v1", "1").await;
        self.attachment("one", "v1").await;
        self.attached("attached", "one").await;
        self.note_volume("attached", "v1").await;
        self.delete("one").await;
        self.note("detached", "one", |attachment| attachment.is_none()).await;
        self.attaching.detached("1").await;
        let volumes = self.cluster.all::<PersistentVolume>();
        volumes.delete("v1", &DeleteParams::default()).await.unwrap();
        until(volumes, "v1", "a volume without attachments is let go", |volume| volume.is_none()).await;

        self.attachment("two", "v9").await;
        self.fails("without its volume", "two").await;
        self.delete("two").await;
        self.note("ended without its volume", "two", |attachment| attachment.is_none()).await;

        self.volume("v2", "2").await;
        let volumes = self.cluster.all::<PersistentVolume>();
        let hold = json!({ "metadata": { "finalizers": ["example.com/hold"] } });
        patch(&volumes, "v2", hold).await;
        volumes.delete("v2", &DeleteParams::default()).await.unwrap();
        self.attachment("three", "v2").await;
        self.fails("while its volume is being deleted", "three").await;
        self.note_volume("while its volume is being deleted", "v2").await;
        self.delete("three").await;
        self.note("ended while its volume is being deleted", "three", |attachment| attachment.is_none())
            .await;
        self.remove_volume("v2").await;

        self.volume("v3", "3").await;
        self.attachment("four", "v3").await;
        self.attached("attached before its volume is made anew", "four").await;
        self.remove_volume("v3").await;
        self.delete("four").await;
        self.fails("detached without its volume", "four").await;
        self.volume("v3", "2").await;
        self.note("detached when there is one of that name", "four", |attachment| attachment.is_none()).await;
        self.attaching.detached("2").await;
        self.remove_volume("v3").await;
    }
}

/// Both see and do the same.
pub fn compare() -> Result<(), Failed> {
    let theatre = theatre().as_ref()?;
    theatre.runtime.block_on(async {
        let mut all = Vec::new();
        for start in [Attaching::real, Attaching::stand_in] {
            let cluster = Cluster::new(theatre.real.plane.client(User::Admin));
            cluster.clear().await;
            cluster.driver().await;
            cluster.node("n1").await;
            let drivers = json!([{ "name": DRIVER, "nodeID": DRIVER, "topologyKeys": [] }]);
            let node = json!({ "metadata": { "name": "n1" }, "spec": { "drivers": drivers } });
            let nodes = cluster.all::<CSINode>();
            let _ = nodes.delete("n1", &DeleteParams::default()).await;
            create(&nodes, node).await;
            let attaching = start(theatre);
            let mut scenes = Scenes { cluster, attaching: &attaching, seen: String::new() };
            scenes.play().await;
            all.push(scenes.seen);
        }
        let [real, stand_in] = &all[..] else { unreachable!("two were started") };
        if real == stand_in { Ok(()) } else { Err(format!("real:\n{real}\nstand-in:\n{stand_in}").into()) }
    })
}
