//! Each promise is reported as broken for a write that breaks it, and for no other write.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;

/// Objects as they are, and what was read of them before.
#[derive(Default)]
struct World {
    objects: BTreeMap<(&'static str, &'static str), Value>,
    reads: Option<Vec<(&'static str, Option<Value>)>>,
}

fn plural(kind: Kind) -> &'static str {
    match kind {
        Kind::Volume => "volume",
        Kind::Claim => "claim",
        Kind::Class => "class",
        Kind::Driver => "driver",
        Kind::Pod => "pod",
    }
}

impl Known for World {
    fn all(&self, kind: Kind) -> Vec<(String, &Value)> {
        let of_kind = self.objects.iter().filter(|((of, _), _)| *of == plural(kind));
        of_kind.map(|((_, name), object)| ((*name).to_owned(), object)).collect()
    }

    fn states(&self, kind: Kind, name: &str) -> Vec<Option<&Value>> {
        let found = self.objects.iter().find(|((of, is), _)| *of == plural(kind) && *is == name);
        vec![found.map(|(_, object)| object)]
    }

    fn reads(&self, _: Kind, name: &str) -> Option<Vec<Option<&Value>>> {
        let reads = self.reads.as_ref()?;
        Some(reads.iter().filter(|(of, _)| *of == name).map(|(_, found)| found.as_ref()).collect())
    }
}

fn merged(mut object: Value, patch: &Value) -> Value {
    let (Value::Object(fields), Value::Object(patch)) = (&mut object, patch) else { return patch.clone() };
    for (key, value) in patch {
        let field = fields.remove(key).unwrap_or_default();
        let new = if value.is_object() && field.is_object() { merged(field, value) } else { value.clone() };
        if !new.is_null() {
            fields.insert(key.clone(), new);
        }
    }
    object
}

fn volume(patch: &Value) -> Value {
    let spec = json!({
        "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
        "persistentVolumeReclaimPolicy": "Retain", "csi": { "driver": "d", "volumeHandle": "h" },
    });
    let object = json!({ "metadata": { "name": "v" }, "spec": spec, "status": { "phase": "Available" } });
    merged(object, patch)
}

fn claim(patch: &Value) -> Value {
    let spec = json!({
        "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
        "resources": { "requests": { "storage": "1Gi" } },
    });
    let metadata = json!({ "name": "c", "namespace": "shop", "uid": "u" });
    merged(json!({ "metadata": metadata, "spec": spec, "status": { "phase": "Pending" } }), patch)
}

fn reference(uid: &str) -> Value {
    json!({ "spec": { "claimRef": { "namespace": "shop", "name": "c", "uid": uid } } })
}

fn phase(phase: &str) -> Value {
    json!({ "status": { "phase": phase } })
}

fn marks(marks: &[(&str, &str)]) -> Value {
    let marks: Map<String, Value> =
        marks.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({ "metadata": { "annotations": marks } })
}

