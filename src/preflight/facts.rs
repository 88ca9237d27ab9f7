//! What preflight reads: one answer of the API server for each [`PreflightTopic`].
//!
//! In: a client with the user's rights. Out: [`PreflightFacts`]. What could not be read is a fact, too: its words.

use std::collections::BTreeMap;

use http::Method;
use k8s_openapi::{api::rbac::v1::PolicyRule, jiff::Timestamp};
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};

use super::dry_runs::{self, DAEMON_USER};
use crate::{
    attach_detach::state::desired::volume_source::Sharing,
    fence::{
        ask::{NoAnswer, ask, each, read, text},
        policies::Fence,
    },
};

/// KCM's pods, where they are to be seen.
pub const MANAGERS: &str =
    "/api/v1/namespaces/kube-system/pods?labelSelector=component%3Dkube-controller-manager";
/// KCM's lease.
pub const MANAGER_LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager";
/// The ServiceAccounts of KCM's loops, and others.
pub const ACCOUNTS: &str = "/api/v1/namespaces/kube-system/serviceaccounts";
/// The Deployment of the daemon.
pub const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/mooring-system/deployments/mooring";
/// The rights of the daemon, as they are installed.
const RIGHTS: &str = include_str!("../../deploy/rbac.yaml");
/// What `--fence` needs in addition.
const RIGHTS_OF_FENCE: &str = include_str!("../../deploy/optional/fence/rbac.yaml");
/// What controllers need in addition.
const RIGHTS_OF_CONTROLLERS: [(&str, &str); 2] = [
    ("ephemeral-volume-controller", include_str!("../../deploy/optional/ephemeral-volume/rbac.yaml")),
    (
        "volumeattributesclass-protection-controller",
        include_str!("../../deploy/optional/vac-protection/rbac.yaml"),
    ),
];

/// What is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreflightTopic {
    /// The version of the API server.
    Version,
    /// The kinds of the group of admission policies.
    Policies,
    /// ServiceAccounts in kube-system.
    Accounts,
    /// KCM's pods.
    Managers,
    /// KCM's lease.
    Lease,
    /// A dry run of a patch of that lease: null, if it was accepted, else why it must not be written.
    LeaseRight,
    /// A dry run of the fence: null, if all of it was accepted, else the server's words.
    Fence,
    /// Dry runs of the objects of `deploy`: what was refused, and what was not checked.
    Manifests,
    /// A dry run of a patch of a node as the daemon, likewise.
    NodeStatus,
    /// The daemon's Deployment.
    Deployment,
    /// Rights that the daemon does not have.
    MissingRights,
    /// Pods of recyclers, and those with a volume of their own of a source that mooring does not attach.
    Pods,
    /// CSIDrivers.
    Drivers,
    /// PersistentVolumes.
    Volumes,
    /// VolumeAttachments.
    Attachments,
}

/// What is read with one GET.
const SINGLE_READS: [(PreflightTopic, &str); 7] = [
    (PreflightTopic::Version, "/version"),
    (PreflightTopic::Policies, "/apis/admissionregistration.k8s.io/v1"),
    (PreflightTopic::Accounts, ACCOUNTS),
    (PreflightTopic::Managers, MANAGERS),
    (PreflightTopic::Lease, MANAGER_LEASE),
    (PreflightTopic::Deployment, DEPLOYMENT),
    (PreflightTopic::Drivers, "/apis/storage.k8s.io/v1/csidrivers"),
];

/// What is read page by page, and which of it is kept.
type PagedRead = (PreflightTopic, &'static str, fn(&Value) -> bool);
const PAGED_READS: [PagedRead; 3] = [
    (PreflightTopic::Volumes, "/api/v1/persistentvolumes", |_| true),
    (PreflightTopic::Attachments, "/apis/storage.k8s.io/v1/volumeattachments", |_| true),
    (PreflightTopic::Pods, "/api/v1/pods", |pod| is_recycler(pod) || foreign_source(pod).is_some()),
];

/// The answers: null is "there is none".
#[derive(Clone, Debug)]
pub struct PreflightFacts {
    /// When they were read.
    pub now: Timestamp,
    /// The answer to each topic, or why there is none.
    pub seen: BTreeMap<PreflightTopic, Result<Value, String>>,
}

impl PreflightFacts {
    /// Reads them.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn read(client: &Client, fences: &[&Fence]) -> Result<Self, NoAnswer> {
        // The first shows whether there is a server at all.
        read(client, "/version").await?;
        let mut seen = BTreeMap::new();
        let told = |answer: Result<Value, NoAnswer>| answer.map_err(|error| error.to_string());
        for (topic, path) in SINGLE_READS {
            seen.insert(topic, told(read(client, path).await.map(Option::unwrap_or_default)));
        }
        for (topic, path, is_kept) in PAGED_READS {
            seen.insert(topic, told(kept(client, path, is_kept).await));
        }
        let lease = seen.get(&PreflightTopic::Lease).and_then(|lease| lease.clone().ok()).unwrap_or_default();
        seen.extend([
            (PreflightTopic::LeaseRight, told(unwritable(client, &lease).await.map(|why| json!(why)))),
            (PreflightTopic::Fence, told(dry_runs::fence(client, fences).await)),
            (PreflightTopic::Manifests, Ok(dry_runs::manifests(client).await)),
            (PreflightTopic::NodeStatus, told(dry_runs::node_status(client).await)),
            (PreflightTopic::MissingRights, told(missing_rights(client, fences).await)),
        ]);
        Ok(Self { now: Timestamp::now(), seen })
    }

    /// The answer to a topic.
    ///
    /// # Errors
    /// Why there is none.
    pub fn of(&self, topic: PreflightTopic) -> Result<&Value, &str> {
        match self.seen.get(&topic) {
            Some(Ok(value)) => Ok(value),
            Some(Err(why)) => Err(why),
            None => Err("it was not read"),
        }
    }

    /// The items of a list.
    ///
    /// # Errors
    /// Why there is none.
    pub fn items(&self, topic: PreflightTopic) -> Result<impl Iterator<Item = &Value>, &str> {
        Ok(items(self.of(topic)?))
    }
}

