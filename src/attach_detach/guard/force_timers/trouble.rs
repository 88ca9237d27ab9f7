//! When the ConfigMap cannot be read or written: said once, and as long as it stands by an alarm (S6).

use std::mem;

use crate::{
    attach_detach::tell::timers::Said,
    kube_api::call::{CallError, Verb},
};

use super::TimersConfigMap;

/// So many requests in a row without an answer are no accident.
const SILENCES: u32 = 3;

/// What is wrong, if anything is.
#[derive(Clone, Debug, Default)]
pub(super) struct Trouble {
    about: Option<Verb>,
    silences: u32,
    alarm: Option<String>,
    /// Whether the alarm has changed since it was last asked for.
    is_news: bool,
}

impl Trouble {
    /// A request was in vain.
    pub(super) fn goes_on(&mut self, verb: Verb, error: &CallError, place: &TimersConfigMap) -> Option<Said> {
        // A conflict is settled by reading, and who is asked to wait waits.
        if matches!(error, CallError::Conflict(_) | CallError::AlreadyExists(_) | CallError::Throttled { .. })
        {
            return None;
        }
        self.about.get_or_insert(verb);
        self.silences += u32::from(!error.is_certain());
        if self.alarm.is_some() || (!error.is_certain() && self.silences < SILENCES) {
            return None;
        }
        self.is_news = true;
        let TimersConfigMap { namespace, name, .. } = place;
        self.alarm = Some(format!(
            "ConfigMap {namespace}/{name} cannot be kept ({error}): the six minutes of nodes that are not Ready begin \
             anew with each restart and each change of leader"
        ));
        Some(Said::CannotBeKept { config_map: format!("{namespace}/{name}"), error: error.clone() })
    }

    /// A request did what it should. Returns whether nothing is wrong any more: that the ConfigMap can be read says
    /// nothing of whether it can be written.
    pub(super) fn ends(&mut self, verb: Verb) -> (bool, Option<Said>) {
        if verb == Verb::Get && self.about.is_some_and(|about| about != verb) {
            return (false, None);
        }
        (true, self.reset().then_some(Said::KeptAgain))
    }

    /// There is nothing left to write: nothing comes of what is wrong.
    pub(super) fn is_over(&mut self) -> Option<Said> {
        self.reset().then_some(Said::NoneLeft)
    }

    /// Nothing is wrong any more. Returns whether there was an alarm.
    fn reset(&mut self) -> bool {
        let was_alarmed = self.alarm.is_some();
        *self = Self { is_news: self.is_news || was_alarmed, ..Self::default() };
        was_alarmed
    }

    pub(super) fn alarm(&self) -> Option<&str> {
        self.alarm.as_deref()
    }

    /// Whether the alarm has changed since this was last asked.
    pub(super) fn take_news(&mut self) -> bool {
        mem::take(&mut self.is_news)
    }
}
