//! The log line of one change of an object's state, with fields that stay: dashboards and scripts read them.
//!
//! In: names, phases and codes. Out: one event at level info, of target `mooring::state`. Nothing of an object's
//! content is in it. A change to the same state for the same reason in a later attempt is written once in a while.

use std::time::Duration;

/// Target of the lines, for filters.
pub const STATE_TARGET: &str = "mooring::state";

/// An object as logs name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// `kind/name`, the kind as Kubernetes writes it.
    pub object: String,
    /// Its namespace, if its kind has any.
    pub namespace: Option<String>,
}

impl Named {
    /// An object by its key, which is printed with the namespace, if its kind has any.
    pub fn by(kind: &str, key: &(impl ToString + ?Sized)) -> Self {
        let key = key.to_string();
        let (namespace, name) = key.split_once('/').unzip();
        let object = format!("{kind}/{}", name.unwrap_or(&key));
        Self { object, namespace: namespace.map(str::to_owned) }
    }
}

/// A change of state.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// What changed.
    pub object: Named,
    /// Why it is what it is now: the code that events, metrics and pages have, too.
    pub reason: &'static str,
    /// What it was.
    pub from: &'static str,
    /// What it is.
    pub to: &'static str,
    /// Which attempt this belongs to, from 1.
    pub attempt: u32,
    /// The object's resourceVersion on which it was decided, or that the write brought; none of an object that is
    /// not there.
    pub revision: Option<String>,
    /// How long it was what it was, for the reason it had, if that was seen.
    pub took: Option<Duration>,
    /// The other objects that it concerns, each under its kind: `volume` and `node` of an attachment, `volume` of a claim,
    /// `claim` of a volume.
    pub concerns: Vec<(&'static str, String)>,
}

impl Transition {
    /// Writes the line.
    pub fn log(&self) {
        let Self { object: Named { object, namespace }, reason, from, to, attempt, revision, took, .. } =
            self;
        let of = |kind| self.concerns.iter().find(|(known, _)| *known == kind).map(|(_, name)| name);
        tracing::info!(
            target: STATE_TARGET,
            object,
            namespace,
            reason,
            from,
            to,
            attempt,
            revision,
            took = took.map(seconds),
            volume = of("volume"),
            node = of("node"),
            claim = of("claim"),
            "state changed"
        );
    }
}

/// Seconds, to the microsecond.
pub fn seconds(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e6
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::telemetry::{LoggingFormat, docs::logged};

    /// One of a claim.
    pub(crate) fn example() -> Transition {
        Transition {
            object: Named::by("PersistentVolumeClaim", "shop/data-db-0"),
            reason: "Bound",
            from: "Pending",
            to: "Bound",
            attempt: 1,
            revision: Some("4711".to_owned()),
            took: Some(Duration::from_micros(18_250)),
            concerns: vec![("volume", "pv-local-03".to_owned())],
        }
    }

    #[test]
    fn the_fields_stay_as_they_are() {
        let line = logged(LoggingFormat::Text, || example().log());
        assert_eq!(
            line.split_once(' ').unwrap().1,
            " INFO mooring::state: state changed object=PersistentVolumeClaim/data-db-0 namespace=shop reason=Bound \
             from=Pending to=Bound attempt=1 revision=4711 took=0.01825 volume=pv-local-03\n"
        );
        let gone = Transition { took: None, revision: None, ..example() };
        assert!(!logged(LoggingFormat::Text, || gone.log()).contains("revision"));
    }
}
