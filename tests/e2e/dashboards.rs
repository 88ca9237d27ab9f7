//! What dashboards and `kubectl describe` show of the binder's work: KCM's metrics, fed, and the component that
//! KCM's events name.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::Api;
use serde_json::{Value, json};
use test_support::{
    cluster::{DRIVER, create, patch},
    daemon::Launch,
};

use crate::{
    replicas::{leader, replica},
    stage::{Stage, Story, story},
};

pub fn stories() -> Vec<Story> {
    vec![
        story("dashboards_show_what_the_binder_does", binder),
        story("dashboards_show_what_attaches_and_detaches", attachments)
            .also_real("A process serves with a certificate, whose end is a metric."),
    ]
}

/// The value of a series, by how its line begins.
fn value(page: &str, series: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(series)).map(|value| value.trim().parse().unwrap())
}

/// An attach, a detach that waits for its driver, a volume whose claim is gone: each family that an operator looks at
/// has a series after it, the leader's alone where the leader alone knows, and every family is documented.
async fn attachments(stage: Stage) {
    let cluster = &stage.cluster;
    let attacher = stage.attacher();
    let (_proxy, daemon, _) = leader(&stage).await;
    let (proxy, launch) = replica(&stage).await;
    let standby = stage.start_daemon(&launch, &proxy).await;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.published("n1", &["v1"]).await;
    daemon.shows(&format!(r#"mooring_attach_overhead_seconds_count{{driver="{DRIVER}"}} 1"#)).await;
    let page = daemon.page("/metrics").await;
    for phase in ["api", "attacher", "publish", "total"] {
        let series = format!(r#"mooring_attach_e2e_seconds_count{{driver="{DRIVER}",phase="{phase}"}}"#);
        assert_eq!(value(&page, &series), Some(1.0), "{series}\n{page}");
    }
    let leads = [
        r#"running_managed_controllers{manager="mooring",name="persistentvolume-attach-detach-controller"}"#,
        r#"running_managed_controllers{manager="mooring",name="persistentvolume-binder-controller"}"#,
    ];
    for series in leads {
        assert_eq!(value(&page, series), Some(1.0), "{series}");
    }
    for series in [
        r#"mooring_decisions_total{kind="attachment",reason="Attached"}"#,
        "mooring_node_status_volumes_per_patch_count",
        "mooring_tasks",
        r#"workqueue_adds_total{name="attach"}"#,
        r#"workqueue_queue_duration_seconds_count{name="attach"}"#,
        r#"workqueue_work_duration_seconds_count{name="attach"}"#,
        r#"workqueue_work_duration_seconds_count{name="node-status"}"#,
        r#"mooring_volumes{phase="Bound"}"#,
        r#"mooring_claims{phase="Bound"}"#,
    ] {
        assert!(value(&page, series).is_some_and(|value| value > 0.0), "{series}\n{page}");
    }
    for series in [
        r#"mooring_api_requests_in_flight{subsystem="attach-detach"}"#,
        r#"mooring_api_requests_in_flight{subsystem="binder"}"#,
        r#"mooring_write_conflicts_total{op="patch_node_status"}"#,
        r#"mooring_write_conflicts_total{op="claim_bound"}"#,
    ] {
        assert!(value(&page, series).is_some(), "{series}\n{page}");
    }
    // One in this process serves nothing.
    let expiry = value(&page, "mooring_serving_certificate_expiry_timestamp_seconds");
    assert_eq!(expiry.is_some(), stage.is_real(), "{page}");
    for family in ["request_size_bytes", "response_size_bytes", "request_duration_seconds"] {
        let series = page.lines().filter(|line| line.starts_with(&format!("rest_client_{family}_count{{")));
        assert!(series.count() >= 3, "{family}: reads, creates and patches\n{page}");
    }

    // The driver is away: the detach waits for it.
    drop(attacher);
    cluster.remove_pod("p1").await;
    daemon.shows(&format!(r#"mooring_attacher_backlog{{driver="{DRIVER}"}} 1"#)).await;
    let page = daemon.page("/metrics").await;
    let oldest = format!(r#"mooring_detach_oldest_seconds{{driver="{DRIVER}"}}"#);
    assert!(value(&page, &oldest).is_some_and(|age| age >= 0.0), "{page}");
    let _attacher = stage.attacher();
    cluster.detached("v1", "n1").await;
    daemon.shows(&format!(r#"mooring_detach_overhead_seconds_count{{driver="{DRIVER}"}} 1"#)).await;
    daemon.shows(&format!(r#"mooring_attacher_backlog{{driver="{DRIVER}"}} 0"#)).await;

    let of_standby = standby.page("/metrics").await;
    for family in [
        "pv_collector_",
        "mooring_volumes",
        "mooring_claims",
        "mooring_attacher_backlog",
        "mooring_waiting{",
        "running_managed_controllers",
    ] {
        let shown: Vec<&str> = of_standby.lines().filter(|line| line.starts_with(family)).collect();
        assert!(shown.is_empty(), "a standby shows {shown:?}");
    }
    let documented = include_str!("../../docs/metrics.md");
    for page in [&page, &of_standby, &daemon.page("/metrics/slis").await] {
        for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let name = line.split(' ').next().unwrap();
            assert!(documented.contains(&format!("\n### `{name}`\n")), "{name} is not in docs/metrics.md");
        }
    }
}

/// A bind, a default class that comes late, a volume on demand and its deletion, one that cannot be deleted.
async fn binder(stage: Stage) {
    let (_provisioner, _protection) = (stage.provisioner(), stage.protection());
    let launch = Launch::alone().with("--enable-hostpath-provisioner");
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    let cluster = &stage.cluster;
    cluster.bound_pair("v1", "c1").await;

    let made = json!({
        "metadata": { "name": "c2" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    let claims: Api<PersistentVolumeClaim> = cluster.namespaced();
    let claim = create(&claims, made).await;
    let waits = cluster.event("c2", "FailedBinding").await;
    let component = Some("persistentvolume-controller");
    assert_eq!(waits.source.and_then(|source| source.component).as_deref(), component);
    assert_eq!(waits.reporting_component.as_deref(), component);
    cluster.class("fast", "Immediate").await;
    let default =
        json!({ "metadata": { "annotations": { "storageclass.kubernetes.io/is-default-class": "true" } } });
    patch(&cluster.all::<StorageClass>(), "fast", default).await;
    let on_demand = format!("pvc-{}", claim.metadata.uid.unwrap());
    cluster.bound("c2", &on_demand).await;
    daemon.shows("retroactive_storageclass_total 1").await;
    daemon.shows("retroactive_storageclass_errors_total 0").await;
    let took = |operation: &str, plugin: &str| {
        format!(
            "volume_operation_total_seconds_count{{operation_name={operation:?},plugin_name={plugin:?}}} 1"
        )
    };
    daemon.shows(&took("provision", DRIVER)).await;
    daemon.shows(r#"mooring_bind_e2e_seconds_count{mode="prebound"} 1"#).await;
    daemon.shows(r#"mooring_bind_e2e_seconds_count{mode="dynamic"} 1"#).await;
    daemon.shows(r#"pv_collector_bound_pv_count{storage_class=""} 1"#).await;
    daemon.shows(r#"pv_collector_bound_pv_count{storage_class="fast"} 1"#).await;
    let bound = r#"pv_collector_bound_pvc_count{namespace="default",storage_class="fast",volume_attributes_class=""} 1"#;
    daemon.shows(bound).await;

    cluster.delete_claim("c2").await;
    cluster.volume_gone(&on_demand).await;
    daemon.shows(&took("delete", DRIVER)).await;

    let elsewhere = json!({
        "metadata": { "name": "v3" },
        "spec": {
            "capacity": { "storage": "2Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Delete", "hostPath": { "path": "/data/v3" },
        },
    });
    create(&cluster.all::<PersistentVolume>(), elsewhere).await;
    cluster.claim_for("c3", "v3").await;
    cluster.bound("c3", "v3").await;
    cluster.delete_claim("c3").await;
    cluster.volume_phase("v3", "Failed").await;
    let told = cluster.event("v3", "VolumeFailedDelete").await;
    assert_eq!(told.source.and_then(|source| source.component).as_deref(), component);
    for name in ["volume_operation_errors_total", "volume_operation_total_errors"] {
        let failed = format!(r#"{name}{{operation_name="delete",plugin_name="kubernetes.io/host-path"}} 1"#);
        daemon.shows(&failed).await;
    }

    let page = daemon.page("/metrics").await;
    let value = |series: &str| -> f64 {
        value(&page, series).unwrap_or_else(|| panic!("{series} is not shown:\n{page}"))
    };
    for series in [
        r#"workqueue_adds_total{name="claims"}"#,
        r#"workqueue_adds_total{name="volumes"}"#,
        r#"workqueue_queue_duration_seconds_count{name="claims"}"#,
        r#"workqueue_work_duration_seconds_count{name="claims"}"#,
        r#"workqueue_work_duration_seconds_count{name="volumes"}"#,
        r#"mooring_decisions_total{kind="claim",reason="Bound"}"#,
        r#"mooring_decisions_total{kind="volume",reason="DeleteFailed"}"#,
    ] {
        assert!(value(series) > 0.0, "{series}");
    }
    assert_eq!(value(r#"workqueue_depth{name="claims"}"#).to_bits(), 0.0_f64.to_bits());
    assert_eq!(value(r#"mooring_foreign_writes_total{kind="phase_changed"}"#).to_bits(), 0.0_f64.to_bits());
    assert!(!page.contains(&took("delete", "kubernetes.io/host-path")), "{}", Value::from(page.clone()));
}
