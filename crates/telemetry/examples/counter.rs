//! A counter, and a histogram whose buckets name a trace each, in both formats.

use mooring_telemetry::metrics::{
    Metrics,
    exemplar::{TraceId, TracedHistogram},
};
use prometheus::{Error, IntCounter};

fn pages() -> Result<(String, String), Error> {
    let metrics = Metrics::default();
    let counter = IntCounter::new("mooring_mounts_total", "Mounts so far")?;
    metrics.register(&counter)?;
    let took =
        TracedHistogram::new("mooring_mount_seconds", "How long a mount takes", &["driver"], &[0.1, 1.0])?;
    metrics.register_traced(&took)?;
    counter.inc();
    took.observe(&["ebs"], 0.4, Some(TraceId([7; 16])));
    Ok((metrics.text()?, metrics.openmetrics()?))
}

#[expect(clippy::print_stdout, reason = "an example")]
fn main() -> Result<(), Error> {
    let (text, openmetrics) = pages()?;
    println!("{text}\n{openmetrics}");
    Ok(())
}

#[test]
fn the_exemplar_is_in_the_second_page_alone() -> Result<(), Error> {
    let (text, openmetrics) = pages()?;
    assert!(text.contains("mooring_mounts_total 1\n") && !text.contains("trace_id"), "{text}");
    assert!(openmetrics.contains("trace_id=\"0707"), "{openmetrics}");
    Ok(())
}
