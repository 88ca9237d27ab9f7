//! Words, ages and times as they stand in a page. Pure.

use std::fmt::Write;

use k8s_openapi::jiff::Timestamp;
use maud::{Escaper, Markup, Render, html};

/// Text of strangers: a name, a driver's error. It is escaped, and what would change how the rest is read or copied (control
/// characters, marks of writing direction) is shown as a replacement.
pub(super) struct Text<'a>(pub &'a str);

impl Render for Text<'_> {
    fn render_to(&self, buffer: &mut String) {
        let mut escaper = Escaper::new(buffer);
        for letter in self.0.chars() {
            let letter = if is_deceiving(letter) { char::REPLACEMENT_CHARACTER } else { letter };
            // Writing into a string does not fail.
            let _ = escaper.write_char(letter);
        }
    }
}

/// Whether a character is not seen, and changes what is seen.
fn is_deceiving(letter: char) -> bool {
    (letter.is_control() && letter != '\n' && letter != '\t')
        || matches!(
            letter,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// As kubectl shows ages: two units at most, and no more than the age is good for.
pub(super) fn age(seconds: i64) -> String {
    let (minute, hour, day) = (60, 3_600, 86_400);
    let two = |big: i64, name: &str, small: i64, rest_name: &str| match (seconds / big, seconds % big / small)
    {
        (whole, 0) => format!("{whole}{name}"),
        (whole, rest) => format!("{whole}{name}{rest}{rest_name}"),
    };
    match seconds {
        ..=0 => "0s".to_owned(),
        seconds if seconds < 2 * minute => format!("{seconds}s"),
        seconds if seconds < 10 * minute => two(minute, "m", 1, "s"),
        seconds if seconds < 3 * hour => format!("{}m", seconds / minute),
        seconds if seconds < 8 * hour => two(hour, "h", minute, "m"),
        seconds if seconds < 2 * day => format!("{}h", seconds / hour),
        seconds if seconds < 8 * day => two(day, "d", hour, "h"),
        seconds => format!("{}d", seconds / day),
    }
}

/// RFC 3339, to the second.
fn stamp(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Since when, as an age; the time itself for who asks.
pub(super) fn since(at: Option<Timestamp>, now: Timestamp) -> Markup {
    let Some(at) = at else { return html! { "unknown" } };
    let stamp = stamp(at);
    html! { time datetime=(stamp) title=(stamp) { (age(now.as_second() - at.as_second())) } }
}

/// A point in time.
pub(super) fn at(at: Timestamp) -> Markup {
    let stamp = stamp(at);
    html! { time datetime=(stamp) { (stamp) } }
}

/// A time to come, with what is left until then, which the script counts down.
pub(super) fn until(at: Timestamp, now: Timestamp) -> Markup {
    let stamp = stamp(at);
    let left = at.as_second() - now.as_second();
    html! {
        time datetime=(stamp) { (stamp) }
        " " span .countdown data-until=(at.as_second()) {
            @if left > 0 { "in " (age(left)) } @else { "now" }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_kubectls() {
        let rows = [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (222, "3m42s"),
            (840, "14m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (18_720, "5h12m"),
            (100_000, "27h"),
            (262_800, "3d1h"),
            (18_230_400, "211d"),
        ];
        for (seconds, expected) in rows {
            assert_eq!(age(seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn text_of_strangers_can_be_read_and_nothing_else() {
        let rows = [
            ("<b>&\"", "&lt;b&gt;&amp;&quot;"),
            ("rm \u{202e}fr", "rm \u{fffd}fr"),
            ("a\u{200b}b\u{1b}[31m\tc\nd", "a\u{fffd}b\u{fffd}[31m\tc\nd"),
        ];
        for (text, expected) in rows {
            assert_eq!(html! { (Text(text)) }.into_string(), expected);
        }
    }
}
