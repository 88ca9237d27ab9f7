//! Who keeps volumes waiting, by driver: counted from what waits when scraped, and of attachments as they come and go.
//!
//! In: the waits of all volumes on nodes, and the VolumeAttachments. Out: gauges that are there on the replica alone
//! that decides, as it alone knows.

use std::sync::Arc;

use apiserver::{
    ids::{AttachmentName, DriverName},
    kinds::VolumeAttachment,
    tables::Objects,
};
use k8s_openapi::jiff::Timestamp;
use prometheus::{GaugeVec, Opts};

use super::{
    reasons::{AttachDetachKey, AttachDetachReason, NodeVolumeKey},
    state::desired::volume_name::VolumeKind,
};
use crate::{
    controller::report::board::Board,
    metrics::{self, Metrics, Tally, bounded::Bounded, float, register_counted},
};

/// Registers the gauges.
///
/// # Errors
/// See [`Metrics::register`].
pub fn register(
    board: Arc<Board<AttachDetachKey, AttachDetachReason>>,
    objects: &Objects,
    metrics: &Metrics,
) -> Result<(), prometheus::Error> {
    let gauge = |name, help, labels: &[&str]| GaugeVec::new(Opts::new(name, help), labels);
    let gauges = [
        gauge(
            "mooring_foreign_volume_attachments",
            "VolumeAttachments of other writers, which mooring does not change; only on the leader",
            &[],
        )?,
        gauge(
            "mooring_attacher_backlog",
            "VolumeAttachments that their driver's external-attacher has neither attached nor detached \
             nor refused with an error; only on the leader",
            &["driver"],
        )?,
        gauge(
            "mooring_force_detach_pending",
            "Volumes that will be detached by force unless their node unmounts them; only on the leader",
            &["driver"],
        )?,
        gauge(
            "mooring_next_force_detach_timestamp_seconds",
            "Time of the next forced detach, in seconds since 1970; absent if none is pending",
            &[],
        )?,
        gauge(
            "mooring_detach_oldest_seconds",
            "Seconds since the oldest pending deletion of a VolumeAttachment began; absent without one",
            &["driver"],
        )?,
    ];
    let drivers = metrics::drivers(metrics);
    let pending = Tally::of(&objects.attachments, |attachment: &VolumeAttachment| {
        let VolumeAttachment { metadata, spec, status } = attachment;
        let deleted = metadata.deletion_timestamp.as_deref().copied();
        // An error is an answer.
        let is_silent = match deleted {
            Some(_) => status.detach_error.is_none(),
            None => !status.attached && status.attach_error.is_none(),
        };
        (is_silent || deleted.is_some()).then(|| (spec.attacher.clone(), deleted, is_silent))
    });
    register_counted(metrics, gauges, move |gauges| count(&board, &pending, &drivers, gauges))
}

fn count(
    board: &Board<AttachDetachKey, AttachDetachReason>,
    pending: &Tally<(DriverName, Option<Timestamp>, bool)>,
    drivers: &Bounded,
    [foreign, attachments, forced, next_force, oldest]: &[GaugeVec; 5],
) {
    let others = board.count_settled(AttachDetachKey::Foreign(AttachmentName::from(""))..);
    foreign.with_label_values::<&str>(&[]).set(float(others));
    if !board.leads() {
        return;
    }
    let mut next: Option<Timestamp> = None;
    board.for_each(|key, wait| {
        let AttachDetachReason::NodeVolume(_, Some(waiting), _) = &wait.reason else { return };
        let AttachDetachKey::NodeVolume(NodeVolumeKey { volume, .. }) = key else { return };
        let Some(at) = waiting.forced_at() else { return };
        let driver = match volume.kind() {
            VolumeKind::Csi => volume.driver_and_handle().0,
            VolumeKind::NoOp => volume.plugin(),
        };
        forced.with_label_values(&[drivers.shown(driver)]).inc();
        next = next.into_iter().chain([at]).min();
    });
    if let Some(at) = next {
        next_force.with_label_values::<&str>(&[]).set(seconds(at));
    }
    let now = seconds(Timestamp::now());
    for ((driver, deleted, is_silent), count) in pending.rows() {
        let driver = drivers.shown(driver.as_str());
        if is_silent {
            attachments.with_label_values(&[driver]).add(float(count));
        }
        if let Some(since) = deleted {
            let oldest = oldest.with_label_values(&[driver]);
            // The API server's clock may be ahead of ours.
            oldest.set(oldest.get().max(now - seconds(since)));
        }
    }
    // Who was seen stays, with 0, so that a backlog that has ended does not look like a gap.
    for driver in drivers.seen() {
        attachments.with_label_values(&[&driver]).add(0.0);
        forced.with_label_values(&[&driver]).add(0.0);
    }
}

