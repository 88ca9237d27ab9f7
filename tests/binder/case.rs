//! Cases as data: what there is at first, what happens later, and what has become of it at the end.
//!
//! In: a YAML file. Out: the objects of its cases, each made of a [short form](crate::form), at the start, at each
//! later stage and at the end.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{form::text, server::DRIVERS};

/// A file of cases.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    /// Volumes and classes that cases refer to by name.
    #[serde(default)]
    pub fixtures: BTreeMap<String, Vec<Map<String, Value>>>,
    /// The cases.
    pub cases: Vec<Case>,
}

/// Which decisions a case makes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sync {
    /// Only about the first claim.
    #[default]
    Claim,
    /// Only about the first volume.
    Volume,
    /// About everything, through the planner.
    All,
}

/// One case.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Case {
    /// Row of the catalogue.
    pub id: String,
    /// What it shows.
    pub title: String,
    /// Which decisions are made.
    #[serde(default)]
    pub sync: Sync,
    /// Whether dynamic provisioning is off.
    #[serde(default)]
    pub no_provisioning: bool,
    /// Whether volumes are recycled.
    #[serde(default)]
    pub recycler: bool,
    /// Whether the host-path plugin provisions and deletes.
    #[serde(default)]
    pub host_path: bool,
    /// How many writes of a kind are denied.
    #[serde(default)]
    pub denied: BTreeMap<String, usize>,
    /// Kinds of writes out of which a webhook takes the change.
    #[serde(default)]
    pub stripped: BTreeSet<String>,
    /// How many directories cannot be made.
    #[serde(default)]
    pub unmakable: usize,
    /// How many directories cannot be removed.
    #[serde(default)]
    pub unremovable: usize,
    /// A run is under way at the end, or failed: another process begins it anew.
    #[serde(default)]
    pub unfinished: bool,
    /// Name of a fixture whose volumes are there too.
    #[serde(default)]
    pub fixture: Option<String>,
    /// CSI drivers that are installed.
    #[serde(default)]
    pub drivers: Vec<String>,
    /// Classes.
    #[serde(default)]
    pub classes: Vec<Map<String, Value>>,
    /// Volumes.
    #[serde(default)]
    pub volumes: Vec<Map<String, Value>>,
    /// Claims.
    #[serde(default)]
    pub claims: Vec<Map<String, Value>>,
    /// Pods.
    #[serde(default)]
    pub pods: Vec<Map<String, Value>>,
    /// Names of nodes.
    #[serde(default)]
    pub nodes: Vec<String>,
    /// What happens later, each after everything before has come to rest.
    #[serde(default)]
    pub when: Vec<Stage>,
    /// Who wins depends on who comes first, so a fault may change the end.
    #[serde(default)]
    pub racing: bool,
    /// What differs afterwards.
    #[serde(default)]
    pub then: Then,
    /// `Type Reason message`, each a prefix, in order.
    #[serde(default)]
    pub events: Vec<String>,
    /// What was measured, such as `took provision vendor.com/v 60s`; not compared where it is left out.
    #[serde(default)]
    pub measures: Option<Vec<String>>,
    /// The writes, by what they are for, in order; not compared where they are left out.
    #[serde(default)]
    pub writes: Option<Vec<String>>,
    /// Labels of reasons why something waited at one time or other.
    #[serde(default)]
    pub waited: Vec<String>,
    /// Label of the reason of the last decision about the first claim or volume.
    #[serde(default)]
    pub reason: Option<String>,
    /// The volume the first claim's first decision takes; `none` for none.
    #[serde(default)]
    pub chooses: Option<String>,
}

