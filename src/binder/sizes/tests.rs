use apiserver::{
    ids::ResourceVersion,
    kinds::{Narrow, StorageClass},
};
use tokio::time::Instant;

use super::*;

fn decode<T: Narrow>(text: &str) -> T {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_leader_counts_phases_and_what_nobody_can_use() {
    let (objects, page) = (Arc::new(Objects::default()), Arc::new(Board::default()));
    for (name, phase, class, size) in
        [("a", "Released", "gold", "1Gi"), ("b", "Released", "gold", "512Mi"), ("c", "Bound", "gold", "1Ti")]
    {
        objects.apply(decode::<PersistentVolume>(&format!(
            r#"{{"metadata": {{"name": "{name}"}}, "spec": {{"storageClassName": "{class}",
                "capacity": {{"storage": "{size}"}}}}, "status": {{"phase": "{phase}"}}}}"#
        )));
    }
    let metrics = Metrics::default();
    register(Arc::clone(&objects), Arc::clone(&page), &metrics).unwrap();
    assert_eq!(metrics.text().unwrap(), "", "a standby counts nothing");
    page.lead(Instant::now());
    let text = metrics.text().unwrap();
    for line in [
        "mooring_volumes{phase=\"Released\"} 2",
        "mooring_volumes{phase=\"Failed\"} 0",
        "mooring_claims{phase=\"Lost\"} 0",
        "mooring_released_bytes{storage_class=\"gold\"} 1610612736",
        "pv_collector_unbound_pv_count{storage_class=\"gold\"} 2",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line} is not in {text}");
    }
}

/// What was counted as objects came, changed and went is what somebody counts who comes later and finds them all.
#[test]
fn what_changes_is_counted_as_it_is() {
    for seed in 0..50 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (objects, page) = (Arc::new(Objects::default()), Arc::new(Board::default()));
        page.lead(Instant::now());
        let shown = || {
            let metrics = Metrics::default();
            register(Arc::clone(&objects), Arc::clone(&page), &metrics).unwrap();
            metrics
        };
        let from_the_start = shown();
        for revision in 1..200 {
            let name = format!("n{}", random.u8(..10));
            let mut any = |of: &[&'static str]| of[random.usize(..of.len())];
            let (class, annotated, mode) =
                (any(&["gold", "iron", ""]), any(&["gold", "wood"]), any(&["Block", "Filesystem", ""]));
            let source = any(&[
                r#""csi": {"driver": "d", "volumeHandle": "h"}"#,
                r#""nfs": {"server": "s", "path": "/"}"#,
                r#""hostPath": {"path": "/"}"#,
                r#""iscsi": {}"#,
            ]);
            let (size, of_volume, of_claim) = (
                any(&["1Gi", "3Gi", "bad"]),
                any(&["Available", "Bound", "Released"]),
                any(&["Pending", "Bound"]),
            );
            let metadata = format!(
                r#"{{"name": "{name}", "namespace": "{}", "uid": "{name}", "resourceVersion": "{revision}",
                    "annotations": {{"volume.beta.kubernetes.io/storage-class": "{annotated}"}}}}"#,
                any(&["ns", "other"])
            );
            let volume = decode::<PersistentVolume>(&format!(
                r#"{{"metadata": {metadata}, "spec": {{"storageClassName": "{class}", "volumeMode": "{mode}",
                    {source}, "capacity": {{"storage": "{size}"}}}}, "status": {{"phase": "{of_volume}"}}}}"#
            ));
            let claim = decode::<PersistentVolumeClaim>(&format!(
                r#"{{"metadata": {metadata}, "spec": {{"storageClassName": "{class}",
                    "volumeAttributesClassName": "{mode}"}}, "status": {{"phase": "{of_claim}"}}}}"#
            ));
            match random.u8(..12) {
                0 => objects.delete(volume),
                1 => objects.delete(claim),
                2 => objects.reset(vec![volume]),
                3 => objects.reset(vec![claim]),
                4 => objects.prove_gone::<PersistentVolume>(&volume.key(), ResourceVersion(u64::MAX)),
                5 => {
                    objects.observe_response(claim);
                }
                6 => {
                    let uid = Some("another".into());
                    objects.note_unreadable::<PersistentVolume>(
                        None,
                        &volume.key(),
                        (uid, None, apiserver::wire::AttachmentNames::default()),
                        String::new(),
                    );
                }
                7..10 => objects.apply(volume),
                _ => objects.apply(claim),
            }
        }
        assert_eq!(from_the_start.text().unwrap(), shown().text().unwrap(), "seed {seed}");
    }
}

#[test]
fn a_class_that_only_claims_name_is_not_a_label() {
    let (objects, page) = (Arc::new(Objects::default()), Arc::new(Board::default()));
    page.lead(Instant::now());
    for class in ["static", "made-up", ""] {
        objects.apply(decode::<PersistentVolumeClaim>(&format!(
            r#"{{"metadata": {{"name": "c-{class}", "namespace": "ns"}},
                "spec": {{"storageClassName": "{class}"}}}}"#
        )));
    }
    objects.apply(decode::<PersistentVolume>(
        r#"{"metadata": {"name": "v"}, "spec": {"storageClassName": "static"}}"#,
    ));
    let metrics = Metrics::default();
    register(objects, page, &metrics).unwrap();
    let text = metrics.text().unwrap();
    for class in ["static", "_other", ""] {
        let line = format!(
            "pv_collector_unbound_pvc_count{{namespace=\"ns\",storage_class=\"{class}\",volume_attributes_class=\"\"}} 1"
        );
        assert!(text.lines().any(|shown| shown == line), "{line} is not in {text}");
    }
}

#[test]
fn of_more_namespaces_than_are_shown_the_rest_is_counted_by_class() {
    let (objects, page) = (Arc::new(Objects::default()), Arc::new(Board::default()));
    page.lead(Instant::now());
    for class in ["class0", "class1"] {
        objects.apply(decode::<StorageClass>(&format!(
            r#"{{"metadata": {{"name": "{class}"}}, "provisioner": "p"}}"#
        )));
    }
    for number in 0..NAMESPACED + 30 {
        let class = number % 2;
        objects.apply(decode::<PersistentVolumeClaim>(&format!(
            r#"{{"metadata": {{"name": "c", "namespace": "ns{number:05}"}},
                "spec": {{"storageClassName": "class{class}"}}}}"#
        )));
    }
    let metrics = Metrics::default();
    register(objects, page, &metrics).unwrap();
    let text = metrics.text().unwrap();
    let series = text.lines().filter(|line| line.starts_with("pv_collector_unbound_pvc_count{")).count();
    assert_eq!(series, NAMESPACED + 2);
    for class in ["class0", "class1"] {
        let line = format!(
            "pv_collector_unbound_pvc_count{{namespace=\"_other\",storage_class=\"{class}\",volume_attributes_class=\"\"}} 15"
        );
        assert!(text.lines().any(|shown| shown == line), "{line}");
    }
}
