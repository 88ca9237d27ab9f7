//! A strict reader of OpenMetrics 1.0, for tests: what it takes, Prometheus and its client libraries take.

use std::collections::{BTreeMap, BTreeSet};

/// A sample: its name, labels, value, and the value of its exemplar.
#[derive(Debug)]
struct Sample<'a> {
    name: &'a str,
    labels: BTreeMap<String, String>,
    value: f64,
    exemplar: Option<f64>,
}

/// Reads a page; returns how many samples of each family there are, and how many exemplars.
///
/// # Errors
/// What is wrong with it.
pub fn read(text: &str) -> Result<(BTreeMap<String, usize>, usize), String> {
    let body = text.strip_suffix("# EOF\n").ok_or("it does not end with # EOF")?;
    let (mut families, mut exemplars) = (BTreeMap::new(), 0);
    let mut current: Option<(&str, &str, Vec<Sample<'_>>)> = None;
    let mut finish = |family: Option<(&str, &str, Vec<Sample<'_>>)>| {
        let Some((name, kind, samples)) = family else { return Ok(()) };
        check(name, kind, &samples)?;
        exemplars += samples.iter().filter(|sample| sample.exemplar.is_some()).count();
        match families.insert(name.to_owned(), samples.len()) {
            None => Ok(()),
            Some(_) => Err(format!("{name} is there twice")),
        }
    };
    for line in body.lines() {
        if let Some(described) = line.strip_prefix("# TYPE ") {
            let (name, kind) = described.split_once(' ').ok_or_else(|| format!("no type: {line}"))?;
            finish(current.replace((name, kind, Vec::new())))?;
            continue;
        }
        let Some((name, _, samples)) = &mut current else { return Err(format!("no family: {line}")) };
        if let Some(unit) = line.strip_prefix("# UNIT ") {
            let (of, unit) = unit.split_once(' ').ok_or_else(|| format!("no unit: {line}"))?;
            if of != *name || !of.ends_with(&format!("_{unit}")) || !samples.is_empty() {
                return Err(format!("out of place: {line}"));
            }
        } else if let Some(help) = line.strip_prefix("# HELP ") {
            if help.split(' ').next() != Some(*name) || !samples.is_empty() {
                return Err(format!("out of place: {line}"));
            }
        } else {
            samples.push(sample(line).ok_or_else(|| format!("no sample: {line}"))?);
        }
    }
    finish(current)?;
    Ok((families, exemplars))
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let (name, labels, rest) = match line.find(['{', ' '])? {
        at if line[at..].starts_with('{') => {
            let (labels, rest) = labels(&line[at + 1..])?;
            (&line[..at], labels, rest.strip_prefix(' ')?)
        }
        at => (&line[..at], BTreeMap::new(), &line[at + 1..]),
    };
    let (value, exemplar) = match rest.split_once(" # {") {
        None => (rest, None),
        Some((value, exemplar)) => {
            let (labels, rest) = self::labels(exemplar)?;
            let length: usize = labels.iter().map(|(name, value)| name.len() + value.len()).sum();
            let (value_of, at) = rest.strip_prefix(' ')?.split_once(' ')?;
            let second: f64 = at.parse().ok()?;
            if length > 128 || second < 0.0 {
                return None;
            }
            (value, Some(value_of.parse().ok()?))
        }
    };
    let value = if value == "+Inf" { f64::INFINITY } else { value.parse().ok()? };
    Some(Sample { name, labels, value, exemplar })
}

/// Labels up to the closing brace, and what is behind it.
fn labels(mut text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    escaped @ ('\\' | '"') => value.push(escaped),
                    _ => return None,
                },
                (_, character) => value.push(character),
            }
        };
        if labels.insert(name.to_owned(), value).is_some() {
            return None;
        }
        let rest = &rest[end + 1..];
        text = rest.strip_prefix(',').unwrap_or(rest);
    }
}

/// Labels of a series but for the bound, and its buckets: bounds and counts.
type Buckets<'a> = BTreeMap<Vec<(&'a String, &'a String)>, Vec<(f64, f64)>>;

fn check(family: &str, kind: &str, samples: &[Sample<'_>]) -> Result<(), String> {
    let suffixes: &[&str] = match kind {
        "counter" => &["_total"],
        "gauge" => &[""],
        "histogram" => &["_bucket", "_sum", "_count"],
        "info" => &["_info"],
        _ => return Err(format!("{family} is a {kind}")),
    };
    let mut seen = BTreeSet::new();
    let mut buckets = Buckets::new();
    let mut counts = BTreeMap::new();
    for Sample { name, labels, value, exemplar } in samples {
        let suffix = name.strip_prefix(family).filter(|suffix| suffixes.contains(suffix));
        let suffix = suffix.ok_or_else(|| format!("{name} is not of {family}, a {kind}"))?;
        if !seen.insert((name, labels)) {
            return Err(format!("{name}{labels:?} is there twice"));
        }
        if exemplar.is_some() && !["_bucket", "_total"].contains(&suffix) {
            return Err(format!("{name} has an exemplar"));
        }
        let series: Vec<_> = labels.iter().filter(|(label, _)| *label != "le").collect();
        match suffix {
            "_bucket" => {
                let bound = labels.get("le").ok_or_else(|| format!("{name} has no bound"))?;
                let bound_is =
                    if bound == "+Inf" { f64::INFINITY } else { bound.parse().unwrap_or(f64::NAN) };
                if exemplar.is_some_and(|exemplar| exemplar > bound_is) || !bound.contains(['.', 'e', 'I']) {
                    return Err(format!("{name}: {bound}"));
                }
                buckets.entry(series).or_default().push((bound_is, *value));
            }
            "_count" => {
                counts.insert(series, *value);
            }
            _ => {}
        }
    }
    for (series, buckets) in buckets {
        let ascends = buckets.windows(2).all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
        let last = buckets.last().copied().unwrap_or_default();
        if !ascends || last.0 != f64::INFINITY || counts.get(&series) != Some(&last.1) {
            return Err(format!("buckets of {family}{series:?}: {buckets:?}"));
        }
    }
    Ok(())
}
