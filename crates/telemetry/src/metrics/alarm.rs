//! What an operator has to know at once: a gauge per alarm, and a line in `/readyz`.
//!
//! An alarm is raised by the part that found it and lowered by the same part. While one stands, the
//! process works, but does not do all of what it is for.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use prometheus::IntGaugeVec;

use super::Metrics;

/// The alarms of the process.
#[derive(Clone, Debug)]
pub struct Alarms {
    gauge: IntGaugeVec,
    raised: Arc<Mutex<BTreeMap<&'static str, String>>>,
}

impl Alarms {
    /// Registers the gauge.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let help = "1 while a condition needs an operator, by alarm";
        let gauge = metrics.gauges("mooring_alarm", help, &["alarm"])?;
        Ok(Self { gauge, raised: Arc::default() })
    }

    /// Raises an alarm, says more about one that stands, or lowers it with `None`.
    pub fn set(&self, alarm: &'static str, text: Option<String>) {
        self.gauge.with_label_values(&[alarm]).set(i64::from(text.is_some()));
        match text {
            Some(text) => self.raised.lock().insert(alarm, text),
            None => self.raised.lock().remove(alarm),
        };
    }

    /// The alarms that stand, as `name: text`.
    pub fn raised(&self) -> Vec<String> {
        self.raised.lock().iter().map(|(alarm, text)| format!("{alarm}: {text}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_stands_until_it_is_lowered() {
        let metrics = Metrics::default();
        let alarms = Alarms::new(&metrics).unwrap();
        alarms.set("second_binder", None);
        assert!(metrics.text().unwrap().contains("mooring_alarm{alarm=\"second_binder\"} 0\n"));
        alarms.set("second_binder", Some("pv/a changed".to_owned()));
        assert_eq!(alarms.raised(), ["second_binder: pv/a changed"]);
        assert!(metrics.text().unwrap().contains("mooring_alarm{alarm=\"second_binder\"} 1\n"));
        alarms.set("second_binder", None);
        assert!(alarms.raised().is_empty());
    }
}
