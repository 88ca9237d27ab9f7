//! `docs/metrics.md`, printed from what is registered and the table here. `MOORING_WRITE_DOCS=1` writes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    fmt::Write,
    fs,
    path::Path,
    sync::Arc,
};

use apiserver::{
    call::Caller,
    events::EventQueue,
    kinds::{ClaimPhase, VolumePhase},
    leadership::{Leadership, Term},
    tables::Objects,
};
use http::{Request, Response};
use kube::{Client, client::Body};
use prometheus::{core::Desc, proto::MetricType};
use serving::Measures;
use strum::{VariantArray as _, VariantNames as _};
use telemetry::traces::{Outcome, Traces};
use test_support::openmetrics;

use super::{
    Alarms, ApiMetrics, CLIENT, ElectionMetrics, Metrics, OWN, Requester, SERVING, WatchMetrics,
    exemplar::{TraceId, TracedHistogram},
    process, register_expiry,
    slis::Slis,
};
use crate::{
    attach_detach::{
        self, AttachDetachOptions, decide::verdict::Waiting, durations::TOTAL, phases::Phase,
        state::actual::Operation,
    },
    binder::{self, BinderOptions, calls::WriteKind, durations::BindMode, failure::FailureOutcome},
    build_info::BUILD,
    ephemeral::EphemeralVolumes,
    fence::{
        controllers::Controllers,
        metrics::{FenceMetrics, STATES},
    },
    observe::{metrics::ObserveMetrics, mutation::MutationKind, summary::DifferenceKind},
};

/// What upstream has of it.
#[derive(Clone, Copy, PartialEq)]
enum Kcm {
    /// The same.
    Same,
    /// Something like it.
    Like(&'static str),
    /// Nothing.
    None,
}

/// What is promised of it.
#[derive(Clone, Copy, PartialEq)]
enum Stability {
    Kcm,
    Stable,
    Alpha,
}

/// A line of the table: a family, its labels with their values, what upstream has of it, what is promised.
struct MetricRow(&'static str, Vec<(&'static str, String)>, Kcm, Stability);

fn of(values: &[&str]) -> String {
    values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(" ")
}

fn said(text: &str) -> String {
    text.to_owned()
}

/// KCM's, with these labels.
fn kcm(name: &'static str, labels: Vec<(&'static str, String)>) -> MetricRow {
    MetricRow(name, labels, Kcm::Same, Stability::Kcm)
}

fn stable(name: &'static str, labels: Vec<(&'static str, String)>) -> MetricRow {
    MetricRow(name, labels, Kcm::None, Stability::Stable)
}

fn alpha(name: &'static str, labels: Vec<(&'static str, String)>) -> MetricRow {
    MetricRow(name, labels, Kcm::None, Stability::Alpha)
}