/// The items of a list.
pub fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.get("items").and_then(Value::as_array).into_iter().flatten()
}

/// A list whose objects may be many, of which some are kept.
async fn kept(client: &Client, path: &str, is_kept: fn(&Value) -> bool) -> Result<Value, NoAnswer> {
    let mut kept = Vec::new();
    each(client, path, |object| kept.extend(Some(object).filter(|object| is_kept(object)).cloned())).await?;
    Ok(json!({ "items": kept }))
}

/// Whether several nodes may have a volume, by its spec, if that says so.
pub fn sharing(spec: &Value) -> Option<Sharing> {
    let modes = spec.get("accessModes")?.as_array()?;
    Some(Sharing::of(modes.iter().filter_map(Value::as_str)))
}

/// Whether it is a pod of KCM's recycler, in whatever namespace its template names. It has the volume that it wipes.
pub fn is_recycler(pod: &Value) -> bool {
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
    let wipes = |volume: &Value| volume.get("hostPath").or(volume.get("nfs")).is_some();
    text(pod, "/metadata/name").starts_with("recycler-for-") && volumes.into_iter().flatten().any(wipes)
}

/// KCM attaches it without any API.
pub const FLEX_VOLUME: &str = "flexVolume";
/// Sources that mooring does not attach: a FlexVolume, and those whose plugins Kubernetes no longer has. All others it attaches,
/// translates to CSI as KCM does, or they need no attaching.
const FOREIGN_SOURCES: [&str; 9] = [
    FLEX_VOLUME,
    "cephfs",
    "flocker",
    "glusterfs",
    "photonPersistentDisk",
    "quobyte",
    "rbd",
    "scaleIO",
    "storageos",
];

/// Such a source of a PersistentVolume, or of a volume that a pod names without one.
pub fn foreign_source(object: &Value) -> Option<&'static str> {
    let volumes = object.pointer("/spec/volumes").and_then(Value::as_array);
    let has = |source: &str| {
        volumes.into_iter().flatten().chain(object.get("spec")).any(|volume| volume.get(source).is_some())
    };
    FOREIGN_SOURCES.into_iter().find(|source| has(source))
}

/// Programs of which KCM is a part: what exits with it is the API server, too.
const WHOLE_SERVERS: [&str; 2] = ["k3s", "kubelite"];

/// Why KCM's lease must not be taken: what exits then is more than KCM. The lease says which program writes it.
pub fn whole_server(lease: &Value) -> Option<String> {
    let entries = lease.pointer("/metadata/managedFields").and_then(Value::as_array).into_iter().flatten();
    let mut programs = entries.filter_map(|entry| entry.get("manager")?.as_str());
    let program = programs.find(|program| WHOLE_SERVERS.contains(program))?;
    Some(format!("{program} writes it, of which the API server is a part, and which would exit"))
}

/// Why KCM's lease cannot be written.
///
/// # Errors
/// See [`NoAnswer`].
pub async fn unwritable(client: &Client, lease: &Value) -> Result<Option<String>, NoAnswer> {
    if let Some(why) = whole_server(lease) {
        return Ok(Some(why));
    }
    let path = format!("{MANAGER_LEASE}?dryRun=All");
    refusal(ask(client, Method::PATCH, &path, Some(&json!({}))).await)
}

/// The server's words, whatever refuses: a policy does it with 422, a webhook with a code of its own.
fn refusal(answer: Result<Value, NoAnswer>) -> Result<Option<String>, NoAnswer> {
    match answer {
        Ok(_) => Ok(None),
        Err(NoAnswer::Refused(_, why)) => Ok(Some(why)),
        Err(error) => Err(error),
    }
}

