//! Who keeps volumes waiting, by driver: counted from what waits when scraped.
//!
//! In: the waits of all volumes on nodes, and the VolumeAttachments. Out: gauges that are there on the replica alone
//! that decides, as it alone knows.

use std::{collections::BTreeMap, sync::Arc};

use apiserver::{ids::AttachmentName, kinds::VolumeAttachment, tables::Objects};
use k8s_openapi::jiff::Timestamp;
use prometheus::{
    Gauge, GaugeVec, IntGauge, IntGaugeVec, Opts,
    core::{Collector, Desc},
    proto::MetricFamily,
};

use super::{
    decide::{force::Unforced, verdict::Waiting},
    desired::volume_name::VolumeKind,
    reasons::{AttachDetachKey, AttachDetachReason, NodeVolumeKey},
};
use crate::{
    controller::report::board::Board,
    metrics::{self, Metrics, bounded::Bounded},
};

/// What is counted of one driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Backlog {
    /// VolumeAttachments that wait for it.
    attachments: i64,
    /// Detaches that are forced unless the kubelet unmounts in time.
    forced: i64,
    /// When the oldest deletion under way began.
    oldest_deletion: Option<Timestamp>,
}

/// The gauges.
#[derive(Clone)]
struct BacklogGauges {
    board: Arc<Board<AttachDetachKey, AttachDetachReason>>,
    objects: Arc<Objects>,
    foreign: IntGauge,
    drivers: Bounded,
    attachments: IntGaugeVec,
    forced: IntGaugeVec,
    next_force: Gauge,
    oldest_deletion: GaugeVec,
}

/// Registers the gauges.
///
/// # Errors
/// See [`Metrics::register`].
pub fn register(
    board: Arc<Board<AttachDetachKey, AttachDetachReason>>,
    objects: Arc<Objects>,
    metrics: &Metrics,
) -> Result<(), prometheus::Error> {
    metrics.register(&BacklogGauges {
        board,
        objects,
        foreign: IntGauge::new(
            "mooring_foreign_volume_attachments",
            "VolumeAttachments of other writers, which mooring does not change; only on the leader",
        )?,
        drivers: metrics::drivers(metrics),
        attachments: IntGaugeVec::new(
            Opts::new(
                "mooring_attacher_backlog",
                "VolumeAttachments that their driver's external-attacher has neither attached nor detached \
                 nor refused with an error; only on the leader",
            ),
            &["driver"],
        )?,
        forced: IntGaugeVec::new(
            Opts::new(
                "mooring_force_detach_pending",
                "Volumes that will be detached by force unless their node unmounts them; only on the leader",
            ),
            &["driver"],
        )?,
        next_force: Gauge::with_opts(Opts::new(
            "mooring_next_force_detach_timestamp_seconds",
            "Time of the next forced detach, in seconds since 1970; absent if none is pending",
        ))?,
        oldest_deletion: GaugeVec::new(
            Opts::new(
                "mooring_detach_oldest_seconds",
                "Seconds since the oldest pending deletion of a VolumeAttachment began; absent without one",
            ),
            &["driver"],
        )?,
    })
}

/// When a detach that waits is forced.
fn forced_at(waiting: &Waiting) -> Option<Timestamp> {
    match waiting {
        Waiting::DetachWaitingForUnmount { unforced: Unforced::Until(at) }
        | Waiting::DetachWaitingForNode { unforced: Unforced::Until(at) } => Some(*at),
        _ => None,
    }
}

/// An error is an answer.
fn is_unanswered(waiting: &Waiting) -> bool {
    matches!(waiting, Waiting::WaitingForAttacher | Waiting::DetachWaitingForAttacher)
}

fn seconds(at: Timestamp) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far from 2^53 milliseconds")]
    let millis = at.as_millisecond() as f64;
    millis / 1_000.0
}

impl BacklogGauges {
    /// What is counted of each driver, and when the next detach is forced.
    fn count(&self) -> (BTreeMap<String, Backlog>, Option<Timestamp>) {
        let mut backlogs: BTreeMap<String, Backlog> = BTreeMap::new();
        let mut next_force: Option<Timestamp> = None;
        self.board.for_each(|key, wait| {
            let AttachDetachReason::NodeVolume(_, Some(waiting), _) = &wait.reason else { return };
            let AttachDetachKey::NodeVolume(NodeVolumeKey { volume, .. }) = key else { return };
            let forced_at = forced_at(waiting);
            if forced_at.is_none() && !is_unanswered(waiting) {
                return;
            }
            let driver = match volume.kind() {
                VolumeKind::Csi => volume.driver_and_handle().0,
                VolumeKind::NoOp => volume.plugin(),
            };
            let backlog = backlogs.entry(self.drivers.shown(driver).to_owned()).or_default();
            backlog.attachments += i64::from(is_unanswered(waiting));
            backlog.forced += i64::from(forced_at.is_some());
            next_force = next_force.into_iter().chain(forced_at).min();
        });
        self.objects.attachments.for_each(|attachment: &VolumeAttachment| {
            let Some(since) = attachment.metadata.deletion_timestamp.as_deref() else { return };
            let driver = self.drivers.shown(attachment.spec.attacher.as_str());
            let oldest = &mut backlogs.entry(driver.to_owned()).or_default().oldest_deletion;
            *oldest = oldest.iter().copied().chain([*since]).min();
        });
        (backlogs, next_force)
    }
}

