//! Text and times as they stand in a page. Pure.

use std::fmt::Write;

use apiserver::wire::rfc3339;
use k8s_openapi::jiff::Timestamp;
use maud::{Escaper, Markup, Render, html};

use crate::explain::sheet::is_deceiving;

/// Text of strangers: a name, a driver's error. It is escaped, and what would change how the rest is read or copied (control
/// characters, marks of writing direction) is shown as a replacement.
pub(super) struct Text<'a>(pub &'a str);

impl Render for Text<'_> {
    fn render_to(&self, buffer: &mut String) {
        let mut escaper = Escaper::new(buffer);
        for letter in self.0.chars() {
            let is_shown = matches!(letter, '\n' | '\t') || !is_deceiving(letter);
            let letter = if is_shown { letter } else { char::REPLACEMENT_CHARACTER };
            // Writing into a string does not fail.
            let _ = escaper.write_char(letter);
        }
    }
}

/// A point in time.
pub(super) fn moment(at: Timestamp) -> Markup {
    html! { time datetime=(rfc3339(at)) { (rfc3339(at)) } }
}

#[cfg(test)]
mod tests {
    use super::*;

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
