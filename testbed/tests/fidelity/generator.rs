//! Sequences of requests from a number.
//!
//! In: the pool (`pool.yaml`): per kind a base object and edits, right and wrong ones. Out: a
//! sequence over one or two kinds that creates, reads, lists, patches, replaces and deletes, with
//! right, missing and wrong revisions and UIDs. The same number gives the same sequence.

use std::{collections::BTreeMap, sync::LazyLock};

use fastrand::Rng;
use serde::Deserialize;
use serde_json::{Value, json};

use super::sequence::{Sequence, Step};

#[derive(Debug, Deserialize)]
struct Pool {
    common: Vec<(String, Vec<Value>)>,
    kinds: BTreeMap<String, Kind>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    group: String,
    namespaced: bool,
    status: bool,
    base: Value,
    edits: Vec<(String, Vec<Value>)>,
    #[serde(default)]
    status_edits: Vec<(String, Vec<Value>)>,
    #[serde(default)]
    selectors: Vec<String>,
}

static POOL: LazyLock<Pool> =
    LazyLock::new(|| serde_saphyr::from_str(include_str!("pool.yaml")).expect("the pool can be read"));

const NAMES: [&str; 2] = ["a", "b"];

struct Generator {
    rng: Rng,
    plural: &'static str,
    kind: &'static Kind,
}

/// The sequence of a number.
pub fn sequence(number: u64) -> Sequence {
    let mut rng = Rng::with_seed(number);
    let kinds: Vec<&'static String> = POOL.kinds.keys().collect();
    let mut steps = Vec::new();
    let mut watched = Vec::new();
    for _ in 0..rng.usize(1..=2) {
        let plural = kinds[rng.usize(..kinds.len())].as_str();
        let mut generator = Generator { rng: rng.fork(), plural, kind: &POOL.kinds[plural] };
        steps.push(generator.create(NAMES[0]));
        for _ in 0..generator.rng.usize(3..=9) {
            steps.push(generator.step());
        }
        steps.push(generator.list());
        watched.push(generator.watched());
    }
    watched.dedup();
    Sequence { steps, watched }
}

impl Generator {
    fn collection(&self) -> String {
        let base = if self.kind.group.is_empty() {
            "/api/v1".to_owned()
        } else {
            format!("/apis/{}/v1", self.kind.group)
        };
        let namespace = if self.kind.namespaced { "/namespaces/$id" } else { "" };
        format!("{base}{namespace}/{}", self.plural)
    }

    fn watched(&self) -> String {
        if self.kind.namespaced {
            self.collection()
        } else {
            format!("{}?labelSelector=seq%3D$id", self.collection())
        }
    }

    fn object_path(&self, short: &str) -> String {
        format!("{}/{}", self.collection(), object_name(short))
    }

    fn step(&mut self) -> Step {
        let short = if self.rng.u8(..10) < 7 { NAMES[0] } else { NAMES[1] };
        match self.rng.u8(..20) {
            0..=2 => self.create(short),
            3..=5 => self.replace(short),
            6..=8 if self.kind.status => self.status(short),
            6..=14 => self.patch(short),
            15 => self.list(),
            16 => Step::new("GET", &self.object_path(short), "application/json", None),
            _ => self.delete(short),
        }
    }

    fn object(&mut self, short: &str) -> Value {
        let mut object = self.kind.base.clone();
        object["metadata"] = json!({"name": object_name(short), "labels": {"seq": "$id"}});
        let count = [0, 0, 1, 1, 2][self.rng.usize(..5)];
        for _ in 0..count {
            let (path, value) = self.edit(false);
            if path.starts_with("/metadata/finalizers") || !path.starts_with("/metadata/name") {
                set(&mut object, path, value);
            }
        }
        object
    }

    fn edit(&mut self, is_status: bool) -> (&'static str, Value) {
        let pool = match self.rng.u8(..10) {
            _ if is_status && self.rng.u8(..10) < 8 => &self.kind.status_edits,
            0..=2 => &POOL.common,
            _ => &self.kind.edits,
        };
        let (path, values) = &pool[self.rng.usize(..pool.len())];
        (path, values[self.rng.usize(..values.len())].clone())
    }

    fn create(&mut self, short: &str) -> Step {
        let mut object = self.object(short);
        if self.rng.u8(..20) == 0 {
            object["metadata"]["resourceVersion"] = json!("5");
        }
        let validation =
            ["", "", "", "?fieldValidation=Strict", "?fieldValidation=Ignore"][self.rng.usize(..5)];
        Step::post(&format!("{}{validation}", self.collection()), object)
    }

    fn preconditions(&mut self, short: &str, object: &mut Value) {
        let key = format!("{}/{short}", self.plural);
        match self.rng.u8(..8) {
            0..=3 => set(object, "/metadata/resourceVersion", json!(format!("$rv({key})"))),
            4 => set(object, "/metadata/resourceVersion", json!("1")),
            _ => {}
        }
        match self.rng.u8(..8) {
            0..=1 => set(object, "/metadata/uid", json!(format!("$uid({key})"))),
            2 => set(object, "/metadata/uid", json!("2f1c7d2e-6a39-4a7e-8f6f-0c7c26a3c1aa")),
            _ => {}
        }
    }

