//! Families as text: the classic format 0.0.4, and OpenMetrics 1.0.
//!
//! In: families as gathered, and the exemplars of some. Out: one string. The client library writes the classic format
//! alone, with bounds of buckets in another notation than Go's: those are label values, so that
//! `le="0.00000001"` beside KCM's `le="1e-08"` would be two series.

use std::{collections::HashMap, fmt::Write, time::SystemTime};

use prometheus::{
    Error,
    proto::{LabelPair, Metric, MetricFamily, MetricType},
};

use super::exemplar::{Exemplar, Exemplars};

/// What says that a counter's name is one.
const TOTAL: &str = "_total";

/// Of a family: its exemplars, by the labels of the series as they are written.
pub(super) type ByLabels = HashMap<String, Exemplars>;

/// The classic text format 0.0.4, whose counters have any name.
///
/// # Errors
/// See [`series`].
pub(super) fn classic(families: &[MetricFamily]) -> Result<String, Error> {
    let mut text = String::new();
    for family in families {
        let name = family.name();
        let help = escaped(family.help(), false);
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", kind(family.get_field_type()));
        series(&mut text, family, name, go, None)?;
    }
    Ok(text)
}

/// OpenMetrics 1.0, with what `exemplars` knows of each family, and its end.
///
/// # Errors
/// See [`series`].
pub(super) fn openmetrics<'a>(
    families: &[MetricFamily],
    exemplars: impl Fn(&str) -> Option<&'a ByLabels>,
) -> Result<String, Error> {
    let mut text = String::new();
    for family in families {
        let sampled = family.name();
        let is_counter = family.get_field_type() == MetricType::COUNTER;
        let (name, kind) = match sampled.strip_suffix("_info") {
            _ if is_counter => (sampled.strip_suffix(TOTAL).unwrap_or(sampled), "counter"),
            Some(name) => (name, "info"),
            None => (sampled, kind(family.get_field_type())),
        };
        let _ = writeln!(text, "# TYPE {name} {kind}");
        if let Some(unit) = unit(name).filter(|_| kind != "info") {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(text, "# HELP {name} {}", escaped(family.help(), true));
        let total = format!("{name}{TOTAL}");
        let shown = if is_counter { &total } else { sampled };
        series(&mut text, family, shown, canonical, exemplars(sampled))?;
    }
    text.push_str("# EOF\n");
    Ok(text)
}

/// Writes all series of a family.
///
/// # Errors
/// It is of a type that no collector here makes.
fn series(
    text: &mut String,
    family: &MetricFamily,
    name: &str,
    bound: fn(f64) -> String,
    exemplars: Option<&ByLabels>,
) -> Result<(), Error> {
    for metric in family.get_metric() {
        let labels = labels(metric.get_label());
        match family.get_field_type() {
            MetricType::COUNTER => sample(text, name, &labels, metric.get_counter().get_value()),
            MetricType::GAUGE => sample(text, name, &labels, metric.get_gauge().get_value()),
            MetricType::HISTOGRAM => {
                let exemplars = exemplars.and_then(|all| all.get(&labels));
                histogram(text, name, &labels, metric, bound, exemplars);
            }
            MetricType::SUMMARY | MetricType::UNTYPED => {
                return Err(Error::Msg(format!("{} is neither counter, gauge nor histogram", family.name())));
            }
        }
    }
    Ok(())
}

/// The unit that a name ends in, if it does.
pub fn unit(name: &str) -> Option<&'static str> {
    let name = name.strip_suffix(TOTAL).unwrap_or(name);
    ["seconds", "bytes"]
        .into_iter()
        .find(|unit| name.strip_suffix(unit).is_some_and(|name| name.ends_with('_')))
}

/// The word for a type.
pub fn kind(of: MetricType) -> &'static str {
    match of {
        MetricType::COUNTER => "counter",
        MetricType::GAUGE => "gauge",
        MetricType::HISTOGRAM => "histogram",
        MetricType::SUMMARY => "summary",
        MetricType::UNTYPED => "untyped",
    }
}

