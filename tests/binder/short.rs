//! Objects as `then` of a case says them: the other way round of the [short forms](crate::form).
//!
//! In: a case and the objects at the end. Out: what its `then` has to say so that it ends with these, if short forms can.

use std::{collections::BTreeMap, sync::Arc};

use libtest_mimic::Trial;
use serde_json::{Map, Value, json};
use test_support::cases::comparison::in_place;

use crate::{
    case::{Case, Then},
    form::{FINALIZERS, KEPT, MARKS, MODES, text},
    world::plain,
};

type Form = Map<String, Value>;
/// What an object says of each field of its form.
type Fields = Vec<(&'static str, Value)>;
/// The object of a form.
type Build<'a> = &'a dyn Fn(&Case, &Form) -> (String, Value);
type Fixtures = BTreeMap<String, Vec<Form>>;

/// A trial that says each case's end anew, from the objects alone.
pub fn trial(cases: Vec<(Case, Arc<Fixtures>)>) -> Trial {
    Trial::test("short forms: what a case ends with can be said again", move || {
        let unsaid: Vec<&str> = cases
            .iter()
            .filter(|(case, fixtures)| {
                let end = plain(&case.end(fixtures));
                let forgetful = Case { then: Then::default(), ..case.clone() };
                let Some(then) = forgetful.then_of(fixtures, &end) else { return true };
                let again = plain(&Case { then, ..case.clone() }.end(fixtures));
                let is_said = |path| case.then.made.contains_key(path) || again.get(path) == end.get(path);
                again.len() != end.len() || !end.keys().all(is_said)
            })
            .map(|(case, _)| case.id.as_str())
            .collect();
        if unsaid.is_empty() { Ok(()) } else { Err(format!("not said: {unsaid:?}").into()) }
    })
}

impl Case {
    /// What `then` has to say for a case that ends with `found`: what it says now, with what differs. `None` if no short
    /// form says it.
    pub fn then_of(&self, fixtures: &Fixtures, found: &BTreeMap<String, Value>) -> Option<Then> {
        let staged = self.staged();
        let mut then = self.then.clone();
        let mut left = plain(&staged.start(fixtures).server);
        let names: Vec<String> =
            left.keys().filter_map(|path| path.rsplit('/').next()).map(str::to_owned).collect();
        then.gone.retain(|gone| names.contains(&self.expand(gone)));
        for form in &staged.volumes {
            let name = text(form, "name").unwrap_or("v").to_owned();
            let (path, _) = self.volume(&without_tables(form));
            let changed = then.volumes.remove(&name);
            let was_said = changed.is_some();
            let fields = |object| self.fields(form, changed.clone(), object, volume_fields, &Self::volume);
            if let Some(fields) = found.get(&path).map(fields) {
                then.gone.retain(|gone| *gone != name);
                let fields = fields?;
                if was_said || !fields.is_empty() {
                    then.volumes.insert(name, fields);
                }
            } else if left.contains_key(&path) && !then.gone.contains(&name) {
                then.gone.push(name);
            }
            left.remove(&path);
        }
        for form in &staged.claims {
            let name = text(form, "name").unwrap_or("c").to_owned();
            let (path, _) = self.claim(&without_tables(form));
            let changed = then.claims.remove(&name);
            let was_said = changed.is_some();
            let fields = |object| self.fields(form, changed.clone(), object, claim_fields, &Self::claim);
            if let Some(fields) = found.get(&path).map(fields) {
                then.gone.retain(|gone| *gone != name);
                let fields = fields?;
                if was_said || !fields.is_empty() {
                    then.claims.insert(name, fields);
                }
            } else if left.contains_key(&path) && !then.gone.contains(&name) {
                then.gone.push(name);
            }
            left.remove(&path);
        }
        for path in left.keys().filter(|path| !found.contains_key(*path)) {
            let name = path.rsplit('/').next().unwrap_or_default();
            if !then.gone.iter().any(|gone| self.expand(gone) == name) {
                then.gone.push(name.to_owned());
            }
        }
        then.made.retain(|path, _| found.contains_key(path));
        let mut meant = self.clone();
        meant.then = then.clone();
        let end = plain(&meant.end(fixtures));
        for (path, object) in found {
            match end.get(path) {
                // Of what is new it is enough to know that it is there, unless the case says more.
                None => drop(then.made.insert(path.clone(), Value::Null)),
                Some(Value::Null) => {}
                Some(expected) if expected == object => {}
                Some(_) if then.made.contains_key(path) => {
                    drop(then.made.insert(path.clone(), object.clone()));
                }
                Some(_) => return None,
            }
        }
        Some(then)
    }

    /// The fields of a form that have to change so that it says an object; `None` if it cannot.
    fn fields(
        &self,
        form: &Form,
        changed: Option<Form>,
        object: &Value,
        derived: fn(&Case, &Value) -> Fields,
        build: Build<'_>,
    ) -> Option<Form> {
        let form = without_tables(form);
        let object_of = |changed: &Form| {
            let mut form = form.clone();
            form.extend(changed.clone());
            plain(&[build(self, &form)].into_iter().collect()).into_values().next().unwrap_or_default()
        };
        let mut changed = changed.unwrap_or_default();
        for (field, wanted) in derived(self, object) {
            let said = |changed: &Form| {
                derived(self, &object_of(changed))
                    .into_iter()
                    .find(|(name, _)| *name == field)
                    .map(|(_, value)| value)
            };
            if same(field, said(&changed).as_ref(), &wanted) {
                continue;
            }
            let before = changed.remove(field);
            if !same(field, said(&changed).as_ref(), &wanted) {
                changed.insert(field.to_owned(), ordered(field, before.as_ref().or(form.get(field)), wanted));
            }
        }
        (object_of(&changed) == *object).then_some(changed)
    }

    /// `volume<id>` as `v` and so on.
    fn short(&self, text: &str) -> String {
        for (short, long) in [("v", "volume"), ("c", "claim"), ("u", "uid")] {
            if let Some(rest) = text.strip_prefix(&format!("{long}{}", self.id)) {
                let candidate = format!("{short}{rest}");
                if self.expand(&candidate) == text {
                    return candidate;
                }
            }
        }
        text.to_owned()
    }
}

/// A form without what it says about our tables.
fn without_tables(form: &Form) -> Form {
    let mut form = form.clone();
    form.remove("cached");
    form.remove("stored");
    form
}

/// Marks without regard to their order, which is that of a map's keys.
fn same(field: &str, one: Option<&Value>, other: &Value) -> bool {
    let sorted = |value: &Value| {
        let mut marks = value.as_array().cloned().unwrap_or_default();
        marks.sort_by_key(ToString::to_string);
        marks
    };
    one.is_some_and(|one| one == other || field == "marks" && sorted(one) == sorted(other))
}

/// Marks in the order in which the case had them.
fn ordered(field: &str, before: Option<&Value>, wanted: Value) -> Value {
    let texts = |value: &Value| -> Option<Vec<String>> {
        value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
    };
    match (before.and_then(texts), texts(&wanted)) {
        (Some(before), Some(wanted)) if field == "marks" => json!(in_place(&before, &wanted)),
        _ => wanted,
    }
}

fn volume_fields(case: &Case, object: &Value) -> Fields {
    let (spec, status) = (&object["spec"], &object["status"]);
    let reference = match (spec["claimRef"]["name"].as_str(), spec["claimRef"]["uid"].as_str()) {
        (None, _) => "-".to_owned(),
        (Some(name), None | Some("")) => case.short(name),
        (Some(name), Some(uid)) => format!("{}@{}", case.short(name), case.short(uid)),
    };
    let mut fields = vec![
        ("ref", json!(reference)),
        ("phase", status["phase"].clone()),
        ("message", json!(status["message"].as_str().unwrap_or_default())),
        ("class", json!(spec["storageClassName"].as_str().unwrap_or_default())),
        ("policy", spec["persistentVolumeReclaimPolicy"].clone()),
        ("vac", spec["volumeAttributesClassName"].clone()),
        ("size", spec["capacity"]["storage"].clone()),
    ];
    fields.extend(of_metadata(&object["metadata"]));
    fields
}

fn claim_fields(case: &Case, object: &Value) -> Fields {
    let (spec, status) = (&object["spec"], &object["status"]);
    let modes: Vec<&str> = status["accessModes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|mode| MODES.iter().find(|(_, long)| *long == mode).map_or(mode, |(short, _)| *short))
        .collect();
    let mut fields = vec![
        ("vol", json!(case.short(spec["volumeName"].as_str().unwrap_or_default()))),
        ("phase", status["phase"].clone()),
        ("class", spec["storageClassName"].clone()),
        ("vac", spec["volumeAttributesClassName"].clone()),
        ("size", spec["resources"]["requests"]["storage"].clone()),
        ("cap", status["capacity"]["storage"].clone()),
        ("odd_cap", status["capacity"]["example.com/odd"].clone()),
        ("current_vac", json!(status["currentVolumeAttributesClassName"].as_str().unwrap_or_default())),
        ("status_modes", json!(modes.join("+"))),
    ];
    fields.extend(of_metadata(&object["metadata"]));
    fields
}

fn of_metadata(metadata: &Value) -> Fields {
    let annotations = metadata["annotations"].as_object().cloned().unwrap_or_default();
    let marks = annotations.iter().filter(|(key, _)| *key != KEPT).map(|(key, value)| {
        let value = value.as_str().unwrap_or_default();
        match MARKS.iter().find(|(_, long, _)| long == key) {
            Some((mark, _, default)) if *default == value => (*mark).to_owned(),
            Some((mark, ..)) => format!("{mark}={value}"),
            // No mark says it: neither will the form that is made of this.
            None => key.clone(),
        }
    });
    let marks: Vec<String> = marks.filter(|mark| !mark.contains('/') || mark.contains('=')).collect();
    let finalizers: Vec<&str> = metadata["finalizers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|name| FINALIZERS.iter().find(|(_, long)| *long == name).map_or(name, |(short, _)| *short))
        .collect();
    vec![
        ("marks", json!(marks)),
        ("finalizers", json!(finalizers)),
        ("terminating", json!(!metadata["deletionTimestamp"].is_null())),
    ]
}