/// Something that happens later.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// New or replaced volumes.
    #[serde(default)]
    pub volumes: Vec<Map<String, Value>>,
    /// New or replaced claims.
    #[serde(default)]
    pub claims: Vec<Map<String, Value>>,
    /// New or replaced classes.
    #[serde(default)]
    pub classes: Vec<Map<String, Value>>,
    /// New or replaced pods.
    #[serde(default)]
    pub pods: Vec<Map<String, Value>>,
    /// Names of objects that are deleted.
    #[serde(default)]
    pub delete: Vec<String>,
    /// Merge patches of objects, by name; of a recycler pod without the end of its name.
    #[serde(default)]
    pub patch: BTreeMap<String, Value>,
    /// How much time passes before.
    #[serde(default)]
    pub minutes: u64,
}

/// A stage with whole objects.
#[derive(Clone, Default)]
pub struct Later {
    /// By URL path.
    pub objects: BTreeMap<String, Value>,
    /// Names.
    pub delete: Vec<String>,
    /// Merge patches by name.
    pub patch: BTreeMap<String, Value>,
    /// How much time passes before.
    pub minutes: u64,
}

/// Changed fields of the forms, by name.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Then {
    /// Of volumes.
    pub volumes: BTreeMap<String, Map<String, Value>>,
    /// Of claims.
    pub claims: BTreeMap<String, Map<String, Value>>,
    /// Names of objects that are gone.
    pub gone: Vec<String>,
    /// Objects that are new, by path; `null` for any content.
    pub made: BTreeMap<String, Value>,
}

/// Objects of a case: what the server stores, and what our tables show where that differs.
#[derive(Clone, Default)]
pub struct Start {
    /// Whether dynamic provisioning is off.
    pub no_provisioning: bool,
    /// Whether volumes are recycled.
    pub recycler: bool,
    /// Whether the host-path plugin provisions and deletes.
    pub host_path: bool,
    /// How many writes of a kind are denied.
    pub denied: BTreeMap<String, usize>,
    /// Kinds of writes out of which a webhook takes the change.
    pub stripped: BTreeSet<String>,
    /// How many directories cannot be made.
    pub unmakable: usize,
    /// How many directories cannot be removed.
    pub unremovable: usize,
    /// By URL path.
    pub server: BTreeMap<String, Value>,
    /// By URL path: another content, or `None` for not there.
    pub cache: BTreeMap<String, Option<Value>>,
}

impl Case {
    /// `v`, `c` and `u` with or without a suffix, for this case.
    pub fn expand(&self, text: &str) -> String {
        for (short, long) in [("v", "volume"), ("c", "claim"), ("u", "uid")] {
            if let Some(rest) = text.strip_prefix(short)
                && (rest.is_empty() || rest.starts_with('-'))
            {
                return format!("{long}{}{rest}", self.id);
            }
        }
        text.to_owned()
    }

    /// The same, also behind the prefix of recycler pods.
    fn expand_pod(&self, text: &str) -> String {
        match text.strip_prefix("recycler-for-") {
            Some(volume) => format!("recycler-for-{}", self.expand(volume)),
            None => self.expand(text),
        }
    }

