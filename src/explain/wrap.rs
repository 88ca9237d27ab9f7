//! Lines that fit a width where words allow it.

/// The words after a head, with the further lines indented. A word that does not fit stands alone; names are never cut.
pub(super) fn wrapped(head: &str, text: &str, indent: usize, width: usize) -> String {
    let (mut lines, mut line, mut is_first) = (String::new(), head.to_owned(), true);
    for word in text.split_inclusive(' ') {
        if !is_first && line.chars().count() + word.trim_end().chars().count() > width {
            lines.push_str(line.trim_end());
            lines.push('\n');
            line = " ".repeat(indent);
        }
        line.push_str(word);
        is_first = false;
    }
    lines.push_str(line.trim_end());
    lines.push('\n');
    lines
}

/// The same on a terminal of eighty columns, below the words of the first line.
pub(super) fn on_terminal(label: &str, text: &str) -> String {
    wrapped(label, text, label.chars().count().max(4), WIDTH)
}

/// Room on a terminal.
pub(super) const WIDTH: usize = 80;
