//! Each judge convicts a scripted wrongdoer, and acquits the same story with another author or another order.
//!
//! The stories are in `wrongdoers.yaml`; its words are explained at its top.

use std::{collections::BTreeMap, time::Duration};

use libtest_mimic::Trial;
use serde::Deserialize;
use serde_json::{Value, json};
use test_support::{
    audit::{DAEMON, Entry},
    history::Change,
};
use testbed::actors::{Fact, Step};
use tokio::time::Instant;

use crate::{
    acts::{Script, Undo},
    judges,
    play::{Blind, Record},
    world::Fight,
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Story {
    name: String,
    #[serde(default)]
    convicts: Option<String>,
    /// All judges are asked, those of the promises that have tables of their own, too.
    #[serde(default)]
    all: bool,
    happens: Vec<Happening>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Happening {
    at: u64,
    #[serde(default)]
    by: Option<String>,
    #[serde(default)]
    put: Option<String>,
    #[serde(default)]
    gone: Option<String>,
    /// The disk and machine of a fact.
    #[serde(default)]
    mounted: Option<[String; 2]>,
    #[serde(default)]
    unmounted: Option<[String; 2]>,
    #[serde(default)]
    published: Option<[String; 2]>,
    #[serde(default)]
    unpublished: Option<[String; 2]>,
    /// The daemon is killed for the last time.
    #[serde(default)]
    killed: bool,
    /// It is killed, and begins anew.
    #[serde(default)]
    kill: bool,
    /// The daemon is found to have ended by itself.
    #[serde(default)]
    ended: bool,
    /// The patch is answered with this status.
    #[serde(default)]
    refused: Option<u64>,
    /// For so many seconds the daemon's requests fail, and two replicas lead by a lease.
    #[serde(default)]
    fails: Option<u64>,
    /// For so many seconds the daemon's way to the API server is in trouble.
    #[serde(default)]
    late: Option<u64>,
    /// The watches of all servers are so many seconds late.
    #[serde(default)]
    lags: Option<u64>,
    /// For so many seconds the daemon is not told of volumes.
    #[serde(default)]
    blind: Option<u64>,
    /// The put was sent at that second, and held up on its way.
    #[serde(default)]
    sent: Option<u64>,
    /// A stubborn writer undoes this of an object no more.
    #[serde(default)]
    stops: Option<(Undo, String)>,
    /// So often, so many seconds apart.
    #[serde(default)]
    times: Option<[u64; 2]>,
    #[serde(default)]
    is: Value,
}

pub fn trials() -> Vec<Trial> {
    let stories: Vec<Story> = serde_saphyr::from_str(include_str!("wrongdoers.yaml")).unwrap();
    let trials = stories.into_iter().map(|story| {
        Trial::test(format!("wrongdoer_{}", story.name.replace(' ', "_")), move || {
            let judge = if story.all { judges::judge } else { judges::goods };
            let faults = judge(&record(&story.happens));
            let is_right = match &story.convicts {
                Some(rule) => {
                    !faults.is_empty() && faults.iter().all(|fault| fault.to_string().starts_with(rule))
                }
                None => faults.is_empty(),
            };
            if !is_right {
                return Err(format!("the judges say {faults:?}").into());
            }
            Ok(())
        })
    });
    trials.collect()
}

impl Happening {
    /// What it is besides a write.
    fn befalls(&self, record: &mut Record, at: Instant) {
        let facts = [
            (&self.mounted, Step::Mounted),
            (&self.unmounted, Step::Unmounted),
            (&self.published, Step::Published),
            (&self.unpublished, Step::Unpublished),
        ];
        for (place, step) in facts {
            if let Some([disk, machine]) = place.clone() {
                record.facts.push(Fact { at, disk, machine, step });
            }
        }
        if let Some((undo, name)) = self.stops.clone() {
            record.fights.push(Fight { undo, name, until: at });
        }
        if self.ended {
            record.ended.push(at);
        }
        if self.kill {
            record.kills.push(at);
            record.starts.push(at);
        }
        let until = |seconds| at + Duration::from_secs(seconds);
        if let Some(seconds) = self.fails {
            record.script.has_replicas = true;
            record.faults.push((at, until(seconds)));
        }
        record.script.lags.extend(self.lags.map(Duration::from_secs));
        let kind = Some("persistentvolumes");
        record.blind.extend(self.blind.map(|seconds| Blind { kind, from: at, until: until(seconds) }));
        record.late.extend(self.late.map(|seconds| (at, until(seconds))));
    }
}

fn record(happenings: &[Happening]) -> Record {
    let began = Instant::now();
    let mut record = Record {
        script: Script {
            steps: Vec::new(),
            broken: Some(0),
            has_all: true,
            has_odd_names: false,
            lags: Vec::new(),
            ..Script::of(1)
        },
        changes: Vec::new(),
        requests: Vec::new(),
        facts: Vec::new(),
        times: Vec::new(),
        began,
        kills: Vec::new(),
        starts: Vec::new(),
        ended: Vec::new(),
        late: Vec::new(),
        blind: Vec::new(),
        faults: Vec::new(),
        fights: Vec::new(),
        killed: u64::MAX,
        killed_at: began,
        killed_request: usize::MAX,
    };
    let mut objects: BTreeMap<String, Value> = BTreeMap::new();
    let mut revision = 0;
    for happening in happenings {
        let [times, apart] = happening.times.unwrap_or([1, 0]);
        for time in 0..times {
            let at = began + Duration::from_secs(happening.at + time * apart);
            if record.killed == u64::MAX {
                record.killed_at = at;
            }
            happening.befalls(&mut record, at);
            if happening.killed {
                (record.killed, record.killed_request) = (revision, record.requests.len());
            }
            let Some(key) = happening.put.as_ref().or(happening.gone.as_ref()) else { continue };
            let (resource, name) = key.split_once('/').unwrap();
            let user = if happening.by.as_deref() == Some("daemon") { DAEMON } else { "admin" };
            if let Some(code) = happening.refused {
                let entry = entry(user, "patch", (resource, name), happening, at);
                record.requests.push(Entry { code, ..entry });
                continue;
            }
            revision += 1;
            let before = objects.remove(key);
            let after = happening.put.as_ref().map(|_| {
                let mut object = before.clone().unwrap_or_else(|| whole(name));
                json_patch::merge(&mut object, &happening.is);
                object["metadata"]["resourceVersion"] = revision.to_string().into();
                object
            });
            if let Some(after) = &after {
                objects.insert(key.clone(), after.clone());
            }
            record.times.push((revision, at));
            let verb = if before.is_some() { "patch" } else { "create" };
            let response = json!({ "metadata": { "resourceVersion": revision.to_string() } });
            let entry = entry(user, verb, (resource, name), happening, at);
            let sent = Some(happening.sent.map_or(at, |sent| began + Duration::from_secs(sent)));
            record.requests.push(Entry { code: 200, response, sent, ..entry });
            record.changes.push(Change {
                revision,
                resource: resource.to_owned(),
                name: name.to_owned(),
                before,
                after,
            });
        }
    }
    if record.killed == u64::MAX {
        record.killed_request = record.requests.len();
    }
    record
}

/// A request that is not answered yet.
fn entry(
    user: &str,
    verb: &str,
    (resource, name): (&str, &str),
    happening: &Happening,
    at: Instant,
) -> Entry {
    Entry {
        user: user.to_owned(),
        verb: verb.to_owned(),
        group: String::new(),
        resource: resource.to_owned(),
        name: name.to_owned(),
        code: 0,
        request: happening.is.clone(),
        response: Value::Null,
        at: Some(at),
        sent: Some(at),
    }
}

/// Name, namespace and UID by the key.
fn whole(key: &str) -> Value {
    let (namespace, name) = key.split_once('/').unwrap_or(("", key));
    json!({ "metadata": { "namespace": namespace, "name": name, "uid": format!("uid-{name}") } })
}
