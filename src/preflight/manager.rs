//! kube-controller-manager's arguments, as far as its pods show them. On a managed control plane there are none to see.

use serde_json::Value;

use super::facts::{PreflightFacts, PreflightTopic, items};
use crate::fence::{
    arguments::{controllers, is_on, value, words},
    ask::text,
    controllers::runs_in_kcm,
};

/// Flags that decide whether and how it can be switched.
const TOLD_FLAGS: [&str; 4] =
    ["--controllers", "--use-service-account-credentials", "--leader-elect", "--kube-api-qps"];

/// What its pods say, of all its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manager {
    /// How many pods there are.
    pub pods: usize,
    /// Of each pod: its node, image, and arguments that matter here.
    pub seen: Vec<String>,
    /// Values of `--use-service-account-credentials`, of each pod.
    pub own_users: Vec<bool>,
    /// Values of `--controllers`.
    pub controllers: Vec<String>,
    /// The highest `--kube-api-qps`; KCM's own default of 20, unless it is set.
    pub qps: u64,
}

impl Manager {
    /// Reads it from the list of the pods.
    ///
    /// # Errors
    /// Why the pods could not be read.
    pub fn of(facts: &PreflightFacts) -> Result<Self, &str> {
        Ok(Self::of_pods(facts.of(PreflightTopic::Managers)?))
    }

    /// Reads it from the pods' commands and arguments.
    pub fn of_pods(list: &Value) -> Self {
        let mut manager = Self { qps: 20, ..Self::default() };
        for pod in items(list) {
            let words = pod.get("spec").map(words).unwrap_or_default();
            manager.pods += 1;
            let image = text(pod, "/spec/containers/0/image");
            let told =
                words.iter().copied().filter(|word| TOLD_FLAGS.iter().any(|flag| word.starts_with(flag)));
            let told: Vec<&str> = [image].into_iter().chain(told).collect();
            manager.seen.push(format!("{} has {}", text(pod, "/spec/nodeName"), told.join(" ")));
            manager.own_users.push(is_on(&words, "--use-service-account-credentials", false));
            manager.controllers.push(controllers(&words));
            let qps = value(&words, "--kube-api-qps").and_then(|qps| qps.parse::<f64>().ok());
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
            let qps = qps.map_or(20, |qps| qps.ceil() as u64);
            manager.qps = manager.qps.max(qps);
        }
        manager
    }

    /// Whether its replicas were seen to run with other images or arguments than each other.
    pub fn differs(&self) -> bool {
        let mut each = self.seen.iter().filter_map(|seen| seen.split_once(" has "));
        let first = each.next();
        each.any(|(_, seen)| first.is_some_and(|(_, first)| first != seen))
    }

    /// Whether a replica was seen to write with all its loops as one user, so that no fence tells them apart.
    pub fn shares_a_user(&self) -> bool {
        self.own_users.contains(&false)
    }

    /// Whether every replica has this controller switched off.
    pub fn has_off(&self, controller: &str) -> bool {
        self.pods > 0 && self.controllers.iter().all(|list| !runs_in_kcm(list, controller))
    }

    /// Whether a replica has it switched off, which may lead.
    pub fn may_have_off(&self, controller: &str) -> bool {
        self.controllers.iter().any(|list| !runs_in_kcm(list, controller))
    }
}