/// A row: what there is (kind, name, object), the written object's kind, what it was made of, what is written, and the
/// promise that it breaks, or none.
type Row = (Vec<(&'static str, &'static str, Value)>, Kind, Value, Value, &'static str);

fn nothing() -> Value {
    json!({})
}

fn bound() -> Value {
    merged(reference("u"), &phase("Bound"))
}

fn the_claim() -> Vec<(&'static str, &'static str, Value)> {
    vec![("claim", "shop/c", claim(&nothing()))]
}

fn class(mode: &str) -> Value {
    json!({ "volumeBindingMode": mode, "metadata": {} })
}

/// A volume of one claim that is reserved by name for another.
fn of_moved_volumes() -> Vec<Row> {
    let of_other = json!({ "spec": { "claimRef": { "namespace": "shop", "name": "d", "uid": "d" } } });
    let to_c = json!({ "spec": { "claimRef": { "name": "c", "uid": null } } });
    let names_it = json!({ "spec": { "volumeName": "v" } });
    let names = vec![("claim", "shop/c", claim(&names_it))];
    let is = |patch: Value| vec![("claim", "shop/c", claim(&merged(names_it.clone(), &patch)))];
    let forged = marks(&[(BIND_COMPLETED, "yes")]);
    vec![
        (names, Kind::Volume, of_other.clone(), to_c.clone(), "S26"),
        (the_claim(), Kind::Volume, of_other.clone(), to_c.clone(), "S26"),
        (is(phase("Bound")), Kind::Volume, of_other.clone(), to_c.clone(), ""),
        (is(forged), Kind::Volume, of_other.clone(), to_c.clone(), "S26"),
        (is(phase("Lost")), Kind::Volume, of_other.clone(), to_c.clone(), "S26"),
        (is(phase("Lost")), Kind::Volume, merged(of_other, &phase("Bound")), to_c, "S26"),
    ]
}

/// A volume whose claimRef was cleared, and that its claim is Bound to.
fn of_cleared_volumes() -> Vec<Row> {
    let its = || {
        let is_its = merged(json!({ "spec": { "volumeName": "v" } }), &marks(&[(BIND_COMPLETED, "yes")]));
        vec![("claim", "shop/c", claim(&merged(is_its, &phase("Bound"))))]
    };
    let of_another_class = |phase: Value| {
        let is_its = json!({ "spec": { "volumeName": "v", "storageClassName": "slow" } });
        vec![("claim", "shop/c", claim(&merged(is_its, &phase)))]
    };
    let by_name = |name: &str| json!({ "spec": { "claimRef": { "namespace": "shop", "name": name } } });
    vec![
        (of_another_class(phase("Bound")), Kind::Volume, nothing(), reference("u"), ""),
        (of_another_class(phase("Pending")), Kind::Volume, nothing(), reference("u"), "S27"),
        (its(), Kind::Volume, phase("Bound"), by_name("c"), ""),
        (its(), Kind::Volume, phase("Bound"), by_name("d"), "S45"),
    ]
}

fn of_volumes() -> Vec<Row> {
    let bound = bound();
    vec![
        (the_claim(), Kind::Volume, nothing(), reference("u"), ""),
        (
            vec![("claim", "shop/c", claim(&nothing())), ("volume", "w", volume(&bound))],
            Kind::Volume,
            nothing(),
            reference("u"),
            "S19",
        ),
        (the_claim(), Kind::Volume, reference("other"), reference("u"), "S23"),
        (
            vec![("claim", "shop/c", claim(&json!({ "spec": { "storageClassName": "slow" } })))],
            Kind::Volume,
            nothing(),
            reference("u"),
            "S27",
        ),
        (
            the_claim(),
            Kind::Volume,
            json!({ "spec": { "capacity": { "storage": "0Gi" } } }),
            reference("u"),
            "S27",
        ),
        (
            the_claim(),
            Kind::Volume,
            json!({ "spec": { "capacity": { "storage": "1G" } } }),
            reference("u"),
            "S27",
        ),
        (
            the_claim(),
            Kind::Volume,
            json!({ "spec": { "capacity": { "storage": "1073741824" } } }),
            reference("u"),
            "",
        ),
        (the_claim(), Kind::Volume, json!({ "spec": { "volumeMode": "Block" } }), reference("u"), "S27"),
        (
            the_claim(),
            Kind::Volume,
            json!({ "spec": { "accessModes": ["ReadOnlyMany"] } }),
            reference("u"),
            "S27",
        ),
        (the_claim(), Kind::Volume, phase("Pending"), reference("u"), "S27"),
        (
            the_claim(),
            Kind::Volume,
            json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }),
            reference("u"),
            "S27",
        ),
        (
            the_claim(),
            Kind::Volume,
            json!({ "spec": { "volumeAttributesClassName": "gold" } }),
            reference("u"),
            "S27",
        ),
        (
            vec![("claim", "shop/c", claim(&nothing())), ("class", "fast", class("WaitForFirstConsumer"))],
            Kind::Volume,
            nothing(),
            reference("u"),
            "S28",
        ),
        (vec![], Kind::Volume, reference("u"), json!({ "spec": { "claimRef": null } }), "S26"),
        (
            vec![],
            Kind::Volume,
            merged(reference("u"), &marks(&[(BOUND_BY_CONTROLLER, "yes")])),
            json!({ "spec": { "claimRef": null } }),
            "",
        ),
        (
            vec![],
            Kind::Volume,
            merged(merged(reference("u"), &phase("Released")), &marks(&[(BOUND_BY_CONTROLLER, "yes")])),
            json!({ "spec": { "claimRef": null } }),
            "S25",
        ),
        (vec![], Kind::Volume, nothing(), phase("Bound"), "S22"),
        (vec![], Kind::Volume, bound.clone(), phase("Available"), "S25"),
        (vec![], Kind::Volume, bound.clone(), phase("Released"), ""),
        (the_claim(), Kind::Volume, bound.clone(), phase("Released"), "S23"),
        (vec![], Kind::Volume, bound.clone(), phase("Failed"), "S32"),
        (vec![], Kind::Volume, nothing(), phase("Odd"), "S34"),
        (vec![], Kind::Volume, nothing(), json!({ "metadata": { "finalizers": ["example.com/x"] } }), "S33"),
        (vec![], Kind::Volume, nothing(), json!({ "metadata": { "labels": { "a": "b" } } }), "S34"),
        (vec![], Kind::Volume, nothing(), json!({ "status": { "messageOfOthers": "x" } }), "S34"),
    ]
}

