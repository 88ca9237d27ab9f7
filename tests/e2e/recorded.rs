//! The recorded clusters of `tests/cases/explain` on a real API server: made there object by object, read by the real reader
//! with a user's rights, and explained. The answers are those of the cases: verdict, reason and chain; also at rest, after
//! the loops of kube-controller-manager have done with them what they do. What differs is in [`EVERYWHERE`] and [`RULED`],
//! with the reason why, and nothing is in there that does not differ.
//!
//! The server's are the names of UIDs, the revisions, and the time: all times of a case are moved to its clock, but for those
//! of creation, which it sets itself.

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use apiserver::connect::ApiServer;
use k8s_openapi::api::{
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim},
    storage::v1::VolumeAttachment,
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use mooring::explain::{
    explain,
    read::{Question, Reader},
    report::Explanation,
    subject,
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use test_support::{cases, cluster::VolumeShape, control_plane::User};

use crate::{
    form::Case,
    made::{Made, NAMESPACE, with_plugins},
    question,
    stage::{Stage, Story, story},
};

/// The driver of the cases.
const CASES_DRIVER: &str = "disk.example.com";

/// A cluster in which nothing has moved for so long is at rest.
const REST: Duration = Duration::from_secs(2);

/// What is different: the case, the question (or all), what is said, and why.
type Different = (&'static str, &'static str, &'static str, &'static str);

const MADE_NOW: &str = "the server says when an object was made: now";
const DELETED_NOW: &str = "the server says when an object was deleted: now";
const WRITTEN_NOW: &str = "the server says when a lease was written: now";
const NOT_TAKEN: &str = "the server takes no such object";

/// On any API server.
const EVERYWHERE: &[Different] = &[
    ("held-elsewhere", "pod/slow -n shop", "Waiting WaitingForAttacher", MADE_NOW),
    ("pods-without-fault-of-their-volumes", "pod/stays -n shop", "Waiting Terminating", DELETED_NOW),
    ("attacher-gone", "pod/web-0 -n shop", "Waiting WaitingForAttacher", WRITTEN_NOW),
    ("attacher-silent", "pod/old -n shop", "Waiting WaitingForAttacher", MADE_NOW),
    ("attacher-silent", "pv/pv-3", "Waiting DetachWaitingForAttacher", DELETED_NOW),
    ("attacher-silent", "pvc/made -n shop", "Waiting WaitingForProvisioner", MADE_NOW),
    ("attachments", "node/a", "Waiting DetachWaitingForUnmount", DELETED_NOW),
    ("attachments", "pod/failing -n shop", "Waiting AttachError", MADE_NOW),
    ("attachments", "pv/pv-stuck", "Waiting DetachError", DELETED_NOW),
    ("attachments-odd", "pod/odd -n shop", "NotFound", NOT_TAKEN),
    (
        "attached-twice",
        "pvc/hand -n shop",
        "Healthy Bound",
        "no pod uses the claim, so that no attachment is read; for the volume and by the doctor they are",
    ),
    ("attributes-classes", "vac/bare", "Healthy Protected", "the server's admission puts the finalizer on"),
    ("attributes-classes", "vac/left", "Waiting Terminating", DELETED_NOW),
    ("claim-provisioner", "pvc/gone -n shop", "Waiting WaitingForProvisioner", WRITTEN_NOW),
    ("claim-provisioner", "pvc/never -n shop", "Waiting WaitingForProvisioner", MADE_NOW),
    ("claim-provisioner", "sc/gone", "Healthy ProvisionerSeen", WRITTEN_NOW),
    ("claim-provisioner", "sc/never", "Healthy ProvisionerUnknown", MADE_NOW),
    (
        "claim-without-size",
        "pvc/data -n shop",
        "Blocked LostVolumeMissing",
        "the server takes no such volume",
    ),
    ("claims-that-grow", "pvc/begun -n shop", "Waiting Resizing", WRITTEN_NOW),
    ("claims-in-progress", "pvc/overdue -n shop", "Waiting WaitingForProvisioner", MADE_NOW),
    ("claims-in-progress", "pvc/malformed -n shop", "NotFound", NOT_TAKEN),
    ("claims-in-progress", "pvc/mode -n shop", "Blocked ClassNotFound", "the server takes no such class"),
    (
        "claims-in-progress",
        "pvc/sizeless -n shop",
        "Blocked NamedVolumeMissing",
        "the server takes no such volume",
    ),
    (
        "claims-in-progress",
        "pvc/unset -n shop",
        "Waiting WaitingForProvisioner",
        "the server's admission gives a new claim the default class",
    ),
    ("claims-that-grow", "pvc/failing -n shop", "Waiting Resizing", MADE_NOW),
    ("claims-that-grow", "pvc/long -n shop", "Waiting Resizing", MADE_NOW),
    ("claims-that-grow", "pvc/named -n shop", "Waiting Resizing", MADE_NOW),
    ("claims-that-grow", "pvc/silent -n shop", "Waiting Resizing", MADE_NOW),
    ("claims-that-grow", "pvc/uninstalled -n shop", "Waiting Resizing", MADE_NOW),
    ("claims-that-grow", "pvc/unnamed -n shop", "Waiting Resizing", MADE_NOW),
    ("force-switched-off", "*", "", "no Deployment of mooring is made here"),
    ("node-not-ready", "pod/next -n shop", "Waiting HeldByNode", DELETED_NOW),
    ("nodes-unread", "*", "", "all may be read here; the rights of a tenant are another story's"),
    ("one-namespace", "*", "", "all may be read here; the rights of a tenant are another story's"),
    ("one-namespace-class", "*", "", "all may be read here; the rights of a tenant are another story's"),
    (
        "pods-held-back",
        "node/b",
        "Blocked ForeignAttachment",
        "who asks about a node does not read the lists of all others; the doctor does",
    ),
    ("pods-held-back", "pvc/long -n shop", "Waiting WaitingForProvisioner", MADE_NOW),
    ("pods-held-back", "va/stuck", "Waiting DetachWaitingForAttacher", DELETED_NOW),
    ("pods-of-other-kinds", "pod/queues -n shop", "Waiting DetachWaitingForUnmount", MADE_NOW),
    ("pods-with-claims-of-their-own", "pod/again -n shop", "Waiting ClaimNotOwnedByPod", MADE_NOW),
    ("pods-with-claims-of-their-own", "pod/ended -n shop", "Waiting ClaimMissing", MADE_NOW),
    (
        "pods-with-claims-of-their-own",
        "pod/own -n shop",
        "Waiting ClaimNotOwnedByPod",
        "the claim is made first, and cannot name the UID of the pod",
    ),
    ("pods-with-claims-of-their-own", "pod/refused -n shop", "Waiting ClaimMissing", MADE_NOW),
    ("pods-with-claims-of-their-own", "pod/waits -n shop", "Waiting ClaimMissing", MADE_NOW),
    ("said-by-events", "pod/mounts-long -n shop", "Waiting MountError", MADE_NOW),
    ("said-by-events", "pvc/quota-long -n shop", "Waiting ProvisionerError", MADE_NOW),
    ("users-unread", "*", "", "all may be read here; the rights of a tenant are another story's"),
];

/// At rest, where kube-controller-manager's loops rule.
const RULED: &[Different] = &[
    ("attachments", "pod/next -n shop", "Waiting WaitingForAttacher", "the attachment has been made"),
    ("attachments", "pod/publishing -n shop", "Waiting PodNotStarted", "the node's status has been written"),
    ("claim-chosen", "pvc/data -n shop", "Healthy Bound", "the claim has been bound"),
    (
        "claims-in-progress",
        "pvc/changed -n shop",
        "Waiting WaitingForProvisioner",
        "the claim has been handed to the provisioner that its class names by now",
    ),
    ("node-gone", "node/lost", "Blocked ExclusiveAttachedTwice", "the disk has been attached a second time"),
    (
        "node-gone",
        "pod/web-0 -n shop",
        "Blocked ExclusiveAttachedTwice",
        "the disk has been attached a second time",
    ),
    ("nodes-full-or-declared-off", "node/off", "Waiting NotReady", "the volume has been detached by force"),
    (
        "nodes-full-or-declared-off",
        "pod/moved -n shop",
        "Waiting WaitingForAttacher",
        "the attachment has been made",
    ),
    ("pods-held-back", "pod/inline -n shop", "Waiting WaitingForAttacher", "the attachment has been made"),
    (
        "pods-held-back",
        "pod/inline-up -n shop",
        "Waiting PodNotStarted",
        "the node's status has been written",
    ),
    (
        "pods-of-other-kinds",
        "pod/binds -n shop",
        "Waiting WaitingForAttacher",
        "the claim has been bound, and the attachment made",
    ),
    ("pods-that-cannot", "pod/stolen -n shop", "Blocked LostMisbound", "the claim has been declared Lost"),
    ("volumes-in-progress", "pv/pv-new", "Healthy Available", "the volume's phase has been written"),
    ("volumes-in-progress", "pv/pv-next", "Healthy Bound", "the volume has been bound"),
    ("volumes-in-progress", "pv/pv-releasing", "Healthy Retained", "the volume has been released"),
    ("volumes-in-progress", "pv/pv-unbound", "Healthy Available", "the volume has been freed"),
    (
        "volumes-of-unread-claims",
        "pv/pv-next",
        "Blocked Reserved",
        "the volume is no longer that claim's, by its UID",
    ),
    (
        "volumes-taken-back",
        "pv/pv-data",
        "Blocked Reserved",
        "the volume is no longer that claim's, by its UID",
    ),
    (
        "volumes-taken-back",
        "pv/pv-logs",
        "Blocked Reserved",
        "the volume is no longer that claim's, by its UID",
    ),
];

/// Of the questions about a whole cluster, a node or a change: the case, and why another answer is given.
const ASKED: &[(&str, &str)] = &[
    ("claims of a class wait for a provisioner of which nothing is seen", MADE_NOW),
    ("a provisioner whose lease has run out", MADE_NOW),
    ("s1 an exclusive volume on two nodes comes before all pods that wait for something else", MADE_NOW),
    ("an attachment of a node that is gone and that the attacher, gone too, does not let go", DELETED_NOW),
    ("a claim is deleted, used by nothing, and its finalizer stays", DELETED_NOW),
    ("s14 two controllers at work", "the server says who writes what"),
    ("in the minutes after, it might be", "the server says who writes what"),
    ("of one namespace, what is counted is of it", MADE_NOW),
    ("a volume is deleted, and the provisioner that would take its finalizer off is gone", DELETED_NOW),
    (
        "expansions that nothing takes, since when as far as it is known, beside some that go on by themselves",
        MADE_NOW,
    ),
    (
        "a class of attributes that is being deleted, that nothing names, and that nothing takes away",
        DELETED_NOW,
    ),
    ("attachments that no controller takes away", MADE_NOW),
    ("s1 one that has run since before the claim was made anew", MADE_NOW),
    (
        "an attacher is gone, and a tenant has a lease of its name that was renewed in a year to come",
        WRITTEN_NOW,
    ),
    ("never attached, node and driver gone, its volume unbound", DELETED_NOW),
];

pub fn stories() -> Vec<Story> {
    vec![
        story("recorded_clusters_are_explained_alike_on_a_real_server", as_recorded)
            .only_real("kube-apiserver shows whether clusters can be as they are recorded."),
        story("recorded_clusters_are_explained_alike_where_the_stock_loops_rule", ruled)
            .only_real_if_all("The stock controllers are at work there."),
        story("recorded_causes_are_found_alike_on_a_real_server", asked)
            .only_real("kube-apiserver shows whether clusters can be as they are recorded."),
    ]
}

async fn as_recorded(stage: Stage) {
    play(&stage, false, &[]).await;
}

async fn ruled(stage: Stage) {
    play(&stage, true, RULED).await;
}

/// The questions of `doctor`, `node`, `whatif` and `repair`: reasons, verdicts and the names of objects, as JSON has them.
async fn asked(stage: Stage) {
    let client = stage.real().plane.client(User::Admin);
    let (mut report, mut used) = (String::new(), BTreeSet::new());
    for suite in ["doctor", "drain", "whatif", "repair"] {
        for path in cases::files(&format!("explain/{suite}")) {
            for case in cases::read::<Vec<question::Case>>(&path) {
                let mut objects = case.given.everything();
                let is_of_fence = |object: &Value| {
                    let kind = object["kind"].as_str().unwrap_or_default();
                    kind.starts_with("ValidatingAdmission") || kind == "Deployment"
                };
                // The rights of a tenant, and the fence, are other stories'.
                if !case.given.is_read() || objects.iter().any(is_of_fence) {
                    continue;
                }
                // Nothing would take away what is in a further namespace.
                let namespaces = [None, Some("shop"), Some("kube-system")];
                objects.retain(|object| namespaces.contains(&object["metadata"]["namespace"].as_str()));
                with_plugins(&mut objects, "d");
                stage.cluster.clear().await;
                let made = Made::of(&client, objects, case.given.now(), "d").await;
                let reader = Reader::new(&ApiServer::in_process(client.clone()), None).unwrap();
                let here = case.question(NAMESPACE);
                let snapshot = reader.read(&here).await.unwrap();
                let found = outline(&case.answer(&here, &snapshot).json);
                let expected = outline(&case.answer(&case.question("shop"), &case.given.snapshot()).json);
                made.take_away(&client).await;
                let entry = ASKED.iter().find(|(name, _)| *name == case.name);
                used.extend(entry.map(|(name, _)| *name));
                if (found == expected) == entry.is_some() {
                    let name = &case.name;
                    let _ = write!(
                        report,
                        "\n{suite}: {name}\n  expected {expected:?}\n  said     {found:?}\n  not made {:?}",
                        made.refused
                    );
                }
            }
        }
    }
    let idle: Vec<_> = ASKED.iter().filter(|(name, _)| !used.contains(name)).collect();
    assert!(report.is_empty() && idle.is_empty(), "never asked: {idle:?}{report}");
}

/// Of an answer: reasons, verdicts and names. What is as bad is in the order of names, and of ages, which are others here.
fn outline(answer: &Value) -> Vec<String> {
    let mut words = Vec::new();
    let mut left = vec![answer];
    while let Some(next) = left.pop() {
        for (key, value) in next.as_object().into_iter().flatten() {
            let word = value.as_str().filter(|_| ["reason", "verdict", "name"].contains(&key.as_str()));
            words.extend(word.map(str::to_owned));
            left.push(value);
        }
        left.extend(next.as_array().into_iter().flatten());
    }
    words.sort();
    words
}

/// Plays all cases, one after the other on an empty cluster, and holds what is said against them.
async fn play(stage: &Stage, is_ruled: bool, known_here: &[Different]) {
    let known = [EVERYWHERE, known_here].concat();
    let client = stage.real().plane.client(User::Admin);
    let mut report = String::new();
    let (mut used, mut refusals) = (Vec::new(), String::new());
    for path in cases::files("explain") {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let case: Case = cases::read(&path);
        stage.cluster.clear().await;
        let made = Made::of(&client, case.everything(), case.now, CASES_DRIVER).await;
        let _loops = if is_ruled { Some(rule(stage, &client).await) } else { None };
        let reader = Reader::new(&ApiServer::in_process(client.clone()), None).unwrap();
        for (question, reason) in case.ask.iter().zip(&case.reasons) {
            let subject = |namespace: &str| {
                let mut words = question.split(' ');
                subject::parse(&[words.next().unwrap()], namespace).unwrap()
            };
            let expected = explain(&case.snapshot(), &subject("shop"));
            assert_eq!(expected.reason, *reason, "{name}: {question}");
            let here = subject(NAMESPACE);
            let snapshot = reader.read(&Question::Object(here.clone())).await.unwrap();
            let found = told(&explain(&snapshot, &here), is_ruled);
            let expected = told(&expected, is_ruled);
            let entry =
                known.iter().find(|(case, asked, ..)| *case == name && (*asked == question || *asked == "*"));
            used.extend(entry);
            match entry {
                None if found == expected => {}
                Some((.., said, _)) if found != expected && (said.is_empty() || found.starts_with(said)) => {}
                _ => {
                    let _ = write!(report, "\n{name}: {question}\n  expected {expected}\n  said     {found}");
                }
            }
        }
        made.take_away(&client).await;
        for refused in &made.refused {
            let _ = write!(refusals, "\n{name}: {refused}");
        }
    }
    let idle: Vec<_> = known.iter().filter(|entry| !used.contains(entry)).collect();
    assert!(report.is_empty() && idle.is_empty(), "never asked: {idle:?}{report}\nNot made: {refusals}");
}

/// Verdict and reason, and the chain; of a cluster that others have changed since, not the chain.
fn told(answer: &Explanation, is_ruled: bool) -> String {
    let mut text = format!("{:?} {}", answer.verdict, answer.reason);
    if is_ruled {
        return text;
    }
    for step in &answer.steps {
        let name = step.object["name"].as_str().unwrap_or_default();
        let _ = write!(text, "; {} {name} {}", step.object["kind"].as_str().unwrap_or_default(), step.reason);
    }
    text
}

/// Lets the stock loops in, and waits until they are at rest.
async fn rule(stage: &Stage, client: &Client) -> Box<dyn std::any::Any + Send> {
    let loops = ["persistentvolume-attach-detach-controller", "persistentvolume-binder-controller"];
    let quick = ["--kube-api-qps=-1", "--kube-api-burst=-1", "--pvclaimbinder-sync-period=500ms"];
    let stock = stage.real().plane.controller_manager(&loops, &quick);
    // They are at work when they have bound a pair of ours.
    let shape = VolumeShape { class: "canary", ..VolumeShape::default() };
    stage.cluster.shaped_pair("canary", "canary", &shape).await;
    let mut before = revisions(client).await;
    loop {
        tokio::time::sleep(REST).await;
        let now = revisions(client).await;
        if now == before {
            return Box::new(stock);
        }
        before = now;
    }
}

/// What the loops may write, at which revision.
async fn revisions(client: &Client) -> Vec<String> {
    async fn of<K>(client: &Client) -> Vec<String>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
    {
        let all = Api::<K>::all(client.clone()).list(&ListParams::default()).await.unwrap();
        let one =
            |object: &K| format!("{} {}", object.name_any(), object.resource_version().unwrap_or_default());
        all.items.iter().map(one).collect()
    }
    [
        of::<PersistentVolume>(client).await,
        of::<PersistentVolumeClaim>(client).await,
        of::<VolumeAttachment>(client).await,
        of::<Node>(client).await,
    ]
    .concat()
}
