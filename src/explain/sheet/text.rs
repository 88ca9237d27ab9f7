//! A sheet as text, for a terminal or a ticket.
//!
//! In: a [`Sheet`] and a [`Style`]. Out: lines that fit the width where words allow it; names are never cut. What others wrote (a
//! driver's error, a label) cannot steer the terminal: control characters are shown as a replacement.

use apiserver::wire::rfc3339;
use k8s_openapi::jiff::Timestamp;

use super::{
    model::{Item, Printed, Sheet, Table, Word},
    words::{PROGRAM, called, clean},
};
use crate::explain::{age, report::Verdict};

/// How text is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct Style {
    /// Colours, for a terminal.
    pub color: bool,
    /// No characters beyond ASCII.
    pub ascii: bool,
    /// Times in full beside ages.
    pub utc: bool,
    /// Everything: evidence and all candidates.
    pub wide: bool,
    /// Columns.
    pub width: usize,
    /// The name under which the program was called.
    pub program: &'static str,
}

impl Default for Style {
    fn default() -> Self {
        Self { color: false, ascii: false, utc: false, wide: false, width: 80, program: PROGRAM }
    }
}

/// Columns before what belongs to a line above.
const INDENT: usize = 6;
/// Least room for the last column of a table.
const LEAST: usize = 24;

/// Prints an answer.
pub fn text(answer: &impl Printed, style: Style) -> String {
    print(&answer.sheet(style.wide), style)
}

/// Prints a sheet.
pub(in crate::explain) fn print(sheet: &Sheet, style: Style) -> String {
    let mut page = TextPage { text: String::new(), style, now: sheet.now };
    if !sheet.head.is_empty() {
        page.item(&Item::new("", sheet.head.clone()));
    }
    for section in &sheet.sections {
        let count = section.table.rows.len();
        if count + section.items.len() == 0 {
            continue;
        }
        if !section.title.is_empty() {
            page.line(&format!("\n{}", section.title.to_uppercase()));
        }
        page.table(&section.table);
        for item in &section.items {
            page.item(item);
        }
    }
    if style.ascii { plain(&page.text) } else { page.text }
}

struct TextPage {
    text: String,
    style: Style,
    now: Timestamp,
}

impl TextPage {
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn item(&mut self, item: &Item) {
        let mut label = clean(&item.label);
        for words in &item.lines {
            let mut lines = wrapped(&label, &self.words(words), self.style.width);
            if self.style.color {
                for word in words {
                    let Word::Verdict(verdict, shown) = word else { continue };
                    let code = match verdict {
                        Verdict::Healthy => "32",
                        Verdict::Waiting => "33",
                        Verdict::Blocked | Verdict::NotFound | Verdict::Forbidden => "31",
                    };
                    lines = lines.replacen(shown, &painted(code, shown), 1);
                }
                if item.is_blocker {
                    lines = lines.replacen('✗', &painted("31", "✗"), 1);
                }
            }
            self.text.push_str(&lines);
            label = " ".repeat(INDENT);
        }
        // Below nothing it begins the line.
        let indent = if item.lines.is_empty() { 0 } else { INDENT };
        for line in &item.verbatim {
            self.line(&format!("{:indent$}{}", "", clean(&called(line, self.style.program))));
        }
    }

    /// Columns, as wide as names are, which stay whole, to be copied; only the last is wrapped.
    fn table(&mut self, table: &Table) {
        if table.rows.is_empty() {
            return;
        }
        let heads: Vec<String> = table.heads.iter().map(|head| head.to_uppercase()).collect();
        let rows = table.rows.iter().map(|row| row.iter().map(|cell| self.words(cell)).collect());
        let rows: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
        let mut widths = vec![0; table.heads.len().saturating_sub(1)];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        for row in &rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  "));
            let last = row.last().map(String::as_str).unwrap_or_default();
            let width = (widths.iter().sum::<usize>() + 2 * widths.len() + LEAST).max(self.style.width);
            self.text.push_str(&wrapped(&cells.collect::<String>(), last, width));
        }
    }

    fn words(&self, words: &[Word]) -> String {
        let text: String = words.iter().map(|word| self.word(word)).collect();
        clean(&called(&text, self.style.program))
    }

    fn word(&self, word: &Word) -> String {
        match word {
            Word::Text(text) | Word::Reason(text) | Word::Object(_, text) => text.clone(),
            Word::Verdict(_, shown) => (*shown).to_owned(),
            Word::Since(at) => {
                let age = age::between(*at, self.now);
                if self.style.utc { format!("{age} (since {})", rfc3339(*at)) } else { age }
            }
            Word::Until(at) if *at > self.now => {
                format!("{} (in {})", rfc3339(*at), age::between(self.now, *at))
            }
            Word::Until(at) => rfc3339(*at),
        }
    }
}

/// Text in a colour of a terminal: `31` is red, `33` yellow.
pub fn painted(code: &str, text: &str) -> String {
    format!("\u{1b}[{code}m{text}\u{1b}[0m")
}

/// The words after a label, with the further lines below each other. A word that does not fit stands alone.
fn wrapped(label: &str, text: &str, width: usize) -> String {
    let indent = label.chars().count();
    if indent + text.chars().count() <= width {
        return format!("{}\n", format!("{label}{text}").trim_end());
    }
    let indent = if indent == 0 { 4 } else { indent };
    let (mut lines, mut line, mut is_first) = (String::new(), label.to_owned(), true);
    for word in text.split_whitespace() {
        if !is_first && line.chars().count() + word.chars().count() > width {
            lines.push_str(line.trim_end());
            lines.push('\n');
            line = " ".repeat(indent);
        }
        line.push_str(word);
        line.push(' ');
        is_first = false;
    }
    format!("{lines}{}\n", line.trim_end())
}

/// Text in ASCII.
fn plain(text: &str) -> String {
    let text =
        text.replace('…', "...").replace(['·', '–', '•'], "-").replace(['→', '←'], ">").replace('✗', "x");
    text.chars().map(|letter| if letter.is_ascii() { letter } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ascii_has_no_other_characters() {
        assert_eq!(plain("c · d … é\n"), "c - d ... ?\n");
    }
}
