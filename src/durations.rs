//! Durations as Go writes them.

use std::time::Duration;

/// Go's `time.ParseDuration` without a sign: numbers with units, such as `1m30s` or `1.5h`.
///
/// # Errors
/// How to write one.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const USAGE: &str = "not a duration: use numbers with units, such as 15s, 1m30s or 500ms";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.is_empty() {
        return Err(USAGE.to_owned());
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let seconds = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(USAGE.to_owned()),
        };
        let number: f64 = number.parse().map_err(|_| USAGE.to_owned())?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| USAGE.to_owned())?;
        total = total.checked_add(part).ok_or(USAGE)?;
        rest = tail;
    }
    Ok(total)
}