#[expect(clippy::too_many_lines, reason = "a table")]
fn table() -> Vec<MetricRow> {
    let driver = || ("driver", said("name of a CSI driver, `other`"));
    let plugin = || said("`kubernetes.io/csi:<driver>`, name of an in-tree plugin");
    let verbs = || of(&["GET", "POST", "PUT", "PATCH", "DELETE"]);
    let host = || ("host", said("host and port of the API server"));
    let status = || said("status, `<error>` without an answer");
    let class = || ("storage_class", said("name, empty for none"));
    let resource = || {
        let kinds = ["nodes", "pods", "persistentvolumes", "persistentvolumeclaims", "volumeattachments"];
        let more = ["storageclasses", "csidrivers", "volumeattributesclasses"];
        ("resource", of(&[&kinds[..], &more[..]].concat()))
    };
    let reason = || ("reason", said("code of a reason, as in events, logs and pages"));
    let protected = ["protected_claim", "protected_volume", "protected_vac"];
    let small = [&protected[..], &["ephemeral_volumes", "expanding_claim"]].concat();
    let kinds = || of(&[&["attachment", "pod_volume", "claim", "volume"][..], &small].concat());
    let phases = |operation| of(&[&Phase::of(operation).map(<&str>::from)[..], &[TOTAL]].concat());
    let claim = || {
        let attributes = ("volume_attributes_class", said("name, empty for none"));
        vec![("namespace", said("name, `_other`")), class(), attributes]
    };
    let queue = || {
        let ours = ["claims", "volumes", "attach", "node-status"];
        let small = ["pvcprotection", "pvprotection", "vacprotection", "ephemeral_volume", "volume_expand"];
        vec![("name", of(&[&ours[..], &small].concat()))]
    };
    let provision = || {
        vec![
            ("plugin_name", said("name of a provisioner or plugin, `other`")),
            ("operation_name", of(&["provision", "delete"])),
        ]
    };
    let writes: Vec<&str> = ["delete_attachment", "patch_node_status"]
        .into_iter()
        .chain(WriteKind::VARIANTS.iter().map(<&str>::from))
        .collect();
    let requests: Vec<&str> =
        WriteKind::VARIANTS.iter().map(<&str>::from).chain(["read", "read_class"]).collect();
    let modes: Vec<&str> = BindMode::VARIANTS.iter().map(<&str>::from).collect();
    let controllers: Vec<&str> =
        Controllers::parse("storage").unwrap().running.iter().map(|controller| controller.name()).collect();
    vec![
        kcm("apiserver_delegated_authn_request_duration_seconds", vec![("code", status())]),
        kcm("apiserver_delegated_authn_request_total", vec![("code", status())]),
        kcm("apiserver_delegated_authz_request_duration_seconds", vec![("code", status())]),
        kcm("apiserver_delegated_authz_request_total", vec![("code", status())]),
        kcm(
            "attach_detach_controller_attachdetach_controller_forced_detaches",
            vec![("reason", of(&["timeout", "out-of-service"]))],
        ),
        kcm(
            "attachdetach_controller_total_volumes",
            vec![
                ("plugin_name", plugin()),
                ("state", of(&["desired_state_of_world", "actual_state_of_world"])),
            ],
        ),
        kcm("ephemeral_volume_controller_create_failures_total", vec![]),
        kcm("ephemeral_volume_controller_create_total", vec![]),
        kcm(
            "kubernetes_healthcheck",
            vec![("name", said("name of a check")), ("type", of(&["healthz", "livez", "readyz"]))],
        ),
        kcm(
            "kubernetes_healthchecks_total",
            vec![
                ("name", said("name of a check")),
                ("type", of(&["healthz", "livez", "readyz"])),
                ("status", of(&["success", "error"])),
            ],
        ),
        kcm("leader_election_master_status", vec![("name", said("name of the lease"))]),
        kcm("leader_election_slowpath_total", vec![("name", said("name of the lease"))]),
        kcm("process_cpu_seconds_total", vec![]),
        kcm("process_max_fds", vec![]),
        kcm("process_open_fds", vec![]),
        kcm("process_resident_memory_bytes", vec![]),
        kcm("process_start_time_seconds", vec![]),
        MetricRow("process_threads", vec![], Kcm::Like("`go_threads`"), Stability::Stable),
        kcm("process_virtual_memory_bytes", vec![]),
        kcm("pv_collector_bound_pv_count", vec![class()]),
        kcm("pv_collector_bound_pvc_count", claim()),
        kcm(
            "pv_collector_total_pv_count",
            vec![("plugin_name", plugin()), ("volume_mode", of(&["Filesystem", "Block"]))],
        ),
        kcm("pv_collector_unbound_pv_count", vec![class()]),
        kcm("pv_collector_unbound_pvc_count", claim()),
        kcm("rest_client_rate_limiter_duration_seconds", vec![("verb", verbs()), host()]),
        kcm("rest_client_request_duration_seconds", vec![("verb", verbs()), host()]),
        kcm("rest_client_request_retries_total", vec![("code", status()), ("verb", verbs()), host()]),
        kcm("rest_client_request_size_bytes", vec![("verb", verbs()), host()]),
        kcm("rest_client_requests_total", vec![("code", status()), ("method", verbs()), host()]),
        kcm("rest_client_response_size_bytes", vec![("verb", verbs()), host()]),
        kcm("retroactive_storageclass_errors_total", vec![]),
        kcm("retroactive_storageclass_total", vec![]),
        kcm("running_managed_controllers", vec![("name", of(&controllers)), ("manager", of(&["mooring"]))]),
        kcm(
            "storage_count_attachable_volumes_in_use",
            vec![("node", said("name")), ("volume_plugin", plugin())],
        ),
        kcm(
            "storage_operation_duration_seconds",
            vec![
                ("volume_plugin", said("`kubernetes.io/csi:<driver>`, `other`")),
                ("operation_name", of(&["volume_attach", "volume_detach"])),
                ("status", of(&["success", "fail-unknown"])),
                ("migrated", of(&["true", "false"])),
            ],
        ),
        kcm("volume_operation_errors_total", provision()),
        kcm("volume_operation_total_errors", provision()),
        kcm("volume_operation_total_seconds", provision()),
        kcm("workqueue_adds_total", queue()),
        kcm("workqueue_depth", queue()),
        kcm("workqueue_longest_running_processor_seconds", queue()),
        kcm("workqueue_queue_duration_seconds", queue()),
        kcm("workqueue_retries_total", queue()),
        kcm("workqueue_unfinished_work_seconds", queue()),
        kcm("workqueue_work_duration_seconds", queue()),
        stable(
            "mooring_alarm",
            vec![(
                "alarm",
                of(&[
                    "etcd_restored",
                    "fence_lost",
                    "fence_unneeded",
                    "second_attach_detach_controller",
                    "second_binder",
                    "writes_not_begun",
                ]),
            )],
        ),
        stable(
            "mooring_api_requests_in_flight",
            vec![("subsystem", of(Requester::VARIANTS) + "; other controllers are not counted")],
        ),
        stable("mooring_attach_e2e_seconds", vec![driver(), ("phase", phases(Operation::Attach))]),
        stable("mooring_attach_overhead_seconds", vec![driver()]),
        stable("mooring_attacher_backlog", vec![driver()]),
        stable("mooring_bind_e2e_seconds", vec![("mode", of(&modes))]),
        alpha(
            "mooring_binder_failed_requests_total",
            vec![("request", of(&requests)), ("outcome", of(FailureOutcome::VARIANTS))],
        ),
        MetricRow(
            "mooring_build_info",
            vec![
                ("commit", said("commit, `unknown`")),
                ("rustc", said("version")),
                ("version", said("version")),
            ],
            Kcm::Like("`kubernetes_build_info`"),
            Stability::Stable,
        ),
        alpha("mooring_claim_templates", vec![]),
        stable("mooring_claims", vec![("phase", of(ClaimPhase::VARIANTS))]),
        stable("mooring_client_certificate_expiry_timestamp_seconds", vec![]),
        stable(
            "mooring_decisions_total",
            vec![("kind", of(&[&["attachment", "claim", "volume"][..], &small].concat())), reason()],
        ),
        stable(
            "mooring_detach_e2e_seconds",
            vec![driver(), ("phase", phases(Operation::Detach)), ("forced", of(&["true", "false"]))],
        ),
        stable("mooring_detach_oldest_seconds", vec![driver()]),
        stable("mooring_detach_overhead_seconds", vec![driver()]),
        stable("mooring_election_fitness", vec![("fitness", of(&["fit", "blind", "unready", "unfenced"]))]),
        alpha("mooring_events_dropped_total", vec![("cause", of(&["queue_full", "failed", "spam"]))]),
        stable("mooring_fence", vec![("state", of(&STATES))]),
        stable("mooring_force_detach_pending", vec![driver()]),
        stable("mooring_foreign_volume_attachments", vec![]),
        stable(
            "mooring_foreign_writes_total",
            vec![("kind", of(&["attachment_created", "node_list_changed", "phase_changed"]))],
        ),
        stable("mooring_guard_refusals_total", vec![("guard", of(&Waiting::GUARDS))]),
        alpha("mooring_http_accepted_connections_total", vec![]),
        alpha("mooring_http_connections", vec![]),
        alpha("mooring_http_connections_ended_total", vec![("reason", of(&["crowded", "overdue"]))]),
        alpha("mooring_http_requests_total", vec![("code", said("status"))]),
        alpha("mooring_log_lines_dropped_total", vec![]),
        stable("mooring_next_force_detach_timestamp_seconds", vec![]),
        alpha("mooring_node_status_volumes_per_patch", vec![]),
        alpha(
            "mooring_planned_keys_total",
            vec![("kind", of(&["pod", "attachment", "name", "volume", "node_volume", "holder", "node"]))],
        ),
        stable("mooring_released_bytes", vec![("storage_class", said("name, empty for none, `_other`"))]),
        stable(
            "mooring_requests_timed_out_total",
            vec![("verb", said("what was asked for")), ("resource", said("of which resource"))],
        ),
        stable("mooring_serving_certificate_expiry_timestamp_seconds", vec![]),
        MetricRow("mooring_tasks", vec![], Kcm::Like("`go_goroutines`"), Stability::Alpha),
        alpha("mooring_traces_total", vec![("outcome", of(Outcome::VARIANTS))]),
        alpha("mooring_unresolved_pod_volumes_total", vec![reason()]),
        stable("mooring_volumes", vec![("phase", of(VolumePhase::VARIANTS))]),
        stable("mooring_waiting", vec![("kind", kinds()), reason()]),
        stable("mooring_waiting_oldest_seconds", vec![("kind", kinds()), reason()]),
        alpha(
            "mooring_watch_events_total",
            vec![resource(), ("type", of(&["added", "modified", "deleted", "bookmark", "error"]))],
        ),
        alpha("mooring_watch_list_duration_seconds", vec![resource()]),
        alpha("mooring_watch_list_objects", vec![resource()]),
        alpha(
            "mooring_watch_lists_total",
            vec![resource(), ("cause", of(&["start", "expired", "gap", "failing", "behind"]))],
        ),
        alpha(
            "mooring_watch_reopened_total",
            vec![resource(), ("cause", of(&["ended", "silent", "failed", "behind"]))],
        ),
        stable("mooring_watch_silence_seconds", vec![resource()]),
        stable("mooring_watch_synced", vec![resource()]),
        stable("mooring_watch_unreadable_objects", vec![resource()]),
        stable("mooring_write_conflicts_total", vec![("op", of(&writes))]),
        alpha(
            "mooring_observe_acts_total",
            vec![
                ("operation", of(&MutationKind::VARIANTS.iter().map(<&str>::from).collect::<Vec<_>>())),
                ("outcome", of(&["mooring_first", "ruler_first", "not_judged", "different"])),
            ],
        ),
        alpha(
            "mooring_observe_differences_total",
            vec![("kind", of(&DifferenceKind::VARIANTS.iter().map(<&str>::from).collect::<Vec<_>>()))],
        ),
    ]
}

