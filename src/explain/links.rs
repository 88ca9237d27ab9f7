//! The links of a chain, each with its verdict: what the rooms of the kinds put together, and what the answer is made of.

use apiserver::{kinds::ObjectRef, tables::Stored};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    report::{Action, Blocker, Next, Risk, Step, Verdict},
    sidecars::Sidecar,
    subject,
    table::{Facts, Part, Row, fill, find, find_of},
    view::{Missing, View},
};
/// How it stands with one object.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Link {
    /// As it is shown.
    pub step: Step,
    /// Whether a person has to act.
    pub verdict: Verdict,
    /// What may be done about it, and what never.
    pub actions: Vec<Action>,
}

impl Link {
    /// What the table says of a situation.
    pub fn told(subject: &ObjectRef, case: &str, facts: Facts<'_>) -> Self {
        Self::of_row(subject, case, find(case), facts)
    }

    /// What the table says of a reason that several kinds of objects have.
    pub fn told_of(subject: &ObjectRef, code: &str, kind: &str, facts: Facts<'_>) -> Self {
        Self::of_row(subject, code, find_of(code, kind), facts)
    }

    fn of_row(subject: &ObjectRef, case: &str, row: &Row, facts: Facts<'_>) -> Self {
        let (namespace, name) = subject.names();
        let own: Facts<'_> = &[("name", &name), ("namespace", &namespace.unwrap_or_default())];
        let facts = [own, facts].concat();
        let reason = case.split(' ').next().unwrap_or_default().to_owned();
        let message = fill(row.message, &facts);
        let step = Step { object: subject::json(subject), reason, message, ..Step::default() };
        Self { step, verdict: row.verdict, actions: Vec::new() }.say(row, &facts)
    }

    /// Adds what several situations have in common.
    pub fn and(self, case: &str, facts: Facts<'_>) -> Self {
        self.say(find(case), facts)
    }

    fn say(mut self, row: &Row, facts: Facts<'_>) -> Self {
        for part in row.parts {
            match part {
                Part::Also(case) => self = self.say(find(case), facts),
                Part::WaitsFor(kind, name, why) => {
                    let object = object(kind, &fill(name, facts));
                    self.step.blocked_by.push(Blocker { object, why: fill(why, facts) });
                }
                Part::Next(action, condition) => {
                    let condition = Some(fill(condition, facts)).filter(|it| !it.is_empty());
                    let action = (*action).to_owned();
                    self.step.next = Some(Next { action, condition, ..Next::default() });
                }
                Part::Do(risk, text, command) => {
                    let command = command.split_whitespace().map(|word| fill(word, facts)).collect();
                    self.actions.push(Action { risk: *risk, text: fill(text, facts), command });
                }
            }
        }
        self
    }

    /// Another verdict than the table's: of what the situation alone does not decide.
    pub fn verdict(mut self, verdict: Verdict) -> Self {
        self.verdict = verdict;
        self
    }

    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.step.detail = detail.into();
        self
    }

    pub fn since(mut self, since: Option<Timestamp>) -> Self {
        self.step.since = since;
        self
    }

    /// Adds where a side-car of a driver says more than it writes into objects and events.
    pub fn and_log(mut self, view: &View<'_>, driver: &str, sidecar: Sidecar) -> Self {
        let command = match view.sidecars().holder(driver, sidecar) {
            Some((namespace, pod)) => {
                vec!["kubectl", "logs", "-n", namespace, pod, "--all-containers", "--tail=50"]
            }
            None => vec!["kubectl", "get", "leases,pods", "-A"],
        };
        let text = format!("read the log of {driver}'s controller, and the storage's own console");
        let command = command.into_iter().map(str::to_owned).collect();
        self.actions.push(Action { risk: Risk::Safe, text, command });
        self
    }
}

/// The link of an object that is in no table: it does not exist (`absent` says what that means), cannot be read, or was not seen.
pub(super) fn missing<T: Stored>(view: &View<'_>, subject: &ObjectRef, key: &T::Key, absent: &str) -> Link {
    let what = subject::spoken(subject);
    let (case, told) = match view.missing::<T>(key) {
        Missing::Absent => (absent, format!("{what} does not exist")),
        Missing::Unreadable(error) => ("ObjectUnreadable", format!("{what} cannot be read: {error}")),
        Missing::Unseen(why) => ("Forbidden", format!("{what} could not be read: {why}")),
    };
    Link::told(subject, case, &[("told", &told)])
}

/// Some links say nothing that hinders what was asked about.
pub(super) fn set_well(links: &mut [Link], are_meant: impl Fn(&Link) -> bool) {
    for link in links.iter_mut().filter(|link| are_meant(link)) {
        link.verdict = Verdict::Healthy;
    }
}

/// The link that decides: the last of those that stand worst, as what it waits for is what all before it wait for. None if all
/// is well.
pub(super) fn deciding(links: &[Link]) -> Option<&Link> {
    links.iter().filter(|link| link.verdict != Verdict::Healthy).max_by_key(|link| link.verdict)
}

/// An object of the chain; programs of drivers are among them.
fn object(kind: &str, name: &str) -> Value {
    let (namespace, own) = name.split_once('/').unwrap_or(("", name));
    let found = subject::named(kind, namespace, own);
    found.map_or_else(|_| json!({ "kind": kind, "name": name }), |it| subject::json(&it))
}
