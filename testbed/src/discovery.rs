//! Discovery: versions, groups and resources, in the old form and in the aggregated form that kubectl
//! requests first.

use serde_json::{Value, json};

use super::kinds::{KINDS, kind::Kind};

/// The release whose behaviour the server has.
const VERSION: &str = "v1.36.3";

const VERBS: [&str; 8] = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// What can be done to objects of a kind.
fn verbs(kind: &Kind) -> Vec<&'static str> {
    VERBS.into_iter().filter(|verb| *verb != "deletecollection" || kind.deletes_collections()).collect()
}

/// A document by its path; nothing for a path that is none of discovery's.
pub fn document(path: &str, accept: &str) -> Option<Value> {
    let is_aggregated = accept.contains("as=APIGroupDiscoveryList");
    let path = path.trim_matches('/');
    match path {
        "version" => Some(json!({
            "major": "1", "minor": "36", "gitVersion": format!("{VERSION}+embedded"), "gitCommit": "",
            "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
        })),
        "api" if is_aggregated => Some(aggregated(&[""])),
        "apis" if is_aggregated => Some(aggregated(&groups())),
        "api" => Some(json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})),
        "apis" => {
            let groups: Vec<Value> = groups().into_iter().map(group).collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        "api/v1" => Some(resources("")),
        _ => {
            let name = path.strip_prefix("apis/")?;
            if let Some(name) = name.strip_suffix("/v1") {
                return groups().contains(&name).then(|| resources(name));
            }
            groups().contains(&name).then(|| group(name))
        }
    }
}

/// All groups but the core one.
pub fn groups() -> Vec<&'static str> {
    let mut groups: Vec<&'static str> =
        KINDS.iter().map(|kind| kind.group).filter(|group| !group.is_empty()).collect();
    groups.dedup();
    groups
}

fn group(name: &str) -> Value {
    let version = json!({"groupVersion": format!("{name}/v1"), "version": "v1"});
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": name, "versions": [version], "preferredVersion": version,
    })
}

fn of_group(group: &str) -> impl Iterator<Item = &'static Kind> {
    KINDS.iter().copied().filter(move |kind| kind.group == group)
}

fn resources(group: &str) -> Value {
    let mut resources = Vec::new();
    for kind in of_group(group) {
        resources.push(json!({
            "name": kind.plural, "singularName": kind.singular, "namespaced": kind.namespaced,
            "kind": kind.kind, "verbs": verbs(kind), "shortNames": kind.short_names,
        }));
        if kind.has_status {
            resources.push(json!({
                "name": format!("{}/status", kind.plural), "singularName": "", "namespaced": kind.namespaced,
                "kind": kind.kind, "verbs": ["get", "patch", "update"],
            }));
        }
        if kind.plural == "pods" {
            resources.push(json!({
                "name": "pods/binding", "singularName": "", "namespaced": true, "kind": "Binding",
                "verbs": ["create"],
            }));
        }
    }
    let version = if group.is_empty() { "v1".to_owned() } else { format!("{group}/v1") };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources})
}

fn aggregated(groups: &[&str]) -> Value {
    let mut items = Vec::new();
    for group in groups {
        let mut resources = Vec::new();
        for kind in of_group(group) {
            let response = json!({"group": kind.group, "version": "v1", "kind": kind.kind});
            let mut subresources = Vec::new();
            if kind.has_status {
                subresources.push(json!({
                    "subresource": "status", "responseKind": response, "verbs": ["get", "patch", "update"],
                }));
            }
            resources.push(json!({
                "resource": kind.plural, "responseKind": response,
                "scope": if kind.namespaced { "Namespaced" } else { "Cluster" },
                "singularResource": kind.singular, "verbs": verbs(kind), "shortNames": kind.short_names,
                "subresources": subresources,
            }));
        }
        items.push(json!({
            "metadata": {"name": group},
            "versions": [{"version": "v1", "resources": resources, "freshness": "Current"}],
        }));
    }
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    })
}
