//! Whether a volume may be used on a node: its node affinity against the node's labels.
//!
//! In: both objects as they were read, whole. Out: the terms that the node does not fit, as a sentence. What cannot be
//! evaluated speaks against nothing.
//!
//! kubelet: pkg/volume/util/util.go, CheckNodeAffinity; component-helpers/scheduling/corev1/nodeaffinity.

use serde_json::Value;

use super::subject::field;

/// Why a volume may not be used on a node, if it may not.
pub(super) fn refusal(volume: &Value, node: &Value) -> Option<String> {
    let terms = volume.pointer("/spec/nodeAffinity/required/nodeSelectorTerms")?.as_array()?;
    let terms: Vec<Vec<(bool, String)>> = terms.iter().map(|term| judged(term, node)).collect();
    // An empty term fits nothing.
    if terms.iter().any(|term| !term.is_empty() && term.iter().all(|(holds, _)| *holds)) {
        return None;
    }
    let told = terms.iter().map(|term| {
        let told: Vec<&str> = term.iter().map(|(_, told)| told.as_str()).collect();
        told.join(" and ")
    });
    Some(told.collect::<Vec<_>>().join(", or "))
}

/// The nodes outside of which a volume is nowhere, by their names, if it names them.
pub(crate) fn hosts(volume: &Value) -> Option<Vec<String>> {
    let terms = volume.pointer("/spec/nodeAffinity/required/nodeSelectorTerms")?.as_array()?;
    let named = |term: &Value| {
        let mut all = requirements(term, "matchExpressions").chain(requirements(term, "matchFields"));
        let is_name = |one: &&Value| {
            field(one, "operator") == "In"
                && ["kubernetes.io/hostname", "metadata.name"].contains(&field(one, "key"))
        };
        Some(values(all.find(is_name)?).into_iter().map(str::to_owned).collect::<Vec<_>>())
    };
    let hosts: Option<Vec<Vec<String>>> = terms.iter().map(named).collect();
    hosts.map(|hosts| hosts.concat()).filter(|hosts| !hosts.is_empty())
}

fn requirements<'a>(term: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> {
    term.get(field).and_then(Value::as_array).into_iter().flatten()
}

fn values(requirement: &Value) -> Vec<&str> {
    let values = requirement.get("values").and_then(Value::as_array).into_iter().flatten();
    values.filter_map(Value::as_str).collect()
}

/// The requirements of a term: whether each holds, and in words.
fn judged(term: &Value, node: &Value) -> Vec<(bool, String)> {
    let label = |key: &str| node.pointer("/metadata/labels").and_then(|labels| labels.get(key)?.as_str());
    let own =
        |key: &str| (key == "metadata.name").then(|| node.pointer("/metadata/name")?.as_str()).flatten();
    let labels = requirements(term, "matchExpressions").map(|one| judge(one, label(field(one, "key"))));
    let fields = requirements(term, "matchFields").map(|one| judge(one, own(field(one, "key"))));
    labels.chain(fields).collect()
}

fn judge(requirement: &Value, found: Option<&str>) -> (bool, String) {
    let (key, values) = (field(requirement, "key"), values(requirement));
    let told = values.join(" or ");
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = || Some((number(found?)?, number(values.first()?)?));
    match field(requirement, "operator") {
        "In" => (found.is_some_and(|found| values.contains(&found)), format!("{key} is {told}")),
        "NotIn" => (found.is_none_or(|found| !values.contains(&found)), format!("{key} is not {told}")),
        "Exists" => (found.is_some(), format!("{key} is set")),
        "DoesNotExist" => (found.is_none(), format!("{key} is not set")),
        "Gt" => (compared().is_some_and(|(found, limit)| found > limit), format!("{key} Gt {told}")),
        "Lt" => (compared().is_some_and(|(found, limit)| found < limit), format!("{key} Lt {told}")),
        operator => (true, format!("{key} {operator} {told}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_volume_may_be_used_where_one_of_its_terms_holds_as_a_whole() {
        let node = json!({ "metadata": { "name": "a", "labels": { "zone": "z1", "rank": "7" } } });
        let is = |key: &str, operator: &str, values: Value| json!({ "key": key, "operator": operator, "values": values });
        let expressions = |all: Value| json!({ "matchExpressions": all });
        let cases = [
            (json!([]), Some("")),
            (json!([{}]), Some("")),
            (json!([expressions(json!([is("zone", "In", json!(["z1", "z2"]))]))]), None),
            (json!([expressions(json!([is("zone", "In", json!(["z2", "z3"]))]))]), Some("zone is z2 or z3")),
            (json!([expressions(json!([is("zone", "NotIn", json!(["z1"]))]))]), Some("zone is not z1")),
            (json!([expressions(json!([is("other", "NotIn", json!(["z1"]))]))]), None),
            (json!([expressions(json!([is("zone", "Exists", json!(null))]))]), None),
            (json!([expressions(json!([is("zone", "DoesNotExist", json!(null))]))]), Some("zone is not set")),
            (json!([expressions(json!([is("rank", "Gt", json!(["6"]))]))]), None),
            (json!([expressions(json!([is("rank", "Lt", json!(["7"]))]))]), Some("rank Lt 7")),
            (json!([{ "matchFields": [is("metadata.name", "In", json!(["a"]))] }]), None),
            (
                json!([{ "matchFields": [is("metadata.name", "In", json!(["b"]))] }]),
                Some("metadata.name is b"),
            ),
            (
                json!([expressions(json!([
                    is("zone", "In", json!(["z1"])),
                    is("rank", "In", json!(["8"]))
                ]))]),
                Some("zone is z1 and rank is 8"),
            ),
            (
                json!([
                    expressions(json!([is("zone", "In", json!(["z2"]))])),
                    expressions(json!([is("rank", "In", json!(["7"]))])),
                ]),
                None,
            ),
        ];
        for (terms, expected) in cases {
            let volume =
                json!({ "spec": { "nodeAffinity": { "required": { "nodeSelectorTerms": terms } } } });
            assert_eq!(refusal(&volume, &node).as_deref(), expected, "{terms}");
        }
        assert_eq!(refusal(&json!({ "spec": {} }), &node), None);
    }
}