    fn replace(&mut self, short: &str) -> Step {
        let mut object = self.object(short);
        self.preconditions(short, &mut object);
        if self.rng.u8(..15) == 0 {
            object["metadata"]["name"] = json!("$id-other");
        }
        Step::new("PUT", &self.object_path(short), "application/json", Some(object))
    }

    fn patch(&mut self, short: &str) -> Step {
        let path = self.object_path(short);
        self.patch_at(short, &path, false)
    }

    fn status(&mut self, short: &str) -> Step {
        let path = format!("{}/status", self.object_path(short));
        if self.rng.u8(..4) == 0 {
            let mut object = self.object(short);
            let (field, value) = self.edit(true);
            set(&mut object, field, value);
            self.preconditions(short, &mut object);
            return Step::new("PUT", &path, "application/json", Some(object));
        }
        if self.rng.u8(..12) == 0 {
            return Step::new("GET", &path, "application/json", None);
        }
        self.patch_at(short, &path, true)
    }

    fn patch_at(&mut self, short: &str, path: &str, is_status: bool) -> Step {
        let count = self.rng.usize(1..=2);
        if self.rng.u8(..4) == 0 {
            let mut operations = Vec::new();
            for _ in 0..count {
                let (path, value) = self.edit(is_status);
                operations.push(match self.rng.u8(..6) {
                    0 => json!({"op": "remove", "path": path}),
                    1 => json!({"op": "test", "path": path, "value": value}),
                    2 => json!({"op": "replace", "path": path, "value": value}),
                    _ => json!({"op": "add", "path": path, "value": value}),
                });
            }
            return Step::new("PATCH", path, "application/json-patch+json", Some(Value::Array(operations)));
        }
        let mut merged = json!({});
        for _ in 0..count {
            let (path, value) = self.edit(is_status);
            set(&mut merged, path, value);
        }
        self.preconditions(short, &mut merged);
        let media =
            ["application/merge-patch+json", "application/strategic-merge-patch+json"][self.rng.usize(..2)];
        let validation = ["", "", "?fieldValidation=Strict"][self.rng.usize(..3)];
        Step::new("PATCH", &format!("{path}{validation}"), media, Some(merged))
    }

    fn list(&mut self) -> Step {
        let mut query =
            if self.kind.namespaced { String::new() } else { "labelSelector=seq%3D$id".to_owned() };
        if self.kind.namespaced && self.rng.bool() && !self.kind.selectors.is_empty() {
            let selector = &self.kind.selectors[self.rng.usize(..self.kind.selectors.len())];
            query.clone_from(selector);
        }
        let extra = match self.rng.u8(..10) {
            // Pages of what all sequences share would end anywhere.
            0..=1 if self.kind.namespaced => "limit=1",
            2 if self.kind.namespaced => "limit=1&continue=$continue",
            4 => "resourceVersion=$last&resourceVersionMatch=NotOlderThan",
            5 => "resourceVersion=$start&resourceVersionMatch=Exact",
            6 => "resourceVersionMatch=Exact",
            _ => "",
        };
        let query = format!("{query}&{extra}");
        let query = query.trim_matches('&');
        let separator = if query.is_empty() { "" } else { "?" };
        Step::new("GET", &format!("{}{separator}{query}", self.collection()), "application/json", None)
    }

    fn delete(&mut self, short: &str) -> Step {
        let key = format!("{}/{short}", self.plural);
        let body = match self.rng.u8(..12) {
            0 => Some(json!({"gracePeriodSeconds": 0})),
            1 => Some(json!({"gracePeriodSeconds": 5})),
            2 => Some(json!({"preconditions": {"uid": format!("$uid({key})")}})),
            3 => Some(json!({"preconditions": {"uid": "2f1c7d2e-6a39-4a7e-8f6f-0c7c26a3c1aa"}})),
            4 => Some(json!({"preconditions": {"resourceVersion": format!("$rv({key})")}})),
            5 => Some(json!({"preconditions": {"resourceVersion": "1"}})),
            6 => Some(json!({"propagationPolicy": "Background"})),
            7 => Some(json!({"propagationPolicy": "Foreground"})),
            8 => Some(json!({"propagationPolicy": "Orphan"})),
            9 => Some(json!({"propagationPolicy": "Bogus"})),
            _ => None,
        };
        Step::new("DELETE", &self.object_path(short), "application/json", body)
    }
}

fn object_name(short: &str) -> String {
    format!("$id-{short}")
}

fn set(object: &mut Value, path: &str, value: Value) {
    let mut place = object;
    for name in path.split('/').skip(1) {
        if !place.is_object() {
            *place = json!({});
        }
        place = &mut place[name.replace("~1", "/")];
    }
    *place = value;
}