/// Everything that a daemon registers.
fn everything() -> [Metrics; 2] {
    let metrics = Metrics::default();
    process::register(&metrics, &BUILD).unwrap();
    process::register_tasks(&metrics, Vec::new()).unwrap();
    // With a file of --tracing-config-file.
    Traces::new(0, &metrics).unwrap();
    for certificate in [SERVING, CLIENT] {
        register_expiry(&metrics, certificate, Arc::new(|| None)).unwrap();
    }
    Measures::new(&metrics).unwrap();
    WatchMetrics::new(&metrics).unwrap();
    ElectionMetrics::new(&metrics, "mooring").unwrap();
    // With --fence.
    FenceMetrics::new(&metrics).unwrap();
    let alarms = Alarms::new(&metrics).unwrap();
    let api = Arc::new(ApiMetrics::new(&metrics, "host").unwrap().with_subsystems(Requester::VARIANTS));
    let (events, _) = EventQueue::new(&metrics).unwrap();
    let server =
        tower::service_fn(|_: Request<Body>| async { Ok::<_, Infallible>(Response::new(Body::empty())) });
    let leadership = Leadership::new(Term::None);
    let caller = Caller::new(Client::new(server, "default"), leadership.clone(), None, api);
    let objects = || Arc::new(Objects::default());
    let (recorder, options) = (events.for_component("test"), AttachDetachOptions::default());
    let of_attachments = (leadership.clone(), recorder.clone());
    attach_detach::runner(
        &objects(),
        &caller,
        of_attachments.0,
        of_attachments.1,
        options,
        (&metrics, alarms.clone()),
        (None, Traces::default()),
    )
    .unwrap();
    let options = (BinderOptions::default(), None);
    let (of_alarms, traces) = ((&metrics, alarms), Traces::default());
    binder::runner(&objects(), &caller, leadership, recorder, options, of_alarms, traces).unwrap();
    EphemeralVolumes::new(objects(), &metrics).unwrap();
    // Of `mooring observe`.
    ObserveMetrics::new(&metrics).unwrap();
    [metrics, Slis::new().unwrap().metrics().clone()]
}

