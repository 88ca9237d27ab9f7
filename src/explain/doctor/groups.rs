//! Findings, gathered: objects that wait for the same cause are one.
//!
//! In: an object, what is wrong with it and why. Out: findings in the order in which people want to read them.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use apiserver::{ids::PodKey, kinds::ObjectRef};
use k8s_openapi::jiff::Timestamp;

use super::findings::{Finding, Severity};
use crate::explain::{exclusive::ATTACHED_TWICE, links::Link, reasons, subject, table::Facts};

/// Nobody rules, so this comes before all that waits for it.
pub(super) const FENCED_WITHOUT_RULER: &str = "FencedWithoutRuler";

/// The same without a fence.
pub(super) const NOBODY_RULES: &str = "NobodyRules";

/// Nobody does the work of some loops, or soon nobody may.
const FENCE_AMISS: &str = "FenceAmiss";

/// So many objects are named; the others are counted.
const EXAMPLES: usize = 3;

/// What makes objects belong together: how bad it is, the reason, and the class, driver or node.
type Cause = (Severity, &'static str, String);

/// One object that suffers, what is counted (`claim`), and since when it does.
pub(super) type Victim = (ObjectRef, &'static str, Option<Timestamp>);

#[derive(Default)]
struct CauseGroup {
    finding: Finding,
    pods: BTreeSet<PodKey>,
    /// Namespaces of those who suffer.
    namespaces: BTreeSet<String>,
}

/// All causes so far.
pub(super) struct Groups<'a> {
    pub now: Timestamp,
    /// Objects of other namespaces are not counted.
    of: Option<&'a str>,
    pub(super) told: BTreeSet<PodKey>,
    all: Vec<CauseGroup>,
    by_cause: BTreeMap<Cause, usize>,
}

impl<'a> Groups<'a> {
    pub(super) fn new(now: Timestamp, of: Option<&'a str>) -> Self {
        let (told, all, by_cause) = Default::default();
        Self { now, of, told, all, by_cause }
    }

    /// Adds an object to the cause that its link names, unless it is of another namespace. The sentence is that of the first.
    /// Pods that suffer from what is told of something else are not objects of that.
    pub(super) fn note(
        &mut self,
        link: &Link,
        about: impl Into<String>,
        (subject, unit, since): Victim,
    ) -> Option<usize> {
        let (namespace, _) = subject.names();
        if self.is_elsewhere(namespace) {
            return None;
        }
        let cause = (Severity::of(link.verdict), reasons::code(&link.step.reason)?, about.into());
        let index = match self.by_cause.get(&cause) {
            Some(index) => *index,
            None => {
                let command = explain(&subject);
                let finding = Finding { command, ..finding(link, &cause, unit) };
                self.all.push(CauseGroup { finding, ..CauseGroup::default() });
                self.by_cause.insert(cause, self.all.len() - 1);
                self.all.len() - 1
            }
        };
        let CauseGroup { finding, namespaces, .. } = self.all.get_mut(index)?;
        if finding.unit == unit {
            if let Some(namespace) = namespace.filter(|it| !namespaces.contains(*it)) {
                namespaces.insert(namespace.to_owned());
            }
            finding.count += 1;
            finding.oldest = earlier(finding.oldest, since);
            finding.next_at = earlier(finding.next_at, link.step.next.as_ref().and_then(|next| next.at));
            if finding.examples.len() < EXAMPLES {
                finding.examples.push(subject::json(&subject));
            }
        }
        Some(index)
    }

    /// Adds a finding that is no group of objects, with the command of its row.
    pub(super) fn tell(
        &mut self,
        case: &str,
        about: &str,
        (count, unit): (usize, &'static str),
        facts: Facts<'_>,
    ) -> Option<&mut Finding> {
        let link = Link::told(&ObjectRef::Class("".into()), case, facts);
        let of = (Severity::of(link.verdict), reasons::code(&link.step.reason)?, about.to_owned());
        let command = link.actions.first().map(|action| action.command.clone()).unwrap_or_default();
        let finding = Finding { count, command, ..finding(&link, &of, unit) };
        self.all.push(CauseGroup { finding, ..CauseGroup::default() });
        self.all.last_mut().map(|group| &mut group.finding)
    }

    /// Whether a namespace is not asked about.
    pub(super) fn is_elsewhere(&self, namespace: Option<&str>) -> bool {
        self.of.is_some_and(|of| namespace.is_some_and(|it| it != of))
    }

    /// What waits for this already.
    pub(super) fn find(&self, reason: &str, about: &str) -> Option<usize> {
        let mut causes = self.by_cause.iter();
        causes.find(|((_, code, of), _)| *code == reason && of == about).map(|(_, index)| *index)
    }

    /// A pod waits because of this cause.
    pub(super) fn suffers(&mut self, index: Option<usize>, pod: &PodKey) {
        if self.is_elsewhere(Some(pod.namespace())) {
            return;
        }
        if let Some(group) = index.and_then(|index| self.all.get_mut(index)) {
            group.pods.insert(pod.clone());
            self.told.insert(pod.clone());
        }
    }

    /// Another object explains it better than the first that suffers.
    pub(super) fn explained_by(&mut self, index: usize, subject: &ObjectRef) {
        if let Some(CauseGroup { finding, .. }) = self.all.get_mut(index) {
            finding.command = explain(subject);
        }
    }

    /// How many suffer from it so far.
    pub(super) fn count(&self, index: usize) -> usize {
        self.all.get(index).map_or(0, |group| group.finding.count)
    }

    /// The findings, the worst first, and how many pods wait in each namespace. Of one namespace: causes from which
    /// something of it suffers.
    pub(super) fn finish(mut self) -> (Vec<Finding>, BTreeMap<String, usize>) {
        if let Some(of) = self.of {
            self.all.retain(|group| {
                let concerns_all =
                    [FENCED_WITHOUT_RULER, NOBODY_RULES, FENCE_AMISS].contains(&group.finding.reason);
                concerns_all || group.namespaces.contains(of) || !group.pods.is_empty()
            });
        }
        let pods: BTreeSet<&PodKey> = self.all.iter().flat_map(|group| &group.pods).collect();
        let mut by_namespace = BTreeMap::new();
        for pod in pods {
            *by_namespace.entry(pod.namespace().to_owned()).or_default() += 1;
        }
        let counted = self.all.into_iter().map(|group| Finding { pods: group.pods.len(), ..group.finding });
        let mut findings: Vec<Finding> = counted.collect();
        findings.sort_by(|one, other| {
            let key = |finding: &Finding| {
                let oldest = finding.oldest.unwrap_or(Timestamp::MAX);
                let rank = [FENCED_WITHOUT_RULER, NOBODY_RULES, ATTACHED_TWICE]
                    .iter()
                    .position(|it| *it == finding.reason);
                let rank = rank.unwrap_or(usize::MAX);
                let waits = (Reverse(finding.pods), oldest, Reverse(finding.count));
                (rank, finding.severity, waits, finding.reason)
            };
            key(one).cmp(&key(other)).then_with(|| one.about.cmp(&other.about))
        });
        (findings, by_namespace)
    }
}

fn finding(link: &Link, cause: &Cause, unit: &'static str) -> Finding {
    let (severity, reason, about) = cause.clone();
    Finding { severity, reason, about, unit, summary: link.step.message.clone(), ..Finding::default() }
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    one.into_iter().chain(other).min()
}

/// The command that explains an object.
pub(super) fn explain(subject: &ObjectRef) -> Vec<String> {
    let mut words = vec!["mooring".to_owned(), "explain".to_owned(), subject::typed(subject)];
    if let (Some(namespace), _) = subject.names() {
        words.extend(["-n".to_owned(), namespace.to_owned()]);
    }
    words
}