/// Claims whose volumes grow.
fn of_expansions() -> Vec<Row> {
    let named = merged(phase("Bound"), &json!({ "spec": { "volumeName": "v" } }));
    let in_tree = json!({ "spec": { "csi": null, "awsElasticBlockStore": { "volumeID": "vol-1" } } });
    let resizer = marks(&[(STORAGE_RESIZER, "ebs.csi.aws.com")]);
    let of = |owner: &str, source: &Value, before: &Value, patch: &Value, id: &'static str| {
        let volume = merged(volume(&reference(owner)), source);
        (vec![("volume", "v", volume)], Kind::Claim, before.clone(), patch.clone(), id)
    };
    vec![
        of("u", &in_tree, &named, &resizer, ""),
        of("u", &nothing(), &named, &resizer, "S51"),
        of("other", &in_tree, &named, &resizer, "S51"),
        of(
            "u",
            &in_tree,
            &merged(phase("Pending"), &json!({ "spec": { "volumeName": "v" } })),
            &resizer,
            "S51",
        ),
        of("u", &in_tree, &named, &merged(resizer.clone(), &json!({ "status": { "x": 1 } })), "S51"),
        of("u", &in_tree, &named, &merged(resizer.clone(), &marks(&[("other", "x")])), "S51"),
        of(
            "u",
            &in_tree,
            &merged(named.clone(), &resizer),
            &json!({ "metadata": { "annotations": { STORAGE_RESIZER: null } } }),
            "S51",
        ),
    ]
}

fn of_claims() -> Vec<Row> {
    let bound = bound();
    vec![
        (
            vec![("volume", "v", volume(&bound))],
            Kind::Claim,
            nothing(),
            json!({ "spec": { "volumeName": "v" } }),
            "",
        ),
        (
            vec![("volume", "v", volume(&reference("u")))],
            Kind::Claim,
            nothing(),
            json!({ "spec": { "volumeName": "v" } }),
            "S21",
        ),
        (
            vec![("volume", "v", volume(&bound))],
            Kind::Claim,
            json!({ "spec": { "volumeName": "w" } }),
            json!({ "spec": { "volumeName": "v" } }),
            "S20",
        ),
        (
            vec![("volume", "v", volume(&bound))],
            Kind::Claim,
            json!({ "spec": { "volumeName": "v" } }),
            phase("Bound"),
            "S22",
        ),
        (
            vec![("volume", "v", volume(&bound))],
            Kind::Claim,
            merged(json!({ "spec": { "volumeName": "v" } }), &marks(&[(BIND_COMPLETED, "yes")])),
            phase("Bound"),
            "",
        ),
        (
            vec![("volume", "v", volume(&bound))],
            Kind::Claim,
            json!({ "spec": { "volumeName": "v" } }),
            phase("Lost"),
            "S24",
        ),
        (vec![], Kind::Claim, nothing(), json!({ "spec": { "storageClassName": "slow" } }), "S30"),
        (
            vec![],
            Kind::Claim,
            phase("Bound"),
            json!({ "status": { "capacity": { "storage": "2Gi" } } }),
            "S31",
        ),
        (vec![], Kind::Claim, marks(&[(PROVISIONER, "one")]), marks(&[(PROVISIONER, "two")]), ""),
        (
            vec![("driver", "one", nothing())],
            Kind::Claim,
            marks(&[(PROVISIONER, "one")]),
            marks(&[(PROVISIONER, "two")]),
            "S29",
        ),
        (
            vec![("class", "fast", class("WaitForFirstConsumer"))],
            Kind::Claim,
            nothing(),
            marks(&[(PROVISIONER, "one")]),
            "S28",
        ),
        (vec![], Kind::Claim, nothing(), phase("Odd"), "S34"),
        (vec![], Kind::Pod, nothing(), json!({ "spec": { "nodeName": "a" } }), "S34"),
    ]
}