/// What is known of a family before it has a series: its help, its type, and the names of its labels.
struct Family {
    help: String,
    kind: MetricType,
    labels: BTreeSet<String>,
}

fn families() -> BTreeMap<String, Family> {
    let family = |(desc, kind): (Desc, MetricType)| {
        let constant = desc.const_label_pairs.iter().map(|pair| pair.name().to_owned());
        let labels = desc.variable_labels.iter().cloned().chain(constant).collect();
        (desc.fq_name, Family { help: desc.help, kind, labels })
    };
    everything().iter().flat_map(Metrics::described).map(family).collect()
}

fn document(table: &[MetricRow]) -> String {
    let families = families();
    let mut text = String::from(include_str!("reference.md"));
    for (title, is_own) in [("Metrics of mooring", true), ("Metrics of kube-controller-manager", false)] {
        write!(text, "\n## {title}\n").unwrap();
        for MetricRow(name, labels, kcm, stability) in
            table.iter().filter(|row| row.0.starts_with(OWN) == is_own)
        {
            let family = &families[*name];
            let stability = match stability {
                Stability::Kcm => "kcm",
                Stability::Stable => "stable",
                Stability::Alpha => "alpha",
            };
            let unit = super::unit(name).unwrap_or("none");
            let kind = super::kind(family.kind);
            write!(text, "\n### `{name}`\n\n{kind} · unit: {unit} · {stability}").unwrap();
            match kcm {
                Kcm::Same => text.push_str(" · kube-controller-manager: the same\n"),
                Kcm::Like(like) => writeln!(text, " · kube-controller-manager: {like}").unwrap(),
                Kcm::None => text.push_str(" · kube-controller-manager: no equivalent\n"),
            }
            writeln!(text, "\n{}", family.help).unwrap();
            if !labels.is_empty() {
                text.push('\n');
            }
            for (label, values) in labels {
                writeln!(text, "* `{label}`: {values}").unwrap();
            }
        }
    }
    text
}