/// Labels as they are written, without the braces.
pub(super) fn labels(pairs: &[LabelPair]) -> String {
    let mut text = String::new();
    for pair in pairs {
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(text, "{comma}{}=\"{}\"", pair.name(), escaped(pair.value(), true));
    }
    text
}

fn escaped(text: &str, quoted: bool) -> String {
    let text = text.replace('\\', "\\\\").replace('\n', "\\n");
    if quoted { text.replace('"', "\\\"") } else { text }
}

fn braced(labels: &str) -> String {
    if labels.is_empty() { String::new() } else { format!("{{{labels}}}") }
}

fn sample(text: &mut String, name: &str, labels: &str, value: f64) {
    let _ = writeln!(text, "{name}{} {}", braced(labels), Number(value));
}

fn histogram(
    text: &mut String,
    name: &str,
    labels: &str,
    metric: &Metric,
    bound: fn(f64) -> String,
    exemplars: Option<&Exemplars>,
) {
    let histogram = metric.get_histogram();
    let count = histogram.get_sample_count();
    let buckets = histogram.get_bucket().iter().map(|it| (it.upper_bound(), it.cumulative_count()));
    let all = buckets.filter(|(bound, _)| bound.is_finite()).chain([(f64::INFINITY, count)]);
    let comma = if labels.is_empty() { "" } else { "," };
    for (index, (upper, count)) in all.enumerate() {
        let _ = write!(text, "{name}_bucket{{{labels}{comma}le=\"{}\"}} {count}", bound(upper));
        if let Some(Some(Exemplar { trace, value, at })) = exemplars.and_then(|all| all.get(index)) {
            let at = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let (value, second, millis) = (Number(*value), at.as_secs(), at.subsec_millis());
            let _ = write!(text, " # {{trace_id=\"{trace}\"}} {value} {second}.{millis:03}");
        }
        text.push('\n');
    }
    let labels = braced(labels);
    let _ = writeln!(text, "{name}_sum{labels} {}", Number(histogram.get_sample_sum()));
    let _ = writeln!(text, "{name}_count{labels} {count}");
}

