//! The requests to the API server and their users: its audit log.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde_json::Value;
use tokio::time::Instant;

use super::history::Change;

/// User name of the daemon.
pub const DAEMON: &str = "system:serviceaccount:mooring-system:mooring";

/// One request.
#[derive(Clone, Debug)]
pub struct Entry {
    pub user: String,
    pub verb: String,
    pub group: String,
    /// With the subresource: `nodes/status`.
    pub resource: String,
    pub name: String,
    pub code: u64,
    pub request: Value,
    pub response: Value,
    /// When it came, by the clock of tests: the log of a real API server does not tell that.
    pub at: Option<Instant>,
    /// When it was sent, if something on its way may have held it up.
    pub sent: Option<Instant>,
}

impl Entry {
    /// Revision at which a write was committed.
    pub fn revision(&self) -> Option<u64> {
        self.response["metadata"]["resourceVersion"].as_str()?.parse().ok()
    }
}

/// A verb on a resource, as a role grants it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    pub group: String,
    pub resource: String,
    pub verb: String,
    /// Of one object, or of any.
    pub name: Option<String>,
}

/// How long the log is now, in bytes.
pub fn length(path: &Path) -> usize {
    std::fs::metadata(path).map_or(0, |metadata| usize::try_from(metadata.len()).expect("a size"))
}

/// Reads the log from a position on, without dry runs: these write nothing.
pub fn read(path: &Path, from: usize) -> Vec<Entry> {
    entries(path, from, false)
}

/// The dry runs of the log.
pub fn dry_runs(path: &Path) -> Vec<Entry> {
    entries(path, 0, true)
}

fn entries(path: &Path, from: usize, are_dry: bool) -> Vec<Entry> {
    let text = std::fs::read_to_string(path).expect("read the audit log");
    let mut entries = Vec::new();
    for line in text[from..].lines() {
        // The last line may still be being written.
        let Ok(entry) = serde_json::from_str::<Value>(line) else { continue };
        if entry["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun=")) != are_dry {
            continue;
        }
        let object = &entry["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut resource = text(&object["resource"]);
        if let Some(subresource) = object["subresource"].as_str() {
            resource = format!("{resource}/{subresource}");
        }
        entries.push(Entry {
            user: text(&entry["user"]["username"]),
            verb: text(&entry["verb"]),
            group: text(&object["apiGroup"]),
            resource,
            name: text(&object["name"]),
            code: entry["responseStatus"]["code"].as_u64().unwrap_or_default(),
            request: entry["requestObject"].clone(),
            response: entry["responseObject"].clone(),
            at: None,
            sent: None,
        });
    }
    entries
}

/// Who made the changes of objects, as far as the log tells.
#[derive(Debug)]
pub struct Authors<'a> {
    by_revision: BTreeMap<u64, BTreeSet<&'a str>>,
    deletions: Vec<&'a Entry>,
}

impl<'a> Authors<'a> {
    /// The authors of these writes.
    pub fn of(entries: &'a [Entry]) -> Self {
        let mut by_revision: BTreeMap<u64, BTreeSet<&str>> = BTreeMap::new();
        let writes = ["create", "update", "patch", "delete"];
        let done =
            || entries.iter().filter(|entry| entry.code < 300 && writes.contains(&entry.verb.as_str()));
        for entry in done() {
            // A patch that changes nothing is answered with the revision of the last change, so there may be several.
            if let Some(revision) = entry.revision() {
                by_revision.entry(revision).or_default().insert(&entry.user);
            }
        }
        Self { by_revision, deletions: done().filter(|entry| entry.verb == "delete").collect() }
    }

    /// Whether a change is known to be another's than the daemon's.
    pub fn is_by_another(&self, change: &Change) -> bool {
        let users = self.users(change);
        !users.is_empty() && !users.contains(DAEMON)
    }

    /// Who may have made a change. Nobody, if the log does not tell.
    pub fn users(&self, change: &Change) -> BTreeSet<&'a str> {
        match self.by_revision.get(&change.revision) {
            Some(users) => users.clone(),
            None if change.after.is_none() => self.deleters(change),
            None => BTreeSet::new(),
        }
    }

    /// Who asked for the deletion of what is gone, where the answer does not tell the revision.
    fn deleters(&self, change: &Change) -> BTreeSet<&'a str> {
        let uid = change.before.as_ref().map(|before| &before["metadata"]["uid"]);
        let is_it = |entry: &&&Entry| {
            let wanted = &entry.request["preconditions"]["uid"];
            entry.resource == change.resource
                && change.name.ends_with(entry.name.as_str())
                && (wanted.is_null() || Some(wanted) == uid)
        };
        self.deletions.iter().filter(is_it).map(|entry| entry.user.as_str()).collect()
    }
}

/// What the admission plugin OwnerReferencesPermissionEnforcement says to who may not keep an owner for a dependent.
pub const NO_FINALIZERS: &str =
    "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on";

/// The rights that the daemon has made use of, each with the name of the object, if one was named. Refused requests count: they show a missing right.
pub fn rights_used(entries: &[Entry]) -> BTreeSet<Right> {
    let of_daemon = || entries.iter().filter(|entry| entry.user == DAEMON && !entry.resource.is_empty());
    let asked = of_daemon().map(|entry| Right {
        group: entry.group.clone(),
        resource: entry.resource.clone(),
        verb: entry.verb.clone(),
        name: (!entry.name.is_empty()).then(|| entry.name.clone()),
    });
    // That plugin asks for it, which shows in a refusal alone.
    let is_refused =
        |entry: &&Entry| entry.response["message"].as_str().is_some_and(|said| said.contains(NO_FINALIZERS));
    let finalizers = of_daemon().find(is_refused).map(|_| Right {
        group: String::new(),
        resource: "pods/finalizers".to_owned(),
        verb: "update".to_owned(),
        name: None,
    });
    asked.chain(finalizers).collect()
}
