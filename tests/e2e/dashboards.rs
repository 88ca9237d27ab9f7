//! What dashboards and `kubectl describe` show of the binder's work: KCM's metrics, fed, and the component that
//! KCM's events name.

use k8s_openapi::api::{
    core::v1::{PersistentVolume, PersistentVolumeClaim},
    storage::v1::StorageClass,
};
use kube::Api;
use serde_json::{Value, json};

use crate::{
    stage::{Stage, Story, story},
    support::{
        cluster::{DRIVER, create, patch},
        daemon::Launch,
    },
};

pub fn stories() -> Vec<Story> {
    vec![story("dashboards_show_what_the_binder_does", binder)]
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
    daemon.shows("mooring_bind_duration_seconds_count 2").await;
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
        let line = page.lines().find_map(|line| line.strip_prefix(series));
        line.unwrap_or_else(|| panic!("{series} is not shown:\n{page}")).trim().parse().unwrap()
    };
    for series in [
        r#"workqueue_adds_total{name="claims"}"#,
        r#"workqueue_adds_total{name="volumes"}"#,
        r#"workqueue_queue_duration_seconds_count{name="claims"}"#,
        r#"workqueue_work_duration_seconds_count{name="claims"}"#,
        r#"workqueue_work_duration_seconds_count{name="volumes"}"#,
        r#"mooring_binder_decisions_total{kind="claim",reason="Bound"}"#,
        r#"mooring_binder_decisions_total{kind="volume",reason="DeleteFailed"}"#,
    ] {
        assert!(value(series) > 0.0, "{series}");
    }
    assert_eq!(value(r#"workqueue_depth{name="claims"}"#).to_bits(), 0.0_f64.to_bits());
    assert_eq!(value(r#"mooring_foreign_writes_total{kind="phase_changed"}"#).to_bits(), 0.0_f64.to_bits());
    assert!(!page.contains(&took("delete", "kubernetes.io/host-path")), "{}", Value::from(page.clone()));
}
