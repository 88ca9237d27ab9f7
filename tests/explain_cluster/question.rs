//! A case, the question that it types after `mooring`, and the answer.

use apiserver::ids::{ClaimKey, PodKey};
use mooring::explain::{
    doctor::doctor,
    drain::drain,
    explain,
    read::Question,
    repair::{Repair, repair},
    report::Verdict,
    sheet::{
        Printed,
        text::{Style, text},
    },
    snapshot::Snapshot,
    whatif::{WhatIfChange, whatif},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cluster::{self, Cluster};

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
// The story on the real server reads what is asked of which cluster alone.
#[allow(dead_code)]
pub struct Case {
    /// What it shows.
    pub name: String,
    /// The question, as it is typed after `mooring`.
    pub ask: String,
    /// What is true, by hand alone: phrases that the answer has, and has not, and its exit code.
    #[serde(default)]
    pub says: Vec<String>,
    #[serde(default)]
    pub never: Vec<String>,
    #[serde(default)]
    pub exit: Option<u8>,
    pub given: Cluster,
    /// An earlier look, for rates.
    #[serde(default)]
    pub earlier: Option<Cluster>,
    /// The manifest, for `whatif bind`.
    #[serde(default)]
    pub manifest: Value,
}

// The story on the real server compares the JSON alone.
#[allow(dead_code)]
pub struct Answer {
    pub text: String,
    pub json: Value,
    pub exit: u8,
}

impl Case {
    /// The question; what is in `shop` is in this namespace.
    pub fn question(&self, namespace: &str) -> Question {
        let claim = |name: &str| ClaimKey::new(namespace, name);
        let change = match self.words().as_slice() {
            ["doctor", "-n", other] if *other != "shop" => return Question::Cluster((*other).to_owned()),
            ["doctor", ..] => return Question::Cluster(namespace.to_owned()),
            ["node", name, ..] => return Question::Drain((*name).into()),
            ["repair", rest @ ..] => {
                return Question::Repair(match rest {
                    ["relink", name, volume] => Repair::Relink(claim(name), (*volume).into()),
                    ["free", volume] => Repair::Free((*volume).into()),
                    ["unstick", volume, "on", node] => {
                        Repair::Unstick(cluster::attachment_name(volume, node))
                    }
                    ["unstick", name] => Repair::Unstick((*name).into()),
                    other => panic!("{other:?} is no repair"),
                });
            }
            ["whatif", "bind"] => WhatIfChange::Bind(namespace.to_owned(), Box::new(self.manifest.clone())),
            ["whatif", "taint", node] => WhatIfChange::Taint((*node).into()),
            ["whatif", "delete-node", node] => WhatIfChange::DeleteNode((*node).into()),
            ["whatif", "delete", "pvc", name] => WhatIfChange::DeleteClaim(claim(name)),
            ["whatif", "delete", "vac", name] => WhatIfChange::DeleteAttributesClass((*name).into()),
            ["whatif", "delete", "pod", name] => WhatIfChange::DeletePod(PodKey::new(namespace, name)),
            other => panic!("{other:?} is no question"),
        };
        Question::Change(change)
    }

    /// What is answered to it of this cluster.
    pub fn answer(&self, question: &Question, snapshot: &Snapshot) -> Answer {
        match (question, self.words().as_slice()) {
            (Question::Object(subject), _) => {
                let found = explain(snapshot, subject);
                answer(&found, found.verdict)
            }
            (Question::Cluster(namespace), words) => {
                let found = doctor(snapshot, words.contains(&"-n").then_some(namespace.as_str()));
                answer(&found, found.verdict)
            }
            (Question::Drain(node), words) => {
                let earlier = self.earlier.as_ref().map(Cluster::snapshot);
                let mut found = drain(snapshot, node, earlier.as_ref());
                found.is_drained = words.contains(&"--drain");
                answer(&found, found.verdict)
            }
            (Question::Change(change), _) => {
                let found = whatif(snapshot, change);
                answer(&found, found.verdict)
            }
            (Question::Repair(what), _) => {
                let found = repair(snapshot, what);
                answer(&found, found.verdict)
            }
        }
    }

    fn words(&self) -> Vec<&str> {
        self.ask.split(' ').collect()
    }
}

fn answer<T: Printed + Serialize>(found: &T, verdict: Verdict) -> Answer {
    Answer {
        text: text(found, Style::default()),
        json: serde_json::to_value(found).unwrap(),
        exit: verdict.exit_code(),
    }
}
