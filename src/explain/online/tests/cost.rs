//! What an answer costs on a large cluster: printed, not judged.

use std::sync::Arc;

use tokio::time::Instant;

use super::world::{World, attachment, claim, common, node, pod, volume};
use crate::{
    attach_detach::desired::volume_name::VolumeId,
    explain::{online::desk::answer, subject::Subject},
    kube_api::ids::{ClaimKey, DriverName, PodKey},
    state::Objects,
    telemetry::{
        history::{BYTES, History},
        transition::{Named, Transition},
    },
};

const NODES: usize = 5_000;
const PODS: usize = 150_000;
const CLAIMS: usize = 60_000;

fn large() -> World {
    let objects = Arc::new(Objects::default());
    common(&objects);
    let driver = DriverName::from("d");
    let on =
        |index: usize| (index..CLAIMS).step_by(NODES).map(|it| VolumeId::csi(&driver, &format!("vol-{it}")));
    objects.reset((0..NODES).map(|it| node(&format!("n{it}"), &on(it).collect::<Vec<_>>())).collect());
    let pods = (0..PODS).map(|it| {
        pod(&format!("pod-{it}"), &format!("n{}", it % NODES), &format!("data-{it}"), 1, "Running")
    });
    objects.reset(pods.chain([pod("late", "n7", "data-1", 1, "Pending")]).collect());
    let claims = (0..CLAIMS).map(|it| claim(&format!("data-{it}"), &format!("pv-{it}")));
    objects.reset(claims.chain([claim("open", "")]).collect());
    let volumes =
        (0..CLAIMS).map(|it| volume(&format!("pv-{it}"), &format!("vol-{it}"), &format!("data-{it}")));
    objects.reset(volumes.collect());
    let attachments = (0..CLAIMS)
        .map(|it| attachment(&format!("pv-{it}"), &format!("vol-{it}"), &format!("n{}", it % NODES)));
    objects.reset(attachments.collect());
    World { objects }
}

/// Run it with `--release --ignored --nocapture` for times that mean something.
#[test]
#[ignore = "it takes a while to make the tables, and judges nothing"]
#[expect(clippy::print_stderr, reason = "it is read by the one who runs it")]
fn an_answer_on_a_large_cluster() {
    let knowledge = large().knowledge();
    let key = |name: &str| ClaimKey::new("shop", name);
    let subjects = [
        ("a claim that is bound", Subject::Claim(key("data-2"))),
        ("a claim that looks for a volume", Subject::Claim(key("open"))),
        ("a pod that runs", Subject::Pod(PodKey::new("shop", "pod-3"))),
        ("a pod whose volume is held", Subject::Pod(PodKey::new("shop", "late"))),
        ("a volume", Subject::Volume("pv-4".into())),
        ("a node", Subject::Node("n5".into())),
        ("a class", Subject::Class("fast".into())),
    ];
    for (what, subject) in subjects {
        let begun = Instant::now();
        let told = answer(&subject, &knowledge);
        let took = begun.elapsed();
        let begun = Instant::now();
        let holds = told.signs.hold(&knowledge);
        eprintln!(
            "{what}: {took:?}, {}; looked at again: {:?} ({holds})",
            told.explanation.reason,
            begun.elapsed()
        );
    }
    let history = History::default();
    let note = |number: usize, change: u32| {
        let transition = Transition {
            object: Named::in_namespace("PersistentVolumeClaim", "shop", &format!("data-{number}")),
            reason: "Bound",
            from: "Pending",
            to: "Bound",
            attempt: change,
            revision: None,
            took: None,
            volume: None,
            node: None,
            claim: None,
        };
        history.note(&transition, super::world::now());
    };
    for number in 0..CLAIMS {
        (1..=3).for_each(|change| note(number, change));
    }
    eprintln!("history: {} of {BYTES} bytes", history.bytes());
}