#[tokio::test]
async fn every_family_is_documented_and_none_that_is_has_vanished() {
    let table = table();
    let mut documented: Vec<&str> = table.iter().map(|row| row.0).collect();
    documented.sort_unstable();
    let families = families();
    let registered: Vec<&str> = families.keys().map(String::as_str).collect();
    assert_eq!(registered, documented, "left what is registered, right what src/metrics/reference.rs knows");
    for MetricRow(name, labels, kcm, stability) in &table {
        let mut shown: Vec<&str> = labels.iter().map(|(label, _)| *label).collect();
        shown.sort_unstable();
        let known: Vec<&str> = families[*name].labels.iter().map(String::as_str).collect();
        assert_eq!(known, shown, "{name}");
        assert_eq!(*kcm == Kcm::Same, *stability == Stability::Kcm, "{name}");
        assert!(!name.starts_with(OWN) || *kcm != Kcm::Same, "{name}");
    }
}

#[tokio::test]
async fn the_page_about_metrics_is_printed_from_what_is_registered() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let expected = document(&table());
    if std::env::var_os("MOORING_WRITE_DOCS").is_some() {
        fs::write(&page, &expected).unwrap();
    }
    let found = fs::read_to_string(&page).unwrap_or_default();
    assert!(
        found == expected,
        "docs/metrics.md is not what is registered: MOORING_WRITE_DOCS=1 writes it again"
    );
}

/// What is ours of all that a daemon registers, with an exemplar, as a parser of OpenMetrics reads it.
#[tokio::test]
async fn openmetrics_is_read_by_a_strict_parser() {
    let [metrics, _] = everything();
    let waits =
        TracedHistogram::new("mooring_waits_seconds", "Waits in seconds", &["of"], &[0.5, 1.0]).unwrap();
    metrics.register_traced(&waits).unwrap();
    waits.observe(&["a\"b\\c\nd"], 0.7, Some(TraceId([0xab; 16])));
    waits.observe(&["e"], 7.0, None);
    let text = metrics.openmetrics().unwrap();
    let (families, exemplars) = openmetrics::read(&text).unwrap();
    assert_eq!((families["mooring_waits_seconds"], exemplars), (2 * 5, 1));
    assert_eq!(families["mooring_build"], 1);
    assert!(families.contains_key("mooring_http_connections"), "{families:?}");
    assert!(families.keys().all(|name| name.starts_with(OWN)), "{families:?}");
    for broken in [
        "# EOF",
        "a 1\n# EOF\n",
        "# TYPE a counter\na 1\n# EOF\n",
        "# TYPE a histogram\na_bucket{le=\"1\"} 1\na_count 1\n# EOF\n",
        "# TYPE a gauge\na 1\na 2\n# EOF\n",
        "# TYPE a gauge\n# UNIT a seconds\na 1\n# EOF\n",
    ] {
        openmetrics::read(broken).expect_err(broken);
    }
}

/// What cannot be checked by a list of names: a unit that is said is the one of the name.
#[tokio::test]
async fn names_of_ours_end_in_their_unit_and_counters_in_total() {
    for (name, family) in families().into_iter().filter(|(name, _)| name.starts_with(OWN)) {
        assert_eq!(name.ends_with("_total"), family.kind == MetricType::COUNTER, "{name}");
        let help = family.help.to_lowercase();
        if let Some(unit) = super::unit(&name) {
            assert!(help.contains(unit), "the help of {name} does not say that it is in {unit}: {help}");
        }
    }
}
