//! What there is to tell of second writers, and the one way in which each controller tells it: metric, log, alarm, and
//! what the debug page shows.

use std::collections::BTreeMap;

use apiserver::wire::rfc3339;
use prometheus::IntCounterVec;
use serde_json::{Value, json};

use super::ForeignWrite;
use crate::{
    controller::report::WallClock,
    metrics::{Alarms, Metrics},
};

/// What there is to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct News {
    /// How often others wrote, by kind.
    counts: BTreeMap<&'static str, u64>,
    /// Who wrote what, as it was read.
    read: Vec<ForeignWrite>,
    /// Whether what is seen has changed.
    pub(super) is_changed: bool,
    /// Whether the signal begins or ends.
    pub(super) turned: Option<bool>,
    pub(super) signal: Option<ForeignWrite>,
    /// All that counts now.
    pub(super) seen: Vec<ForeignWrite>,
}

impl News {
    pub(super) fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }

    pub(super) fn read(&mut self, kind: &'static str, write: ForeignWrite) {
        self.count(kind);
        self.read.push(write);
        self.is_changed = true;
    }

    /// How often others did what is of a kind.
    #[cfg(test)]
    pub(crate) fn counted(&self, kind: &str) -> u64 {
        self.counts.get(kind).copied().unwrap_or_default()
    }
}

/// What a controller is, to people.
#[derive(Clone, Copy, Debug)]
pub struct Role {
    /// Its name.
    pub name: &'static str,
    /// The alarm that there is another one.
    pub alarm: &'static str,
    /// What it does not do meanwhile.
    pub held: &'static str,
    /// Kinds of writes that only it should make.
    pub kinds: &'static [&'static str],
}

/// Tells it.
#[derive(Clone, Debug)]
pub struct Teller {
    role: Role,
    counters: IntCounterVec,
    alarms: Alarms,
}

impl Teller {
    /// Registers the metrics of a role.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(role: Role, metrics: &Metrics, alarms: Alarms) -> Result<Self, prometheus::Error> {
        alarms.set(role.alarm, None);
        let help = "Changes by others to fields that only the running controllers should change, by kind";
        let counters = metrics.counters_of("mooring_foreign_writes_total", help, "kind", role.kinds)?;
        Ok(Self { role, counters, alarms })
    }

    /// Tells it. Returns what the page shows from now on: the alarm, and who wrote what of late.
    pub fn tell(&self, news: &News) -> (Option<String>, Vec<Value>) {
        let Role { name, alarm, held, .. } = self.role;
        for (kind, count) in &news.counts {
            self.counters.with_label_values(&[*kind]).inc_by(*count);
        }
        for write in &news.read {
            let manager = write.manager.as_deref().unwrap_or_default();
            tracing::info!(object = write.object, field = write.field, manager, "written by another");
        }
        let clock = WallClock::now();
        let text = news.signal.as_ref().map(|by| {
            let until = rfc3339(clock.at(by.until));
            format!("another {name} is at work ({by}): {held} until {until} at the earliest")
        });
        match (&text, news.turned) {
            (Some(text), Some(true)) => tracing::error!(alarm, "{text}"),
            (None, Some(false)) => {
                tracing::warn!(alarm, "no other {name} has been seen for a while: going on");
            }
            _ => {}
        }
        self.alarms.set(alarm, text.clone());
        let row = |write: &ForeignWrite| {
            json!({
                "object": write.object,
                "field": write.field,
                "manager": write.manager,
                "until": rfc3339(clock.at(write.until)),
            })
        };
        (text, news.seen.iter().map(row).collect())
    }
}
