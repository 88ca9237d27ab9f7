//! Findings, gathered: objects that wait for the same cause are one.
//!
//! In: an object, what is wrong with it and why. Out: findings in the order in which people want to read them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use k8s_openapi::jiff::Timestamp;

use super::{Finding, STUCK_AFTER, Severity};
use crate::{explain::subject::Subject, kube_api::ids::PodKey};

/// A disk may be written from two machines: told first, however many pods wait for something else.
pub(super) const ATTACHED_TWICE: &str = "ExclusiveAttachedTwice";

/// So many objects are named; the others are counted.
const EXAMPLES: usize = 3;

/// What makes objects belong together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cause {
    pub severity: Severity,
    pub reason: &'static str,
    /// The class, driver or node.
    pub about: String,
}

/// One object that suffers.
pub(super) struct Victim {
    pub subject: Subject,
    /// What is counted: `claim`.
    pub unit: &'static str,
    pub since: Option<Timestamp>,
    pub next_at: Option<Timestamp>,
}

struct Group {
    finding: Finding,
    pods: BTreeSet<PodKey>,
    /// Namespaces of those who suffer.
    namespaces: BTreeSet<String>,
}

/// All causes so far.
pub(super) struct Groups {
    pub now: Timestamp,
    all: Vec<Group>,
    by_cause: BTreeMap<Cause, usize>,
}

impl Groups {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { now, all: Vec::new(), by_cause: BTreeMap::new() }
    }

    /// Whether a time is so long ago that what began then needs a person.
    pub(super) fn is_stuck(&self, since: Option<Timestamp>) -> bool {
        since.and_then(|since| since.checked_add(STUCK_AFTER).ok()).is_some_and(|until| until < self.now)
    }

    /// Adds an object to its cause. The sentence is that of the first.
    pub(super) fn note(&mut self, cause: Cause, victim: Victim, summary: impl FnOnce() -> String) -> usize {
        let Victim { subject, unit, since, next_at } = victim;
        let index = *self.by_cause.entry(cause).or_insert_with_key(|cause| {
            let finding = Finding {
                severity: cause.severity,
                reason: cause.reason,
                about: cause.about.clone(),
                count: 0,
                unit,
                pods: 0,
                oldest: None,
                next_at: None,
                summary: summary(),
                examples: Vec::new(),
                command: explain(&subject),
            };
            self.all.push(Group { finding, pods: BTreeSet::new(), namespaces: BTreeSet::new() });
            self.all.len() - 1
        });
        if let Some(Group { finding, namespaces, .. }) = self.all.get_mut(index) {
            if let Some(namespace) = subject.namespace().filter(|it| !namespaces.contains(*it)) {
                namespaces.insert(namespace.to_owned());
            }
            finding.count += 1;
            finding.oldest = earlier(finding.oldest, since);
            finding.next_at = earlier(finding.next_at, next_at);
            if finding.examples.len() < EXAMPLES {
                finding.examples.push(subject.json());
            }
        }
        index
    }

    /// Adds a finding that is no group of objects.
    pub(super) fn tell(&mut self, finding: Finding) {
        self.all.push(Group { finding, pods: BTreeSet::new(), namespaces: BTreeSet::new() });
    }

    /// Whether something waits for this already.
    pub(super) fn has(&self, reason: &str, about: &str) -> bool {
        self.by_cause.keys().any(|cause| cause.reason == reason && cause.about == about)
    }

    /// A pod waits because of this cause.
    pub(super) fn suffers(&mut self, index: usize, pod: &PodKey) {
        if let Some(group) = self.all.get_mut(index) {
            group.pods.insert(pod.clone());
        }
    }

    /// Another object explains it better than the first that suffers.
    pub(super) fn explained_by(&mut self, index: usize, subject: &Subject) {
        if let Some(Group { finding, .. }) = self.all.get_mut(index) {
            finding.command = explain(subject);
        }
    }

    /// How many suffer from it so far.
    pub(super) fn count(&self, index: usize) -> usize {
        self.all.get(index).map_or(0, |group| group.finding.count)
    }

    /// The findings, the worst first, and how many pods wait in each namespace. Of one namespace: causes from which
    /// something of it suffers, with all that suffers.
    pub(super) fn finish(mut self, of: Option<&str>) -> (Vec<Finding>, BTreeMap<String, usize>) {
        if let Some(of) = of {
            self.all.retain(|group| {
                group.namespaces.contains(of) || group.pods.iter().any(|pod| pod.namespace() == of)
            });
        }
        let pods = self.all.iter().flat_map(|group| &group.pods);
        let pods: BTreeSet<&PodKey> = pods.filter(|pod| of.is_none_or(|of| pod.namespace() == of)).collect();
        let mut by_namespace = BTreeMap::new();
        for pod in pods {
            *by_namespace.entry(pod.namespace().to_owned()).or_default() += 1;
        }
        let counted = self.all.into_iter().map(|group| Finding { pods: group.pods.len(), ..group.finding });
        let mut findings: Vec<Finding> = counted.collect();
        findings.sort_by(|one, other| {
            let key = |finding: &Finding| {
                let oldest = finding.oldest.unwrap_or(Timestamp::MAX);
                let harms = finding.reason == ATTACHED_TWICE;
                let waits = (Reverse(finding.pods), oldest, Reverse(finding.count));
                (Reverse(harms), finding.severity, waits, finding.reason)
            };
            key(one).cmp(&key(other)).then_with(|| one.about.cmp(&other.about))
        });
        (findings, by_namespace)
    }
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

/// The command that explains an object.
pub(super) fn explain(subject: &Subject) -> Vec<String> {
    let mut words = vec!["mooring".to_owned(), "explain".to_owned(), subject.to_string()];
    if let Some(namespace) = subject.namespace() {
        words.extend(["-n".to_owned(), namespace.to_owned()]);
    }
    words
}
