//! The daemon's roles grant what it uses and nothing else: `deploy/rbac.yaml` and `deploy/optional` against
//! the audit log of all stories before.

use std::collections::BTreeSet;

use serde_json::Value;
use test_support::audit::{self, Right};

use crate::stage::{Stage, Story, story};

pub fn stories() -> Vec<Story> {
    vec![
        story("permissions_are_those_that_are_used", all_used)
            .real_at_the_end("kube-apiserver allows by roles, and its audit log has all that was asked."),
    ]
}

fn granted() -> BTreeSet<Right> {
    let manifests = [
        include_str!("../../deploy/rbac.yaml"),
        include_str!("../../deploy/optional/recycler/rbac.yaml"),
        include_str!("../../deploy/optional/host-path/rbac.yaml"),
        include_str!("../../deploy/optional/vac-protection/rbac.yaml"),
        include_str!("../../deploy/optional/ephemeral-volume/rbac.yaml"),
        include_str!("../../deploy/optional/fence/rbac.yaml"),
    ];
    let read = |manifest: &str| serde_saphyr::from_multiple::<Value>(manifest).unwrap();
    let documents: Vec<Value> = manifests.into_iter().flat_map(read).collect();
    let list = |rule: &Value, field: &str| -> Vec<String> {
        rule[field].as_array().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
    };
    let mut rights = BTreeSet::new();
    // Of the Role that every cluster has, what is made use of.
    let built_in = "extension-apiserver-authentication-reader";
    if documents.iter().any(|document| document["roleRef"]["name"] == built_in) {
        rights.insert(Right {
            group: String::new(),
            resource: "configmaps".to_owned(),
            verb: "get".to_owned(),
            name: Some("extension-apiserver-authentication".to_owned()),
        });
    }
    let rules = documents.iter().filter_map(|document| document["rules"].as_array()).flatten();
    // The audit log has no object for a path.
    for rule in rules.filter(|rule| rule["nonResourceURLs"].is_null()) {
        for group in list(rule, "apiGroups") {
            for resource in list(rule, "resources") {
                for verb in list(rule, "verbs") {
                    let right = |name| Right {
                        group: group.clone(),
                        resource: resource.clone(),
                        verb: verb.clone(),
                        name,
                    };
                    if rule["resourceNames"].is_array() {
                        rights.extend(list(rule, "resourceNames").into_iter().map(|name| right(Some(name))));
                    } else {
                        rights.insert(right(None));
                    }
                }
            }
        }
    }
    rights
}

async fn all_used(stage: Stage) {
    let used = audit::rights_used(&audit::read(&stage.real().plane.audit_log(), 0));
    let granted = granted();
    // What is granted by name has to be asked for by name; what is granted for all covers any name.
    let grant_of = |used: &Right| {
        [used.clone(), Right { name: None, ..used.clone() }].into_iter().find(|right| granted.contains(right))
    };
    let missing: Vec<_> = used.iter().filter(|used| grant_of(used).is_none()).collect();
    let made_use_of: BTreeSet<_> = used.iter().filter_map(grant_of).collect();
    let idle: Vec<_> = granted.difference(&made_use_of).collect();
    assert!(
        missing.is_empty() && idle.is_empty(),
        "used but not granted: {missing:#?}\ngranted but never used: {idle:#?}"
    );
}