impl Collector for BacklogGauges {
    fn desc(&self) -> Vec<&Desc> {
        let gauges: [&dyn Collector; 5] =
            [&self.foreign, &self.attachments, &self.forced, &self.next_force, &self.oldest_deletion];
        gauges.into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let leads = self.board.leads();
        let (backlogs, next_force) = if leads { self.count() } else { (BTreeMap::new(), None) };
        let now = Timestamp::now();
        self.oldest_deletion.reset();
        if leads {
            // Who was seen stays, with 0, so that a backlog that has ended does not look like a gap.
            for gauge in [&self.attachments, &self.forced] {
                for driver in self.drivers.seen() {
                    gauge.with_label_values(&[driver.as_str()]).set(0);
                }
            }
        } else {
            self.attachments.reset();
            self.forced.reset();
        }
        for (driver, backlog) in &backlogs {
            self.attachments.with_label_values(&[driver]).set(backlog.attachments);
            self.forced.with_label_values(&[driver]).set(backlog.forced);
            if let Some(since) = backlog.oldest_deletion {
                // The API server's clock may be ahead of ours.
                let age = (seconds(now) - seconds(since)).max(0.0);
                self.oldest_deletion.with_label_values(&[driver]).set(age);
            }
        }
        let foreign = self.board.count_settled(AttachDetachKey::Foreign(AttachmentName::from(""))..);
        self.foreign.set(i64::try_from(foreign).unwrap_or(i64::MAX));
        self.next_force.set(next_force.map_or(0.0, seconds));
        let mut next = self.next_force.collect();
        if next_force.is_none() {
            for family in &mut next {
                family.mut_metric().clear();
            }
        }
        let foreign = self.foreign.collect();
        [foreign, self.attachments.collect(), self.forced.collect(), next, self.oldest_deletion.collect()]
            .concat()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apiserver::ids::{DriverName, NodeName};
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::attach_detach::{
        actual::state::NodeVolume, desired::volume_name::VolumeId, phases::Progress, reasons::State,
    };

    #[test]
    fn a_leader_counts_by_driver_who_is_waited_for_and_what_is_to_be_forced() {
        let (metrics, objects) = (Metrics::default(), Arc::default());
        let board = Arc::new(Board::default());
        register(Arc::clone(&board), Arc::clone(&objects), &metrics).unwrap();
        let now = Instant::now();
        let due = |second| Unforced::Until(Timestamp::from_second(second).unwrap());
        let failed = Waiting::AttachError { message: "no".to_owned(), at: None };
        let cases = [
            ("a", "1", Waiting::WaitingForAttacher),
            ("a", "2", failed),
            ("a", "3", Waiting::DetachWaitingForUnmount { unforced: due(700) }),
            ("b", "4", Waiting::DetachWaitingForNode { unforced: due(400) }),
            ("b", "5", Waiting::DetachWaitingForUnmount { unforced: Unforced::NodeReady }),
        ];
        let node = NodeName::from("n");
        let progress = Progress::of(&NodeVolume::default(), 0, None);
        for (driver, handle, waiting) in cases {
            let volume = VolumeId::csi(&DriverName::from(driver), handle);
            let key = AttachDetachKey::NodeVolume(NodeVolumeKey::new(&volume, &node));
            board.set(
                &key,
                AttachDetachReason::NodeVolume(State::Attached, Some(waiting), progress),
                None,
                now,
            );
        }
        let since = Timestamp::now().checked_sub(Duration::from_mins(20)).unwrap();
        let attachment = json!({
            "metadata": {"name": "csi-1", "uid": "u", "resourceVersion": "1", "deletionTimestamp": since.to_string()},
            "spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
        });
        objects.apply::<VolumeAttachment>(serde_json::from_value(attachment).unwrap());
        let shown = |start: &str| -> Option<f64> {
            let text = metrics.text().unwrap();
            let line = text.lines().find(|line| line.starts_with(start))?;
            line.rsplit_once(' ')?.1.parse().ok()
        };
        let families = ["attacher_backlog", "force_detach_pending", "next_force_detach", "detach_oldest"];
        for family in families {
            assert_eq!(shown(&format!("mooring_{family}")), None, "a standby counts nothing");
        }
        board.lead(now);
        assert_eq!(shown("mooring_attacher_backlog{driver=\"a\"}"), Some(1.0));
        assert_eq!(shown("mooring_attacher_backlog{driver=\"b\"}"), Some(0.0));
        assert_eq!(shown("mooring_force_detach_pending{driver=\"a\"}"), Some(1.0));
        assert_eq!(shown("mooring_force_detach_pending{driver=\"b\"}"), Some(1.0));
        assert_eq!(shown("mooring_next_force_detach_timestamp_seconds"), Some(400.0));
        let oldest = shown("mooring_detach_oldest_seconds{driver=\"a\"}").unwrap();
        assert!((1_199.0..1_300.0).contains(&oldest), "{oldest}");
        assert_eq!(shown("mooring_detach_oldest_seconds{driver=\"b\"}"), None);
    }
}
