//! Times and sizes as people read them.
//!
//! In: seconds, bytes. Out: `3h`, `2m10s`, `1.9Ti`.

use k8s_openapi::jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// What goes on by itself, and has not after this time, needs a person: no side-car's, kubelet's or controller's pause is longer.
const LONG_AGO: i64 = 5 * MINUTE;

/// Whether what began then, and should have ended by itself, needs a person.
pub fn is_long(since: Option<Timestamp>, now: Timestamp) -> bool {
    since.is_some_and(|since| now.as_second().saturating_sub(since.as_second()) > LONG_AGO)
}

/// The time between two instants, as kubectl prints ages; nothing for what has not happened yet.
pub fn between(since: Timestamp, now: Timestamp) -> String {
    short(now.as_second().saturating_sub(since.as_second()))
}

/// Seconds as kubectl shows ages: two units at most, and no more than the age is good for. The page's script has the same rule.
pub fn short(seconds: i64) -> String {
    let two = |big: i64, name: &str, small: i64, rest_name: &str| match (seconds / big, seconds % big / small)
    {
        (whole, 0) => format!("{whole}{name}"),
        (whole, rest) => format!("{whole}{name}{rest}{rest_name}"),
    };
    match seconds {
        ..=0 => "0s".to_owned(),
        seconds if seconds < 2 * MINUTE => format!("{seconds}s"),
        seconds if seconds < 10 * MINUTE => two(MINUTE, "m", 1, "s"),
        seconds if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        seconds if seconds < 8 * HOUR => two(HOUR, "h", MINUTE, "m"),
        seconds if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        seconds if seconds < 8 * DAY => two(DAY, "d", HOUR, "h"),
        seconds => format!("{}d", seconds / DAY),
    }
}

/// A number of things: `1 pod`, `2 pods`.
pub fn counted(count: usize, thing: &str) -> String {
    match (count, thing.ends_with('s')) {
        (1, _) => format!("1 {thing}"),
        (_, true) => format!("{count} {thing}es"),
        (_, false) => format!("{count} {thing}s"),
    }
}

/// Bytes with a binary unit.
pub fn bytes(bytes: f64) -> String {
    let mut value = bytes;
    for unit in ["", "Ki", "Mi", "Gi", "Ti", "Pi"] {
        if value < 1024.0 {
            return if value < 10.0 && value.fract() > 0.05 {
                format!("{value:.1}{unit}")
            } else {
                format!("{value:.0}{unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.0}Ei")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_kubectls_and_sizes_are_short() {
        let ages = [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (130, "2m10s"),
            (222, "3m42s"),
            (840, "14m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (18_720, "5h12m"),
            (100_000, "27h"),
            (262_800, "3d1h"),
            (18_230_400, "211d"),
        ];
        for (seconds, text) in ages {
            assert_eq!(short(seconds), text);
        }
        let gibi = 1024.0 * 1024.0 * 1024.0;
        for (size, text) in
            [(0.0, "0"), (10.0 * gibi, "10Gi"), (1.9 * 1024.0 * gibi, "1.9Ti"), (2.0 * gibi, "2Gi")]
        {
            assert_eq!(bytes(size), text);
        }
    }
}
