//! When the ConfigMap cannot be read or written: said once, and as long as it stands by an alarm (S6).

use crate::kube_api::call::{CallError, Verb};

use super::TimersConfigMap;

/// So many requests in a row without an answer are no accident.
const SILENCES: u32 = 3;

/// What is wrong, if anything is.
#[derive(Clone, Debug, Default)]
pub(super) struct Trouble {
    about: Option<Verb>,
    silences: u32,
    alarm: Option<String>,
}

impl Trouble {
    /// A request was in vain.
    pub(super) fn goes_on(&mut self, verb: Verb, error: &CallError, place: &TimersConfigMap) {
        // A conflict is settled by reading, and who is asked to wait waits.
        if matches!(error, CallError::Conflict(_) | CallError::AlreadyExists(_) | CallError::Throttled { .. })
        {
            return;
        }
        self.about.get_or_insert(verb);
        self.silences += u32::from(!error.is_certain());
        if self.alarm.is_some() || (!error.is_certain() && self.silences < SILENCES) {
            return;
        }
        let TimersConfigMap { namespace, name, .. } = place;
        tracing::warn!(
            config_map = %format_args!("{namespace}/{name}"),
            %error,
            "the timers of forced detaches cannot be kept: with each restart and each change of leader the six minutes \
             of nodes that are not Ready begin anew. Needed are the verbs get and patch on this ConfigMap, and create \
             on ConfigMaps, in that namespace"
        );
        self.alarm = Some(format!(
            "ConfigMap {namespace}/{name} cannot be kept ({error}): the six minutes of nodes that are not Ready begin \
             anew with each restart and each change of leader"
        ));
    }

    /// A request did what it should. Returns whether nothing is wrong any more: that the ConfigMap can be read says
    /// nothing of whether it can be written.
    pub(super) fn ends(&mut self, verb: Verb) -> bool {
        if verb == Verb::Get && self.about.is_some_and(|about| about != verb) {
            return false;
        }
        if self.alarm.is_some() {
            tracing::info!("the timers of forced detaches are kept again");
        }
        *self = Self::default();
        true
    }

    /// There is nothing left to write: nothing comes of what is wrong.
    pub(super) fn is_over(&mut self) {
        if self.alarm.is_some() {
            tracing::info!("there are no timers of forced detaches left to keep");
        }
        *self = Self::default();
    }

    pub(super) fn alarm(&self) -> Option<&str> {
        self.alarm.as_deref()
    }
}
