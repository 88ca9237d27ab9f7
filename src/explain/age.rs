//! Times and sizes as people read them.
//!
//! In: seconds, bytes. Out: `3h`, `2m10s`, `1.9Ti`.

use k8s_openapi::jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// The time between two instants, as kubectl prints ages; nothing for what has not happened yet.
#[must_use]
pub fn between(since: Timestamp, now: Timestamp) -> String {
    short(now.as_second().saturating_sub(since.as_second()))
}

/// Seconds, in the two units that matter.
#[must_use]
pub fn short(seconds: i64) -> String {
    match seconds {
        ..0 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => match (seconds / MINUTE, seconds % MINUTE) {
            (minutes, 0) => format!("{minutes}m"),
            (minutes, rest) => format!("{minutes}m{rest}s"),
        },
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..172_800 => format!("{}h", seconds / HOUR),
        _ => format!("{}d", seconds / DAY),
    }
}

/// A number of things: `1 pod`, `2 pods`.
#[must_use]
pub fn counted(count: usize, thing: &str) -> String {
    match (count, thing.ends_with('s')) {
        (1, _) => format!("1 {thing}"),
        (_, true) => format!("{count} {thing}es"),
        (_, false) => format!("{count} {thing}s"),
    }
}

/// Bytes with a binary unit.
#[must_use]
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
    fn ages_and_sizes_are_short() {
        let ages = [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (130, "2m10s"),
            (840, "14m"),
            (10_800, "3h"),
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
