//! Metrics of the attach/detach subsystem: KCM's by name, and how many volumes on nodes wait for what.

use std::collections::{BTreeMap, HashMap};

use apiserver::{call::CallError, ids::NodeName, tables::VecMap};
use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGaugeVec, Opts};

use super::end_to_end::{EndToEnd, plugin_name};
use crate::{
    attach_detach::{
        actual::state::ForceReason,
        calls::{AttachmentRequest, Call},
        decide::{scope::Scope, verdict::Waiting},
        desired::volume_name::VolumeId,
    },
    metrics::{Metrics, WriteConflicts},
};

/// What is looked at, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planned {
    /// A pod, for what it needs.
    Pod,
    /// A VolumeAttachment, for what it is about.
    Attachment,
    /// A name that a VolumeAttachment of a volume would have, to see whether the volume explains one.
    Name,
    /// A volume, on some or all of its nodes.
    Volume,
    /// A volume on one node, for what is to be done.
    NodeVolume,
    /// A volume on one node, to see whether it is held there.
    Holder,
    /// A node, for what its status should say.
    Node,
}

impl Planned {
    pub(super) const ALL: [Self; 7] =
        [Self::Pod, Self::Attachment, Self::Name, Self::Volume, Self::NodeVolume, Self::Holder, Self::Node];

    fn label(self) -> &'static str {
        match self {
            Self::Pod => "pod",
            Self::Attachment => "attachment",
            Self::Name => "name",
            Self::Volume => "volume",
            Self::NodeVolume => "node_volume",
            Self::Holder => "holder",
            Self::Node => "node",
        }
    }
}

/// The subsystem's metrics.
#[derive(Clone, Debug)]
pub struct AttachDetachMetrics {
    totals: IntGaugeVec,
    forced: IntCounterVec,
    unresolved: IntCounterVec,
    planned: IntCounterVec,
    refusals: IntCounterVec,
    end_to_end: EndToEnd,
    conflicts: WriteConflicts,
    patches: Histogram,
    in_use: IntGaugeVec,
    counted: HashMap<VolumeId, VecMap<NodeName, Counted>>,
}

/// What a volume on one node adds to the gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Whether the node holds it.
    pub is_attached: bool,
    /// Pods there that need it.
    pub users: i64,
}

/// Volumes in one patch: from a lone one to what a node may have attached.
const PATCH_BUCKETS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// What a write is for, as a label value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WriteOp {
    DeleteAttachment,
    PatchNodeStatus,
}

impl WriteOp {
    /// All that name a UID or a revision; what is created names none.
    const ALL: [Self; 2] = [Self::DeleteAttachment, Self::PatchNodeStatus];

    fn label(self) -> &'static str {
        match self {
            Self::DeleteAttachment => "delete_attachment",
            Self::PatchNodeStatus => "patch_node_status",
        }
    }

    fn of(call: &Call) -> Option<Self> {
        match call {
            Call::Attachment(_, _, AttachmentRequest::Delete(..)) => Some(Self::DeleteAttachment),
            Call::PatchNode(..) => Some(Self::PatchNodeStatus),
            Call::Attachment(_, _, AttachmentRequest::Create(_) | AttachmentRequest::Read(_))
            | Call::ReadNode(_)
            | Call::ReadOwner(..) => None,
        }
    }
}

