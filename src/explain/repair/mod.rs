//! The few patches that people make by hand, each with the proof it demands.
//!
//! In: a snapshot, what is assumed of the binder, and the repair. Out: a refusal that says all that is missing, or a
//! proposal with the exact requests. Every request names the UID and the revision of what was looked at, so that it does
//! nothing to anything else. What a proposal promises of the binder, the binder was asked over a changed copy.
//!
//! No finalizer of an attachment that may be attached is ever taken away, and nothing is concluded from what was not
//! read: what cannot be proven is refused.

mod free;
mod proof;
mod relink;
mod unstick;

pub use self::proof::RepairWrite;

use apiserver::ids::{AttachmentName, ClaimKey, VolumeName};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use self::proof::Proof;
use super::{
    report::{API_VERSION, Verdict},
    sheet::{Item, Printed, Sheet},
    snapshot::Snapshot,
};
/// What is to be repaired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// A claim and its volume are led to each other again, after one of them was made anew.
    Relink(ClaimKey, VolumeName),
    /// A volume that was released becomes available for a claim of the same name.
    Free(VolumeName),
    /// An attachment that nothing will ever take away goes.
    Unstick(AttachmentName),
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Advice {
    /// Version of the form.
    pub api_version: &'static str,
    /// `Repair`.
    pub kind: &'static str,
    /// What was asked for.
    pub repair: String,
    /// Whether there is a proposal.
    pub verdict: Verdict,
    /// All that speaks against it; empty for a proposal.
    pub refused: Vec<String>,
    /// What was proven, a sentence each.
    pub proof: Vec<String>,
    /// What it costs, and what happens next.
    pub consequence: String,
    /// What is to be sent, in this order.
    pub requests: Vec<RepairWrite>,
    /// When it was looked at.
    pub at: Timestamp,
}

/// Whether, and how, something is repaired.
pub fn repair(snapshot: &Snapshot, what: &Repair) -> Advice {
    let mut proof = Proof::default();
    let (asked, proposal) = match what {
        Repair::Relink(claim, volume) => {
            let asked = format!("relink pvc/{} pv/{volume} -n {}", claim.name(), claim.namespace());
            (asked, relink::propose(snapshot, claim, volume, &mut proof))
        }
        Repair::Free(volume) => (format!("free pv/{volume}"), free::propose(snapshot, volume, &mut proof)),
        Repair::Unstick(name) => (format!("unstick va/{name}"), unstick::propose(snapshot, name, &mut proof)),
    };
    let Proof { against, proven, is_missing, is_unseen } = proof;
    let (requests, consequence) = proposal.filter(|_| against.is_empty()).unwrap_or_default();
    let verdict = match requests.as_slice() {
        [] if is_missing => Verdict::NotFound,
        [] if is_unseen => Verdict::Forbidden,
        [] => Verdict::Blocked,
        _ => Verdict::Healthy,
    };
    Advice {
        api_version: API_VERSION,
        kind: "Repair",
        repair: asked,
        verdict,
        refused: against,
        proof: proven,
        consequence,
        requests,
        at: snapshot.taken_at,
    }
}

impl Printed for Advice {
    fn sheet(&self, _: bool) -> Sheet {
        let mut sheet = Sheet::new(self.at, []);
        let title = if self.requests.is_empty() { "REFUSED  " } else { "PROPOSED  " };
        sheet.say(title, self.repair.as_str());
        sheet.notes("  no:  ", &self.refused);
        sheet.notes("  ok:  ", &self.proof);
        let sent =
            |write: &RepairWrite| vec![format!("{} {}", write.method, write.path), write.body.to_string()];
        let requests = self.requests.iter().map(|write| Item { verbatim: sent(write), ..Item::default() });
        sheet.extend(requests);
        sheet.notes("THEN  ", Some(self.consequence.as_str()).filter(|it| !it.is_empty()));
        sheet
    }
}
