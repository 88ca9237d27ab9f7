//! Traces: what an operator's collector is sent of a bind, an attach and a detach.

use std::fmt::Write as _;

use telemetry::traces::TraceId;

use opentelemetry_proto::tonic::trace::v1::Span;
use test_support::{cluster::within_deadline, daemon::Launch, process::temporary_folder};

use crate::{
    collector::Collector,
    stage::{Stage, Story, story},
};

pub fn stories() -> Vec<Story> {
    // The collector is reached by a real connection, which paused time would not wait for.
    vec![
        story("traces_of_bind_attach_and_detach_reach_the_collector", reach_the_collector)
            .only_real("The collector is reached by a connection, which paused time does not wait for."),
    ]
}

/// Names and times of a trace, the operation first.
fn shown(spans: &[Span]) -> String {
    let mut text = String::new();
    for span in spans {
        let length = span.end_time_unix_nano - span.start_time_unix_nano;
        writeln!(text, "{} {length} ns, child of {:?}", span.name, span.parent_span_id).unwrap();
    }
    text
}

async fn reach_the_collector(stage: Stage) {
    let collector = Collector::start().await;
    let file = temporary_folder("tracing").join("tracing.yaml");
    let text = format!(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: TracingConfiguration\nendpoint: {}\nsamplingRatePerMillion: 1000000\n",
        collector.address()
    );
    std::fs::write(&file, text).unwrap();
    let launch = Launch::alone().with(&format!("--tracing-config-file={}", file.display()));
    let (_attacher, _kubelets) = (stage.attacher(), stage.kubelets());
    let daemon = stage.start_daemon(&launch, &stage.proxy).await;
    let cluster = &stage.cluster;
    cluster.node("n1").await;
    cluster.bound_pair("v1", "c1").await;
    cluster.pod("p1", "n1", &["c1"]).await;
    cluster.running("p1").await;
    cluster.delete_pod("p1").await;
    cluster.detached("v1", "n1").await;

    let trace = async |name: &str| {
        let what = format!("the collector has {name:?}");
        within_deadline(&what, collector.trace_with(|span| span.name == name)).await.unwrap()
    };
    let cases = [
        ("bind claim", vec!["queue", "reserve_volume", "volume_bound", "name_volume", "claim_bound"]),
        ("attach volume", vec!["queue", "api", "attacher", "publish"]),
        ("detach volume", vec!["unmount", "unpublish", "api", "attacher"]),
    ];
    for (name, phases) in cases {
        let spans = trace(name).await;
        let [root, children @ ..] = &spans[..] else { panic!("no spans") };
        assert_eq!(root.name, name, "{}", shown(&spans));
        let found: Vec<_> = children.iter().map(|span| span.name.as_str()).collect();
        // A phase may be over before it is looked at.
        assert!(found.iter().all(|phase| phases.contains(phase)), "{}", shown(&spans));
        assert!(
            found.len() >= 2
                && found.is_sorted_by_key(|phase| phases.iter().position(|known| known == phase))
        );
        assert_eq!(children.first().unwrap().start_time_unix_nano, root.start_time_unix_nano);
        assert_eq!(children.last().unwrap().end_time_unix_nano, root.end_time_unix_nano);
        assert!(children.iter().all(|child| child.parent_span_id == root.span_id));
        assert!(children.is_sorted_by_key(|child| child.start_time_unix_nano), "{}", shown(&spans));
        assert!(root.end_time_unix_nano > root.start_time_unix_nano, "{}", shown(&spans));
        // The histograms lead to it.
        let id = TraceId(root.trace_id.as_slice().try_into().unwrap());
        let page = daemon.page("/metrics/openmetrics").await;
        assert!(page.contains(&format!("{{trace_id=\"{id}\"}}")), "{name} {id}: {page}");
    }
    let exported = daemon.page("/metrics").await;
    let exported =
        exported.lines().find(|line| line.starts_with("mooring_traces_total{outcome=\"exported\"}"));
    assert!(exported.is_some_and(|line| !line.ends_with(" 0")), "{exported:?}");
}