impl AttachDetachMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    /// See [`Metrics::register`].
    pub fn new(metrics: &Metrics) -> Result<Self, prometheus::Error> {
        let totals = IntGaugeVec::new(
            Opts::new("attachdetach_controller_total_volumes", "Number of volumes in A/D Controller"),
            &["plugin_name", "state"],
        )?;
        metrics.register(&totals)?;
        let counter = |name: &str, help: &str, label: &str, values: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), &[label])?;
            for value in values {
                counter.with_label_values(&[value]);
            }
            metrics.register(&counter)?;
            Ok::<_, prometheus::Error>(counter)
        };
        let forced = counter(
            "attach_detach_controller_attachdetach_controller_forced_detaches",
            "Number of times the A/D Controller performed a forced detach",
            "reason",
            &[ForceReason::Timeout, ForceReason::OutOfService].map(ForceReason::label),
        )?;
        let unresolved = counter(
            "mooring_unresolved_pod_volumes_total",
            "Volumes of pods that could not be attached at the first decision, by reason",
            "reason",
            &[],
        )?;
        let planned = counter(
            "mooring_planned_keys_total",
            "Objects reconciled because something changed, by kind",
            "kind",
            &Planned::ALL.map(Planned::label),
        )?;
        let refusals = counter(
            "mooring_guard_refusals_total",
            "Actions that a safety rule prevented, by rule",
            "guard",
            &Waiting::GUARDS,
        )?;
        let patches = Histogram::with_opts(
            HistogramOpts::new(
                "mooring_node_status_volumes_per_patch",
                "Volumes that one patch of a node's status adds to its list or removes from it",
            )
            .buckets(PATCH_BUCKETS.to_vec()),
        )?;
        metrics.register(&patches)?;
        let in_use = IntGaugeVec::new(
            Opts::new("storage_count_attachable_volumes_in_use", "Measure number of volumes in use"),
            &["node", "volume_plugin"],
        )?;
        metrics.register(&in_use)?;
        Ok(Self {
            totals,
            forced,
            unresolved,
            planned,
            refusals,
            end_to_end: EndToEnd::new(metrics)?,
            conflicts: WriteConflicts::new(metrics, &WriteOp::ALL.map(WriteOp::label))?,
            patches,
            in_use,
            counted: HashMap::new(),
        })
    }

    /// Counts keys that are looked at. What one event makes of these must not grow with the cluster.
    pub fn planned_many(&self, kind: Planned, count: usize) {
        self.planned.with_label_values(&[kind.label()]).inc_by(count as u64);
    }

    /// Counts a volume of a pod that is not in the desired state, and why.
    pub fn unresolved(&self, reason: &'static str) {
        self.unresolved.with_label_values(&[reason]).inc();
    }

    /// Counts a detach although the volume was, or may have been, in use.
    pub fn forced(&self, reason: ForceReason) {
        self.forced.with_label_values(&[reason.label()]).inc();
    }

    /// Sets which of these nodes need and hold a volume, and how many use it there; with [`Scope::All`] no others do.
    pub fn count(&mut self, volume: &VolumeId, scope: &Scope, nodes: &BTreeMap<NodeName, Counted>) {
        if *scope == Scope::All {
            let counted = self.counted.get(volume).into_iter().flat_map(VecMap::keys);
            let gone: Vec<_> = counted.filter(|node| !nodes.contains_key(*node)).cloned().collect();
            for node in gone {
                self.count_on(volume, &node, Counted::default());
            }
        }
        for (node, now) in nodes {
            self.count_on(volume, node, *now);
        }
    }

    fn count_on(&mut self, volume: &VolumeId, node: &NodeName, now: Counted) {
        let before = self.counted.get(volume).and_then(|nodes| nodes.get(node)).copied().unwrap_or_default();
        if now == before {
            return;
        }
        let nodes = self.counted.entry(volume.clone()).or_default();
        if now == Counted::default() {
            nodes.remove(node);
            if nodes.is_empty() {
                self.counted.remove(volume);
            }
        } else {
            nodes.insert(node.clone(), now);
        }
        let plugin = plugin_name(volume);
        let total = |state, now: bool, before: bool| {
            let change = i64::from(now) - i64::from(before);
            self.totals.with_label_values(&[plugin.as_str(), state]).add(change);
        };
        total("desired_state_of_world", now.users > 0, before.users > 0);
        total("actual_state_of_world", now.is_attached, before.is_attached);
        if now.users != before.users {
            let labels = [node.as_str(), plugin.as_str()];
            let gauge = self.in_use.with_label_values(&labels);
            gauge.add(now.users - before.users);
            if gauge.get() == 0 {
                // Nodes come and go; what is not used has no series, as with KCM.
                let _absent = self.in_use.remove_label_values(&labels);
            }
        }
    }

    /// Where it is noted how long attaches and detaches take.
    #[must_use]
    pub fn end_to_end(&self) -> EndToEnd {
        self.end_to_end.clone()
    }

    /// Notes how many volumes a patch of a node's status is about.
    pub fn patches(&self, volumes: usize) {
        #[expect(clippy::cast_precision_loss, reason = "some hundreds")]
        self.patches.observe(volumes as f64);
    }

    /// Counts an answer that says that something had changed meanwhile.
    pub fn answered<T>(&self, call: &Call, result: &Result<T, CallError>) {
        if let (Some(op), Err(CallError::Conflict(_))) = (WriteOp::of(call), result) {
            self.conflicts.count(op.label());
        }
    }

    /// Notes that a safety rule keeps something from being done.
    pub fn refused(&self, guard: &'static str) {
        self.refusals.with_label_values(&[guard]).inc();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apiserver::ids::DriverName;
    use tokio::time::Instant;

    use super::{
        super::phases::{Phase, Progress},
        *,
    };
    use crate::attach_detach::actual::state::Operation;

    #[test]
    fn names_helps_labels_and_buckets_are_those_of_kcm() {
        let registry = Metrics::default();
        let mut metrics = AttachDetachMetrics::new(&registry).unwrap();
        let volume = VolumeId::csi(&DriverName::from("d"), "h");
        let (mut end_to_end, start) = (metrics.end_to_end(), Instant::now());
        let minute = start + Duration::from_mins(1);
        for (node, operation, is_migrated) in
            [("n1", Operation::Attach, false), ("n2", Operation::Detach, true)]
        {
            let node = NodeName::from(node);
            let stands = Some((Phase::Api, true));
            let (may_begin, forced, attempt, is_done) = (true, false, 1, false);
            let asks_migrated = Some(is_migrated);
            let asks = Progress { operation, stands, may_begin, forced, attempt, is_done, asks_migrated };
            end_to_end.follow(&volume, &node, asks, start);
            if is_migrated {
                end_to_end.failed(&volume, &node, operation, minute);
            } else {
                end_to_end.follow(&volume, &node, Progress { stands: None, is_done: true, ..asks }, minute);
            }
        }
        metrics.forced(ForceReason::Timeout);
        let count = |node: &str, users| (NodeName::from(node), Counted { is_attached: true, users });
        metrics.count(&volume, &Scope::All, &[count("n1", 1), count("n2", 3)].into());
        metrics.count(&volume, &Scope::of(&NodeName::from("n3")), &[count("n3", 1)].into());
        metrics.count(&volume, &Scope::of(&NodeName::from("n1")), &[count("n1", 2)].into());
        assert_eq!(
            metrics.totals.with_label_values(&["kubernetes.io/csi:d", "desired_state_of_world"]).get(),
            3
        );
        metrics.count(&volume, &Scope::All, &[count("n1", 2)].into());
        let text = registry.text().unwrap();
        let operation = |name: &str, status: &str, migrated: &str| {
            format!(
                "migrated=\"{migrated}\",operation_name=\"{name}\",status=\"{status}\",volume_plugin=\"kubernetes.io/csi:d\""
            )
        };
        let attach = operation("volume_attach", "success", "false");
        let mut expected = vec![
            "# HELP storage_operation_duration_seconds Storage operation duration".to_owned(),
            format!("storage_operation_duration_seconds_sum{{{attach}}} 60"),
            format!(
                "storage_operation_duration_seconds_count{{{}}} 1",
                operation("volume_detach", "fail-unknown", "true")
            ),
            "# HELP attachdetach_controller_total_volumes Number of volumes in A/D Controller".to_owned(),
            "attachdetach_controller_total_volumes{plugin_name=\"kubernetes.io/csi:d\",state=\"desired_state_of_world\"} 1".to_owned(),
            "attachdetach_controller_total_volumes{plugin_name=\"kubernetes.io/csi:d\",state=\"actual_state_of_world\"} 1".to_owned(),
            "# HELP attach_detach_controller_attachdetach_controller_forced_detaches Number of times the A/D Controller performed a forced detach".to_owned(),
            "attach_detach_controller_attachdetach_controller_forced_detaches{reason=\"timeout\"} 1".to_owned(),
            "attach_detach_controller_attachdetach_controller_forced_detaches{reason=\"out-of-service\"} 0".to_owned(),
            "# HELP storage_count_attachable_volumes_in_use Measure number of volumes in use".to_owned(),
            "storage_count_attachable_volumes_in_use{node=\"n1\",volume_plugin=\"kubernetes.io/csi:d\"} 2".to_owned(),
        ];
        for bound in
            ["0.1", "0.25", "0.5", "1", "2.5", "5", "10", "15", "25", "50", "120", "300", "600", "+Inf"]
        {
            let count =
                u8::from(!["0.1", "0.25", "0.5", "1", "2.5", "5", "10", "15", "25", "50"].contains(&bound));
            expected.push(format!(
                "storage_operation_duration_seconds_bucket{{{attach},le=\"{bound}\"}} {count}"
            ));
        }
        let lines: Vec<&str> = text.lines().collect();
        for line in &expected {
            assert!(lines.contains(&line.as_str()), "{line}\nis missing in\n{text}");
        }
        assert_eq!(text.matches(&format!("_bucket{{{attach}")).count(), 14);
    }
}