#[test]
fn each_write_that_breaks_a_promise_is_told_by_its_id() {
    for (number, (objects, kind, before, patch, id)) in
        [of_volumes(), of_moved_volumes(), of_cleared_volumes(), of_claims(), of_expansions()]
            .into_iter()
            .flatten()
            .enumerate()
    {
        let objects = objects.into_iter().map(|(of, name, object)| ((of, name), object)).collect();
        let (name, before) = match kind {
            Kind::Volume => ("v", volume(&before)),
            _ => ("shop/c", claim(&before)),
        };
        let after = merged(before.clone(), &patch);
        let known = World { objects, reads: None };
        let broken = broken(&known, Write { kind, name, before: &before, after: &after });
        let ids: BTreeSet<&str> = broken.iter().filter_map(|rule| rule.split(' ').next()).collect();
        let expected: BTreeSet<&str> = Some(id).filter(|id| !id.is_empty()).into_iter().collect();
        assert_eq!(ids, expected, "row {number}: {patch}: {broken:?}");
    }
}

#[test]
fn s23_s24_what_is_given_up_was_asked_for_where_reads_are_on_record() {
    let bound = volume(&merged(reference("u"), &phase("Bound")));
    let released = merged(bound.clone(), &phase("Released"));
    let lives = claim(&json!({}));
    for (reads, is_told) in [
        (vec![], true),
        (vec![("shop/c", Some(lives))], true),
        (vec![("shop/other", None)], true),
        (vec![("shop/c", None)], false),
        (vec![("shop/c", Some(claim(&json!({ "metadata": { "uid": "new" } }))))], false),
    ] {
        let known = World { objects: BTreeMap::new(), reads: Some(reads) };
        let write = Write { kind: Kind::Volume, name: "v", before: &bound, after: &released };
        assert_eq!(!broken(&known, write).is_empty(), is_told, "{:?}", known.reads);
    }
    let named = claim(&json!({ "spec": { "volumeName": "v" } }));
    let lost = merged(named.clone(), &phase("Lost"));
    for (reads, is_told) in [
        (vec![], true),
        (vec![("v", Some(bound.clone()))], true),
        (vec![("w", None)], true),
        (vec![("v", None)], false),
        (vec![("v", Some(volume(&reference("other"))))], false),
    ] {
        let known = World { objects: BTreeMap::new(), reads: Some(reads) };
        let write = Write { kind: Kind::Claim, name: "shop/c", before: &named, after: &lost };
        assert_eq!(!broken(&known, write).is_empty(), is_told, "{:?}", known.reads);
    }
}

#[test]
fn s18_a_volume_is_told_that_two_bound_claims_name() {
    let named = |uid: &str, (name, is): (&str, &str)| {
        let shape = json!({ "metadata": { "uid": uid }, "spec": { "volumeName": name } });
        claim(&merged(shape, &phase(is)))
    };
    // What the one that was written and another one have, and which of them the volume names.
    let cases = [
        (("v", "Bound"), ("v", "Bound"), "other", true),
        (("v", "Bound"), ("v", "Bound"), "none", true),
        (("v", "Bound"), ("v", "Bound"), "written", false),
        (("v", "Bound"), ("w", "Bound"), "other", false),
        (("v", "Bound"), ("v", "Pending"), "other", false),
    ];
    for (written, other, owner, is_told) in cases {
        let claims = [named("written", written), named("other", other)];
        let volume = volume(&json!({ "spec": { "claimRef": { "uid": owner } } }));
        assert_eq!(
            is_shared(&claims[0], Some(&volume), claims.iter()),
            is_told,
            "{written:?} {other:?} {owner}"
        );
    }
    let claims = [named("written", ("v", "Bound")), named("other", ("v", "Bound"))];
    assert!(is_shared(&claims[0], None, claims.iter()));
}