/// As Go's formatter, `%g`, does: the shortest text that reads as the same number, with an exponent below 0.0001 and from a million on.
fn go(number: f64) -> String {
    if !number.is_finite() {
        return Number(number).to_string();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..6).contains(&exponent) {
        return number.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

/// As OpenMetrics wants it, so that a bound has one name: a whole one with `.0`.
fn canonical(number: f64) -> String {
    let text = go(number);
    if text.bytes().all(|byte| byte.is_ascii_digit()) { format!("{text}.0") } else { text }
}

/// A number as both formats spell it.
struct Number(f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            number if number.is_nan() => f.write_str("NaN"),
            f64::INFINITY => f.write_str("+Inf"),
            f64::NEG_INFINITY => f.write_str("-Inf"),
            number => number.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus::{
        HistogramOpts, HistogramVec, IntCounterVec, IntGauge, IntGaugeVec, Opts, core::Collector,
        exponential_buckets,
    };

    use super::*;
    use crate::metrics::exemplar::{TraceId, TracedHistogram};

    #[test]
    fn bounds_are_written_as_go_does() {
        // What k8s.io/component-base shows of ExponentialBuckets(10e-9, 10, 10), and of sizes.
        let queue = exponential_buckets(1e-8, 10.0, 10).unwrap();
        let written: Vec<String> = queue.into_iter().map(go).collect();
        let expected = "1e-08 1e-07 1e-06 9.999999999999999e-06 9.999999999999999e-05 0.001 0.01 0.1 1 10";
        assert_eq!(written.join(" "), expected);
        for (number, expected) in [
            (0.0, "0"),
            (0.0001, "0.0001"),
            (0.25, "0.25"),
            (262_144.0, "262144"),
            (1_048_576.0, "1.048576e+06"),
            (16_777_216.0, "1.6777216e+07"),
            (f64::INFINITY, "+Inf"),
        ] {
            assert_eq!(go(number), expected);
        }
    }

    fn families() -> (Vec<MetricFamily>, TracedHistogram) {
        let waits =
            TracedHistogram::new("waits_seconds", "Waits, in seconds", &["phase"], &[0.5, 1.0]).unwrap();
        waits.observe(&["api"], 0.7, Some(TraceId([7; 16])));
        waits.observe(&["api"], 3.0, None);
        let errors =
            IntCounterVec::new(Opts::new("errors_total", "Errors\\ by \"what\""), &["what"]).unwrap();
        errors.with_label_values(&["a\"b\\c\nd"]).inc();
        let odd = IntCounterVec::new(Opts::new("forced_detaches", "Upstream's name"), &["reason"]).unwrap();
        odd.with_label_values(&["timeout"]).inc_by(2);
        let build = IntGaugeVec::new(Opts::new("build_info", "Always 1"), &["version"]).unwrap();
        build.with_label_values(&["1"]).set(1);
        let open = IntGauge::new("open", "Open connections").unwrap();
        let sizes = HistogramVec::new(
            HistogramOpts::new("sizes_bytes", "Sizes in bytes").buckets(vec![64.0, 1_048_576.0]),
            &["verb"],
        );
        let sizes = sizes.unwrap();
        sizes.with_label_values(&["GET"]).observe(100.0);
        let collectors: [&dyn Collector; 6] = [&build, &errors, &odd, &open, &sizes, &waits];
        (collectors.into_iter().flat_map(Collector::collect).collect(), waits)
    }

    #[test]
    fn the_classic_format_keeps_names_as_they_are() {
        let (families, _) = families();
        assert_eq!(
            classic(&families).unwrap(),
            r#"# HELP build_info Always 1
# TYPE build_info gauge
build_info{version="1"} 1
# HELP errors_total Errors\\ by "what"
# TYPE errors_total counter
errors_total{what="a\"b\\c\nd"} 1
# HELP forced_detaches Upstream's name
# TYPE forced_detaches counter
forced_detaches{reason="timeout"} 2
# HELP open Open connections
# TYPE open gauge
open 0
# HELP sizes_bytes Sizes in bytes
# TYPE sizes_bytes histogram
sizes_bytes_bucket{verb="GET",le="64"} 0
sizes_bytes_bucket{verb="GET",le="1.048576e+06"} 1
sizes_bytes_bucket{verb="GET",le="+Inf"} 1
sizes_bytes_sum{verb="GET"} 100
sizes_bytes_count{verb="GET"} 1
# HELP waits_seconds Waits, in seconds
# TYPE waits_seconds histogram
waits_seconds_bucket{phase="api",le="0.5"} 0
waits_seconds_bucket{phase="api",le="1"} 1
waits_seconds_bucket{phase="api",le="+Inf"} 2
waits_seconds_sum{phase="api"} 3.7
waits_seconds_count{phase="api"} 2
"#
        );
    }

    #[test]
    fn openmetrics_has_units_totals_exemplars_and_an_end() {
        let (families, waits) = families();
        let known: ByLabels =
            waits.exemplars().into_iter().map(|(pairs, exemplars)| (labels(&pairs), exemplars)).collect();
        let text = openmetrics(&families, |name| (name == waits.name()).then_some(&known)).unwrap();
        let shown =
            |line: &str| assert!(text.lines().any(|shown| shown == line), "{line}\nis missing in\n{text}");
        for line in [
            "# TYPE build info",
            "build_info{version=\"1\"} 1",
            "# TYPE errors counter",
            "# HELP errors Errors\\\\ by \\\"what\\\"",
            "errors_total{what=\"a\\\"b\\\\c\\nd\"} 1",
            "forced_detaches_total{reason=\"timeout\"} 2",
            "# UNIT sizes_bytes bytes",
            "sizes_bytes_bucket{verb=\"GET\",le=\"64.0\"} 0",
            "# TYPE waits_seconds histogram",
            "# UNIT waits_seconds seconds",
            "waits_seconds_bucket{phase=\"api\",le=\"0.5\"} 0",
            "waits_seconds_bucket{phase=\"api\",le=\"+Inf\"} 2",
        ] {
            shown(line);
        }
        let with_exemplar = "waits_seconds_bucket{phase=\"api\",le=\"1.0\"} 1 # {trace_id=\"0707";
        assert!(text.contains(with_exemplar), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
    }
}