/// What of its rights the daemon's account does not have.
async fn missing_rights(client: &Client, fences: &[&Fence]) -> Result<Value, NoAnswer> {
    let mut missing = Vec::new();
    for (right, spec) in rights(fences) {
        let review =
            json!({ "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec });
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let review = ask(client, Method::POST, path, Some(&review)).await?;
        if review.pointer("/status/allowed") != Some(&json!(true)) {
            missing.push(right);
        }
    }
    Ok(json!(missing))
}

/// Each right for people, and as a review asks for it. The Role of the lease has its name and namespace from flags, and is
/// left out.
fn rights(fences: &[&Fence]) -> Vec<(String, Value)> {
    let parse = |manifest| serde_saphyr::from_multiple::<Value>(manifest).unwrap_or_default();
    let mut documents = parse(RIGHTS);
    documents.retain(|object| object.get("kind") == Some(&json!("ClusterRole")));
    documents.extend(parse(RIGHTS_OF_FENCE));
    let is_run = |name: &str| fences.iter().any(|fence| fence.controller == name);
    let of_controllers = RIGHTS_OF_CONTROLLERS.iter().filter(|(name, _)| is_run(name));
    documents.extend(of_controllers.flat_map(|(_, manifest)| parse(manifest)));
    let mut rights = Vec::new();
    for mut role in documents {
        let namespace = role.pointer("/metadata/namespace").cloned().unwrap_or_else(|| json!(""));
        let rules = role.get_mut("rules").map(Value::take).unwrap_or_default();
        for rule in serde_json::from_value::<Vec<PolicyRule>>(rules).unwrap_or_default() {
            let groups = rule.api_groups.unwrap_or_default();
            let resources = rule.resources.unwrap_or_default();
            for verb in &rule.verbs {
                let all = groups.iter().flat_map(|group| resources.iter().map(move |of| (group, of)));
                rights.extend(all.map(|(group, resource)| {
                    let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                    let asked = json!({ "verb": verb, "group": group, "resource": plural,
                        "subresource": subresource, "namespace": namespace });
                    (
                        format!("{verb} {resource}"),
                        json!({ "user": DAEMON_USER, "resourceAttributes": asked }),
                    )
                }));
                rights.extend(rule.non_resource_urls.iter().flatten().map(|path| {
                    let asked = json!({ "verb": verb, "path": path });
                    (format!("{verb} {path}"), json!({ "user": DAEMON_USER, "nonResourceAttributes": asked }))
                }));
            }
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::fence::policies::FENCES;

    #[test]
    fn whatever_refuses_a_dry_run_its_words_are_told() {
        for code in [400, 403, 404, 422] {
            let told = refusal(Err(NoAnswer::Refused(code, "leases are ours".to_owned())));
            assert_eq!(told, Ok(Some("leases are ours".to_owned())), "{code}");
        }
        assert_eq!(refusal(Ok(json!({}))), Ok(None));
        refusal(Err(NoAnswer::Unknown("no route".to_owned()))).unwrap_err();
    }

    #[test]
    fn the_rights_of_the_daemon_are_those_of_its_manifest() {
        let rights = rights(&[&FENCES[0], &FENCES[1]]);
        let spec = |name: &str| rights.iter().find(|(right, _)| right == name).map(|(_, spec)| spec).unwrap();
        let asked = &spec("patch nodes/status")["resourceAttributes"];
        assert_eq!((&asked["resource"], &asked["subresource"]), (&json!("nodes"), &json!("status")));
        assert_eq!(spec("create volumeattachments")["resourceAttributes"]["group"], "storage.k8s.io");
        assert_eq!(spec("get /metrics/slis")["nonResourceAttributes"]["path"], "/metrics/slis");
        assert_eq!(spec("list leases")["resourceAttributes"]["namespace"], "kube-system");
        assert!(rights.iter().any(|(right, _)| right == "get validatingadmissionpolicybindings"));
        assert!(rights.len() > 25, "{rights:?}");

        // Those that the components of single controllers add.
        let all: Vec<&Fence> = FENCES.iter().collect();
        let mut added: Vec<String> = super::rights(&all).into_iter().map(|(right, _)| right).collect();
        added.retain(|right| !rights.iter().any(|(known, _)| known == right));
        let expected = [
            "create persistentvolumeclaims",
            "get pods",
            "update pods/finalizers",
            "list volumeattributesclasses",
            "watch volumeattributesclasses",
            "patch volumeattributesclasses",
        ];
        assert_eq!(added, expected);
        let components = fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/optional")).unwrap();
        let text = |folder: &Path, file| fs::read_to_string(folder.join(file)).unwrap_or_default();
        for folder in components.map(|entry| entry.unwrap().path()) {
            let adds_controllers = text(&folder, "kustomization.yaml").contains("value: --controllers=");
            let rights = text(&folder, "rbac.yaml");
            if adds_controllers && !rights.is_empty() {
                assert!(RIGHTS_OF_CONTROLLERS.iter().any(|(_, known)| *known == rights), "{folder:?}");
            }
        }
    }
}