    /// The objects the case starts with.
    pub fn start(&self, fixtures: &BTreeMap<String, Vec<Map<String, Value>>>) -> Start {
        let mut start = Start {
            no_provisioning: self.no_provisioning,
            recycler: self.recycler,
            host_path: self.host_path,
            denied: self.denied.clone(),
            stripped: self.stripped.clone(),
            unmakable: self.unmakable,
            unremovable: self.unremovable,
            ..Start::default()
        };
        for name in &self.nodes {
            let node = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}});
            start.server.insert(format!("/api/v1/nodes/{name}"), node);
        }
        for name in &self.drivers {
            let driver = json!({"metadata": {"name": name, "uid": name, "resourceVersion": "1"}});
            start.server.insert(format!("{DRIVERS}{name}"), driver);
        }
        let fixture = self.fixture.as_ref().map(|name| &fixtures[name]);
        for form in fixture.into_iter().flatten().chain(&self.volumes) {
            place(&mut start, form, |form| self.volume(form));
        }
        for form in &self.claims {
            place(&mut start, form, |form| self.claim(form));
        }
        for form in &self.classes {
            place(&mut start, form, Self::class);
        }
        for form in &self.pods {
            place(&mut start, form, |form| self.pod(form));
        }
        start
    }

    /// What happens later.
    pub fn later(&self) -> Vec<Later> {
        let stage = |stage: &Stage| {
            let mut case = self.clone();
            case.fixture = None;
            case.drivers.clear();
            case.volumes.clone_from(&stage.volumes);
            case.claims.clone_from(&stage.claims);
            case.classes.clone_from(&stage.classes);
            case.pods.clone_from(&stage.pods);
            Later {
                objects: case.start(&BTreeMap::new()).server,
                delete: stage.delete.iter().map(|name| self.expand(name)).collect(),
                patch: stage.patch.iter().map(|(name, body)| (self.expand_pod(name), body.clone())).collect(),
                minutes: stage.minutes,
            }
        };
        self.when.iter().map(stage).collect()
    }

    /// The case with everything that has happened, without what differs at the end.
    pub fn staged(&self) -> Self {
        let mut case = self.clone();
        for stage in &self.when {
            for (forms, new, default) in [
                (&mut case.volumes, &stage.volumes, "v"),
                (&mut case.claims, &stage.claims, "c"),
                (&mut case.classes, &stage.classes, "class"),
                (&mut case.pods, &stage.pods, "pod"),
            ] {
                let name = |form: &Map<String, Value>| self.expand(text(form, "name").unwrap_or(default));
                let gone: Vec<String> = stage.delete.iter().map(|name| self.expand(name)).collect();
                forms.retain(|form| {
                    !gone.contains(&name(form)) && !new.iter().any(|new| name(new) == name(form))
                });
                forms.extend(new.clone());
            }
            case.drivers.retain(|driver| !stage.delete.contains(driver));
        }
        case
    }

    /// The objects the case ends with.
    pub fn end(&self, fixtures: &BTreeMap<String, Vec<Map<String, Value>>>) -> BTreeMap<String, Value> {
        let mut case = self.staged();
        let change =
            |forms: &mut Vec<Map<String, Value>>, then: &BTreeMap<String, Map<String, Value>>, default| {
                for (name, fields) in then {
                    let wanted = self.expand(name);
                    let form = forms
                        .iter_mut()
                        .find(|form| self.expand(text(form, "name").unwrap_or(default)) == wanted)
                        .unwrap_or_else(|| panic!("{name} is not in the case"));
                    form.extend(fields.clone());
                }
            };
        change(&mut case.volumes, &self.then.volumes, "v");
        change(&mut case.claims, &self.then.claims, "c");
        let mut objects = case.start(fixtures).server;
        let gone: Vec<String> = self.then.gone.iter().map(|name| self.expand(name)).collect();
        objects.retain(|path, _| !gone.iter().any(|name| path.rsplit('/').next() == Some(name)));
        objects.extend(self.then.made.clone());
        objects
    }
}

fn place(
    start: &mut Start,
    form: &Map<String, Value>,
    build: impl Fn(&Map<String, Value>) -> (String, Value),
) {
    let mut form = form.clone();
    let cached = form.remove("cached");
    let stored = form.remove("stored").and_then(|stored| stored.as_bool()).unwrap_or(true);
    let (path, object) = build(&form);
    if stored {
        start.server.insert(path.clone(), object);
    } else {
        start.cache.insert(path.clone(), Some(object));
    }
    match cached {
        None => {}
        Some(Value::Bool(false)) => {
            start.cache.insert(path, None);
        }
        Some(Value::Object(other)) => {
            form.extend(other);
            let mut stale = build(&form).1;
            stale["metadata"]["resourceVersion"] = json!("0");
            start.cache.insert(path, Some(stale));
        }
        Some(other) => panic!("cached: {other}"),
    }
}
