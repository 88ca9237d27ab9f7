//! Columns of `kubectl get`, and the content of their cells.
//!
//! In: an object. Out: the same texts as from upstream's printers in kubectl. A column is a name, a type
//! and a function from object to cell.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use crate::json;

/// A column of a kind's table.
pub struct Column {
    /// Header.
    pub name: &'static str,
    /// `string`, `integer`.
    pub kind: &'static str,
    /// 0 always, 1 with `-o wide`.
    pub priority: u8,
    /// What the cell shows.
    pub cell: fn(&Value, Timestamp) -> Value,
}

/// A column that is always shown.
pub const fn column(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> Column {
    Column { name, kind: "string", priority: 0, cell }
}

/// A column that `-o wide` shows.
pub const fn wide(name: &'static str, cell: fn(&Value, Timestamp) -> Value) -> Column {
    Column { name, kind: "string", priority: 1, cell }
}

/// The object's name.
pub const NAME: Column = column("Name", |object, _| json::text(object, "/metadata/name").into());

/// The time since it was created.
pub const AGE: Column = column("Age", |object, now| age(object, "/metadata/creationTimestamp", now));

/// The time since the one at a path.
pub fn age(object: &Value, path: &str, now: Timestamp) -> Value {
    match json::text(object, path).parse::<Timestamp>() {
        Ok(then) => human_duration(now.as_second() - then.as_second()).into(),
        Err(_) => "<unknown>".into(),
    }
}

/// The text at a path, or something else when there is none.
pub fn text_or(object: &Value, path: &str, otherwise: &str) -> Value {
    let text = json::text(object, path);
    if text.is_empty() { otherwise.into() } else { text.into() }
}

/// A boolean as Go prints it.
pub fn flag(object: &Value, path: &str) -> Value {
    object.pointer(path).and_then(Value::as_bool).unwrap_or_default().into()
}

/// Access modes, abbreviated.
pub fn access_modes(object: &Value, path: &str) -> String {
    let mut modes = Vec::new();
    for (mode, short) in [
        ("ReadWriteOnce", "RWO"),
        ("ReadOnlyMany", "ROX"),
        ("ReadWriteMany", "RWX"),
        ("ReadWriteOncePod", "RWOP"),
    ] {
        if json::list(object, path).iter().any(|value| value == mode) {
            modes.push(short);
        }
    }
    modes.join(",")
}

/// A duration in at most two units.
// kube-apiserver: apimachinery/pkg/util/duration/duration.go, HumanDuration.
pub fn human_duration(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let two = |large: i64, large_unit: char, small: i64, small_unit: char| {
        if small == 0 {
            format!("{large}{large_unit}")
        } else {
            format!("{large}{large_unit}{small}{small_unit}")
        }
    };
    match seconds {
        ..-1 => "<invalid>".to_owned(),
        -1..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => two(seconds / MINUTE, 'm', seconds % MINUTE, 's'),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => two(seconds / HOUR, 'h', seconds % HOUR / MINUTE, 'm'),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        172_800..691_200 => two(seconds / DAY, 'd', seconds % DAY / HOUR, 'h'),
        691_200..63_072_000 => format!("{}d", seconds / DAY),
        63_072_000..252_288_000 => two(seconds / YEAR, 'y', seconds % YEAR / DAY, 'd'),
        _ => format!("{}y", seconds / YEAR),
    }
}

/// The phase, or that it is on its way out.
pub fn phase(object: &Value) -> &str {
    let is_going = json::is_set(object, "/metadata/deletionTimestamp");
    if is_going { "Terminating" } else { json::text(object, "/status/phase") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_at_most_two_units() {
        for (seconds, expected) in [
            (0, "0s"),
            (119, "119s"),
            (125, "2m5s"),
            (600, "10m"),
            (10_860, "3h1m"),
            (172_800, "2d"),
            (864_000, "10d"),
        ] {
            assert_eq!(human_duration(seconds), expected);
        }
    }
}
