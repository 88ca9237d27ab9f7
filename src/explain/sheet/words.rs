//! Names, commands, times and text of strangers, as they are printed.

use serde_json::Value;

use crate::explain::subject::{self, field};

/// The program's own name, and its commands that answers name.
pub(super) const PROGRAM: &str = "mooring";
const COMMANDS: [&str; 6] = ["explain", "doctor", "node", "whatif", "repair", "observe"];

/// A text with its commands under the name by which the program was called, so that they can be typed again.
pub(in crate::explain) fn called(text: &str, program: &str) -> String {
    let mut text = text.to_owned();
    for command in COMMANDS.iter().filter(|_| program != PROGRAM) {
        text = text.replace(&format!("{PROGRAM} {command} "), &format!("{program} {command} "));
    }
    text
}

/// Kind and name as they are typed, with the namespace.
pub(super) fn name(object: &Value) -> String {
    let Some(found) = subject::of(object) else {
        return format!("{}/{}", field(object, "kind"), field(object, "name"));
    };
    let namespace = found.names().0.map(|namespace| format!("  -n {namespace}"));
    format!("{}{}", subject::typed(&found), namespace.unwrap_or_default())
}

/// A command to be copied: words that a shell would take apart are quoted.
pub fn command(words: &[String]) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./=:,@%+".contains(letter);
    let quoted = words.iter().map(|word| {
        let is_plain = !word.is_empty() && word.chars().all(is_plain);
        if is_plain { word.clone() } else { format!("'{}'", word.replace('\'', r"'\''")) }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Whether a character is not seen, and changes what is seen: control characters, marks of writing direction.
pub(in crate::explain) fn is_deceiving(letter: char) -> bool {
    letter.is_control()
        || matches!(
            letter,
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}'
        )
}

/// Text of strangers without what steers a terminal.
pub fn clean(text: &str) -> String {
    let shown = |letter: char| match letter {
        '\n' | '\t' | '\r' => ' ',
        letter if is_deceiving(letter) => char::REPLACEMENT_CHARACTER,
        letter => letter,
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_can_be_copied_and_text_of_strangers_steers_no_terminal() {
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(
            command(&words(&["kubectl", "get", "pv", "a b", "it's", ""])),
            r"kubectl get pv 'a b' 'it'\''s' ''"
        );
        assert_eq!(clean("\u{1b}[31mred\nnext \u{202e}x"), "\u{fffd}[31mred next \u{fffd}x");
        let sentence = "first see: mooring whatif taint n (mooring's lease); explain mooring";
        let plugin = "first see: kubectl mooring whatif taint n (mooring's lease); explain mooring";
        assert_eq!(called(sentence, "kubectl mooring"), plugin);
        assert_eq!(called(sentence, "mooring"), sentence);
    }
}
