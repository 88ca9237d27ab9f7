//! Templates of claims that are still to be made: from the watch event of a new pod until their one reader takes them.
//!
//! In: pods that are new to the watch, whole. Out: each template once. The tables keep none, so that pods whose claims
//! exist cost nothing. Before a reader asks for templates none are kept, of pods that a list tells of neither, nor more
//! than so many: of all these the reader reads the pod.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::Value;

use crate::{
    ids::{PodKey, Uid},
    kinds::ClaimTemplate,
    wire::Encoding,
};

/// So many pods wait at most with their templates, of some kilobytes each.
const MOST: usize = 5_000;

/// The templates of pods that wait.
#[derive(Debug, Default)]
pub struct Templates {
    is_wanted: AtomicBool,
    waiting: Mutex<BTreeMap<PodKey, (Uid, Vec<ClaimTemplate>)>>,
}

impl Templates {
    /// There is a reader from now on: it takes or forgets the templates of each pod that it is told of.
    pub fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// Takes a pod that is new, as the API server wrote it.
    pub fn offer(&self, key: &PodKey, uid: &Uid, (encoding, raw): (Encoding, &Bytes)) {
        if !self.is_wanted.load(Ordering::Relaxed) {
            return;
        }
        let mut waiting = self.waiting.lock();
        if waiting.len() < MOST || waiting.contains_key(key) {
            // One that cannot be read whole is read by the reader, who can report why.
            let templates = ClaimTemplate::all(encoding, raw).unwrap_or_default();
            waiting.insert(key.clone(), (uid.clone(), templates));
        }
    }

    /// Hands out the template of one volume of the pod with that UID.
    pub fn take(&self, key: &PodKey, uid: &Uid, volume: &str) -> Option<Value> {
        let mut waiting = self.waiting.lock();
        let (_, templates) = waiting.get_mut(key).filter(|(known, _)| known == uid)?;
        let at = templates.iter().position(|template| template.volume.as_str() == volume)?;
        Some(templates.swap_remove(at).template)
    }

    /// Drops what is left of a pod.
    pub fn forget(&self, key: &PodKey) {
        self.waiting.lock().remove(key);
    }

    /// How many pods wait.
    pub fn len(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Whether no pod waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{kinds::Pod, tables::Objects};

    fn add(objects: &Objects, name: &str, uid: &str, revision: u64) {
        let volume = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {"a": uid}}}});
        let pod = json!({
            "metadata": {"namespace": "ns", "name": name, "uid": uid, "resourceVersion": revision.to_string()},
            "spec": {"volumes": [volume]},
        });
        let raw = Bytes::from(pod.to_string());
        objects.add(Encoding::Json.object::<Pod>(&raw).unwrap(), (Encoding::Json, &raw));
    }

    #[test]
    fn the_templates_of_a_new_pod_are_handed_out_once_to_who_asks_for_them() {
        let (objects, key) = (Objects::default(), PodKey::new("ns", "p"));
        let templates = objects.templates();
        add(&objects, "p", "u", 1);
        assert!(templates.is_empty(), "nobody has asked");
        templates.want();
        add(&objects, "p", "u", 2);
        assert!(templates.is_empty(), "the pod is known, and its reader was told of it");
        add(&objects, "p", "v", 3);
        assert!(!templates.is_empty());
        assert_eq!(templates.take(&key, &"u".into(), "data"), None, "another pod's");
        assert_eq!(templates.take(&key, &"v".into(), "logs"), None, "another volume's");
        assert_eq!(templates.take(&key, &"v".into(), "data"), Some(json!({"spec": {"a": "v"}})));
        assert_eq!(templates.take(&key, &"v".into(), "data"), None, "it was handed out");
        templates.forget(&key);
        assert!(templates.is_empty());
    }

    #[test]
    fn no_more_wait_than_so_many() {
        let objects = Objects::default();
        objects.templates().want();
        for number in 0..MOST + 5 {
            add(&objects, &format!("p-{number}"), "u", 1);
        }
        assert_eq!((objects.templates().len(), objects.pods.len()), (MOST, MOST + 5));
    }
}
