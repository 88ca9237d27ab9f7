//! The name under which a person called the program, in the commands that an answer prints.
//!
//! In: an answer. Out: the same; of kubectl's plugin each command of ours begins with `kubectl`, so that it can be typed again. Only
//! for text: to programs a command has one name.

use std::env;

use crate::{
    cli::{PLUGIN, asking::ASKING, is_called},
    explain::{doctor::Findings, report::Explanation},
};

/// The program's own name.
const OWN: &str = "mooring";

/// How the program was called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Called {
    as_plugin: bool,
}

impl Called {
    /// As it was.
    pub(super) fn here() -> Self {
        Self { as_plugin: is_called(env::args_os().next().as_ref(), PLUGIN) }
    }

    /// A sentence of ours.
    pub(super) fn sentence(self, text: &str) -> String {
        let mut text = text.to_owned();
        if self.as_plugin {
            for command in ASKING {
                text = text.replace(&format!("{OWN} {command} "), &format!("kubectl {OWN} {command} "));
            }
        }
        text
    }

    fn words(self, words: &mut Vec<String>) {
        if self.as_plugin && words.first().is_some_and(|word| word == OWN) {
            words.insert(0, "kubectl".to_owned());
        }
    }

    /// An answer about one object.
    pub(super) fn explanation(self, mut answer: Explanation) -> Explanation {
        for action in &mut answer.actions {
            self.words(&mut action.command);
            action.text = self.sentence(&action.text);
        }
        for unknown in &mut answer.unknown {
            *unknown = self.sentence(unknown);
        }
        answer
    }

    /// What was found in a cluster.
    pub(super) fn findings(self, mut answer: Findings) -> Findings {
        for finding in &mut answer.findings {
            self.words(&mut finding.command);
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_name_under_which_they_can_be_typed() {
        let words = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let rows = [
            ("mooring explain pvc/a -n b", "kubectl mooring explain pvc/a -n b"),
            ("kubectl get leases,pods -A", "kubectl get leases,pods -A"),
            ("explain mooring", "explain mooring"),
        ];
        for (own, plugin) in rows {
            for (as_plugin, expected) in [(false, own), (true, plugin)] {
                let mut command = words(own);
                Called { as_plugin }.words(&mut command);
                assert_eq!(command, words(expected));
            }
        }
        let sentence = "first see: mooring whatif taint n (mooring's lease)";
        let expected = "first see: kubectl mooring whatif taint n (mooring's lease)";
        assert_eq!(Called { as_plugin: true }.sentence(sentence), expected);
        assert_eq!(Called { as_plugin: false }.sentence(sentence), sentence);
    }
}