fn seconds(at: Timestamp) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "far from 2^53 milliseconds")]
    let millis = at.as_millisecond() as f64;
    millis / 1_000.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apiserver::ids::{DriverName, NodeName};
    use serde_json::json;
    use tokio::time::Instant;

    use super::*;
    use crate::{
        attach_detach::{
            decide::{force::Unforced, verdict::Waiting},
            phases::Progress,
            reasons::{AttachState, Report},
            state::{
                actual::{NodeVolume, node::NodeDoubt},
                desired::volume_name::VolumeId,
            },
        },
        controller::report::reporter::Reporter,
    };

    #[test]
    fn a_leader_counts_by_driver_who_is_waited_for_and_what_is_to_be_forced() {
        let (metrics, objects) = (Metrics::default(), Objects::default());
        let reporter = Reporter::default();
        let board = reporter.board();
        register(Arc::clone(&board), &objects, &metrics).unwrap();
        let now = Instant::now();
        let due = |second| Unforced::Until(Timestamp::from_second(second).unwrap());
        let of_another = |second: Option<i64>| {
            let at = second.map(|second| Timestamp::from_second(second).unwrap());
            Unforced::Distrusted(NodeDoubt::AnotherMachine(at))
        };
        let failed = Waiting::AttachError { message: "no".to_owned(), at: None };
        let cases = [
            ("a", "1", Waiting::WaitingForAttacher),
            ("a", "2", failed),
            ("a", "3", Waiting::DetachWaitingForUnmount { unforced: due(700) }),
            ("b", "4", Waiting::DetachWaitingForNode { unforced: due(400) }),
            ("b", "5", Waiting::DetachWaitingForUnmount { unforced: Unforced::NodeReady }),
            ("c", "6", Waiting::DetachWaitingForUnmount { unforced: of_another(None) }),
            ("c", "7", Waiting::DetachWaitingForUnmount { unforced: of_another(Some(500)) }),
        ];
        let node = NodeName::from("n");
        let progress = Progress::of(&NodeVolume::default(), 0, None);
        for (driver, handle, waiting) in cases {
            let volume = VolumeId::csi(&DriverName::from(driver), handle);
            let key = AttachDetachKey::NodeVolume(NodeVolumeKey::new(&volume, &node));
            let reason = AttachDetachReason::NodeVolume(AttachState::Attached, Some(waiting), progress);
            reporter.take(Report::of(key, reason), now, |_, _| ());
        }
        let since = Timestamp::now().checked_sub(Duration::from_mins(20)).unwrap();
        let attachment = json!({
            "metadata": {"name": "csi-1", "uid": "u", "resourceVersion": "1", "deletionTimestamp": since.to_string()},
            "spec": {"attacher": "a", "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
        });
        objects.apply::<VolumeAttachment>(serde_json::from_value(attachment).unwrap());
        let statuses = [json!({}), json!({"attached": true}), json!({"attachError": {"message": "no"}})];
        for (number, status) in statuses.into_iter().enumerate() {
            let attachment = json!({
                "metadata": {"name": format!("csi-d{number}"), "uid": "u", "resourceVersion": "2"},
                "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "pv"}},
                "status": status,
            });
            objects.apply::<VolumeAttachment>(serde_json::from_value(attachment).unwrap());
        }
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
        assert_eq!(shown("mooring_attacher_backlog{driver=\"d\"}"), Some(1.0), "also what no reason names");
        assert_eq!(shown("mooring_force_detach_pending{driver=\"a\"}"), Some(1.0));
        assert_eq!(shown("mooring_force_detach_pending{driver=\"b\"}"), Some(1.0));
        assert_eq!(shown("mooring_force_detach_pending{driver=\"c\"}"), Some(1.0));
        assert_eq!(shown("mooring_next_force_detach_timestamp_seconds"), Some(400.0));
        let oldest = shown("mooring_detach_oldest_seconds{driver=\"a\"}").unwrap();
        assert!((1_199.0..1_300.0).contains(&oldest), "{oldest}");
        assert_eq!(shown("mooring_detach_oldest_seconds{driver=\"b\"}"), None);
    }
}
