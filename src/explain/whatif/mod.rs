//! What would happen, before it is done: nothing is written.
//!
//! In: a snapshot, what is assumed of the controllers, and a change. Out: what both controllers would do next in a copy
//! with that change, where it differs from what they would do without it; and what is assumed of those others who have a
//! hand in it (eviction, pod garbage collection, the kubelet, provisioners), a sentence each.

mod bind;
mod nodes;
mod objects;
mod story;

pub use self::story::{Effect, When};

use apiserver::ids::{AttributesClassName, ClaimKey, NodeName, PodKey};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::{
    report::{API_VERSION, Risk, Verdict},
    sheet::{Item, Printed, Sheet},
    snapshot::{Snapshot, Unseen},
};
/// What is to be tried.
#[derive(Clone, Debug, PartialEq)]
pub enum WhatIfChange {
    /// A claim, as in a manifest, is created in this namespace.
    Bind(String, Box<Value>),
    /// A node is declared out of service.
    Taint(NodeName),
    /// A node's object is deleted.
    DeleteNode(NodeName),
    /// A claim is deleted.
    DeleteClaim(ClaimKey),
    /// A pod is deleted.
    DeletePod(PodKey),
    /// A VolumeAttributesClass is deleted.
    DeleteAttributesClass(AttributesClassName),
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Consequences {
    /// Version of the form.
    pub api_version: &'static str,
    /// `Consequences`.
    pub kind: &'static str,
    /// The change.
    pub change: String,
    /// Whether it does harm (blocked), changes something that lasts (waiting), or not (healthy).
    pub verdict: Verdict,
    /// One sentence.
    pub summary: String,
    /// What happens, the soonest first, and of those the most dangerous.
    pub effects: Vec<Effect>,
    /// What is assumed of others.
    pub assumed: Vec<String>,
    /// When it was looked at.
    pub at: Timestamp,
    /// What could not be read.
    pub unseen: Vec<Unseen>,
}

/// Tries a change.
pub fn whatif(snapshot: &Snapshot, change: &WhatIfChange) -> Consequences {
    let (words, mut story) = match change {
        WhatIfChange::Bind(namespace, claim) => ("bind".to_owned(), bind::story(snapshot, namespace, claim)),
        WhatIfChange::Taint(node) => {
            (format!("taint node/{node}"), nodes::taint(snapshot, node).unwrap_or_else(|it| *it))
        }
        WhatIfChange::DeleteNode(node) => {
            (format!("delete node/{node}"), nodes::delete(snapshot, node).unwrap_or_else(|it| *it))
        }
        WhatIfChange::DeleteClaim(claim) => {
            (format!("delete pvc/{claim}"), objects::delete_claim(snapshot, claim))
        }
        WhatIfChange::DeletePod(pod) => (format!("delete pod/{pod}"), objects::delete_pod(snapshot, pod)),
        WhatIfChange::DeleteAttributesClass(name) => {
            (format!("delete vac/{name}"), objects::delete_attributes_class(snapshot, name))
        }
    };
    story.effects.sort_by(|one, other| {
        let key = |it: &Effect| (it.when, std::cmp::Reverse(it.risk), it.at);
        key(one).cmp(&key(other)).then_with(|| (one.action, &one.object).cmp(&(other.action, &other.object)))
    });
    let worst = story.effects.iter().map(|effect| effect.risk).max();
    let by_risk = match worst {
        Some(Risk::Danger) => Verdict::Blocked,
        Some(Risk::Care) => Verdict::Waiting,
        Some(Risk::Safe) | None => Verdict::Healthy,
    };
    Consequences {
        api_version: API_VERSION,
        kind: "Consequences",
        change: words,
        verdict: story.verdict.unwrap_or(by_risk),
        summary: story.summary,
        effects: story.effects,
        assumed: story.assumed,
        at: snapshot.taken_at,
        unseen: snapshot.unseen.clone(),
    }
}

/// So many effects of a time are printed; JSON has all of them.
const WHATIF_ROWS: usize = 20;

impl Printed for Consequences {
    fn sheet(&self, is_wide: bool) -> Sheet {
        let mut sheet = Sheet::new(self.at, []);
        sheet.say("WHAT IF  ", self.change.as_str());
        sheet.say("    ", self.summary.as_str());
        for (when, title) in [(When::Now, "Now"), (When::Then, "Then"), (When::Later, "Later")] {
            sheet.section(title);
            let effects: Vec<_> = self.effects.iter().filter(|effect| effect.when == when).collect();
            sheet.extend(effects.iter().take(WHATIF_ROWS).map(|effect| {
                let label = match effect.risk {
                    Risk::Safe => "     ",
                    Risk::Care => "  !  ",
                    Risk::Danger => "  !! ",
                };
                let at = effect.at.map(|at| at.strftime(" at %H:%M:%SZ").to_string()).unwrap_or_default();
                Item::new(label, [format!("{} {}{at}: {}", effect.action, effect.object, effect.text).into()])
            }));
            if let Some(more) = effects.len().checked_sub(WHATIF_ROWS).filter(|more| *more > 0) {
                sheet.say("     ", format!("… and {more} more: -o json"));
            }
        }
        sheet.section("");
        sheet.notes("assumed: ", &self.assumed);
        sheet.unseen("not checked: ", &self.unseen, is_wide);
        sheet
    }
}
