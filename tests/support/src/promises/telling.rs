//! The recipients of messages: S41.
//!
//! In: a message, its readers, and the namespaces that have a pod or claim of a name. Out: a name that they may not see.

use std::collections::BTreeSet;

/// S41: a word of a message that is the name of a pod or claim, and of none in the reader's namespace.
pub fn foreign_name<'a, 'b>(
    message: &'a str,
    reader: &str,
    namespaces_of: impl Fn(&str) -> Option<&'b BTreeSet<String>>,
) -> Option<&'a str> {
    let words = message.split(|c: char| !(c.is_ascii_alphanumeric() || "-.".contains(c)));
    let mut words = words.map(|word| word.trim_end_matches('.'));
    words.find(|word| namespaces_of(word).is_some_and(|namespaces| !namespaces.contains(reader)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s41_a_name_is_told_that_only_another_namespace_has() {
        let namespaces =
            |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let (theirs, shared) = (namespaces(&["bank"]), namespaces(&["bank", "shop"]));
        let known = |name: &str| match name {
            "ledger" | "ledger-0.db" => Some(&theirs),
            "data" => Some(&shared),
            _ => None,
        };
        let cases = [
            ("reserved for ledger.", Some("ledger")),
            ("claim \"bank/ledger\" has it", Some("ledger")),
            ("used by ledger-0.db, too", Some("ledger-0.db")),
            ("waits for data and ledgers", None),
            ("", None),
        ];
        for (message, expected) in cases {
            assert_eq!(foreign_name(message, "shop", known), expected, "{message}");
        }
    }
}
