//! What may stand in place of the word that is being typed. Pure.
//!
//! In: the words so far, the last of which is the begun one, and the definition of the command line. Out: what there is to
//! complete, and the values of the flags before it, which say whose names are wanted.

use std::collections::BTreeMap;

use clap::{Arg, Command, ValueHint};

use crate::explain::subject::Subject;

/// Kinds in the order in which they are offered.
const KINDS: [&str; 6] = ["node", "pod", "pv", "pvc", "sc", "va"];

/// What there is to complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// One of these.
    Words(Vec<String>),
    /// A name of an object of this kind; before it stands what was typed of the kind: `pvc/`, or nothing.
    Names { kind: &'static str, head: String },
    /// A namespace.
    Namespaces,
    /// A file, which the shell knows better.
    Files,
}

/// The question of a shell. It may have a token in it: it is not to be printed.
#[derive(Clone)]
pub(super) struct Asked {
    /// What is wanted.
    pub wanted: Wanted,
    /// How it begins.
    pub begun: String,
    /// Values of the flags so far, by their ids; a switch has none.
    pub flags: BTreeMap<String, Vec<String>>,
}

impl Asked {
    /// The last value of a flag.
    pub(super) fn flag(&self, id: &str) -> Option<&str> {
        self.flags.get(id)?.last().map(String::as_str)
    }
}

/// What is asked for. The command is built.
pub(super) fn asked(words: &[&str], program: &Command) -> Asked {
    let (begun, before) = words.split_last().map_or(("", &[][..]), |(begun, before)| (*begun, before));
    let mut typed = Typed { command: program, plain: Vec::new(), open: None, flags: BTreeMap::new() };
    for word in before {
        typed.take(word);
    }
    let of_flag = begun.strip_prefix("--").and_then(|flag| flag.split_once('='));
    let (wanted, begun) = match (typed.open, of_flag) {
        (Some(flag), _) => (values(flag), begun),
        // What stands before the `=` is the shell's to keep.
        (None, Some((name, value))) => (typed.long(name).map_or_else(nothing, values), value),
        (None, None) if begun.starts_with('-') => (typed.long_flags(), begun),
        (None, None) => (typed.next(begun), begun),
    };
    Asked { wanted, begun: begun.to_owned(), flags: typed.flags }
}

/// What the words before it come to.
struct Typed<'a> {
    /// The command that they lead to.
    command: &'a Command,
    /// Words after the command that are neither flags nor values of flags.
    plain: Vec<String>,
    /// A flag that waits for its value.
    open: Option<&'a Arg>,
    flags: BTreeMap<String, Vec<String>>,
}

impl<'a> Typed<'a> {
    fn take(&mut self, word: &str) {
        if let Some(flag) = self.open.take() {
            self.note(flag, Some(word));
        } else if let Some(flag) = word.strip_prefix("--") {
            match flag.split_once('=') {
                Some((name, value)) => {
                    if let Some(flag) = self.long(name) {
                        self.note(flag, Some(value));
                    }
                }
                None => {
                    if let Some(flag) = self.long(flag) {
                        self.note(flag, None);
                    }
                }
            }
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            self.short(letters);
        } else if let Some(command) = self.command.find_subcommand(word) {
            self.command = command;
        } else {
            self.plain.push(word.to_owned());
        }
    }

    /// Switches may stand together, and a value behind its letter: `-wn shop`, `-nshop`.
    fn short(&mut self, letters: &str) {
        for (at, letter) in letters.char_indices() {
            let Some(flag) = self.command.get_arguments().find(|flag| flag.get_short() == Some(letter))
            else {
                return;
            };
            let rest = letters.get(at + letter.len_utf8()..).unwrap_or_default();
            if flag.get_action().takes_values() && !rest.is_empty() {
                self.note(flag, Some(rest.strip_prefix('=').unwrap_or(rest)));
                return;
            }
            self.note(flag, None);
        }
    }

    /// Without a value, one that takes the next word waits for it.
    fn note(&mut self, flag: &'a Arg, value: Option<&str>) {
        let values = self.flags.entry(flag.get_id().to_string()).or_default();
        match value {
            Some(value) => values.push(value.to_owned()),
            None if flag.get_action().takes_values() && !flag.is_require_equals_set() => {
                self.open = Some(flag);
            }
            None => {}
        }
    }

    fn long(&self, name: &str) -> Option<&'a Arg> {
        self.command.get_arguments().find(|flag| flag.get_long() == Some(name))
    }

    fn long_flags(&self) -> Wanted {
        let shown = self.command.get_arguments().filter(|flag| !flag.is_hide_set());
        Wanted::Words(shown.filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect())
    }

    /// The next word that is no flag.
    fn next(&self, begun: &str) -> Wanted {
        if self.command.has_subcommands() {
            let shown = self.command.get_subcommands().filter(|command| !command.is_hide_set());
            return Wanted::Words(shown.map(|command| command.get_name().to_owned()).collect());
        }
        let plain: Vec<&str> = self.plain.iter().map(String::as_str).collect();
        match (self.command.get_name(), plain.as_slice()) {
            ("explain", []) => match begun.split_once('/') {
                Some((kind, _)) => kind_of(kind).map_or_else(nothing, |kind| names(kind, begun)),
                None => Wanted::Words(KINDS.map(|kind| format!("{kind}/")).to_vec()),
            },
            ("explain", [kind]) | ("whatif", ["delete", kind]) if !kind.contains('/') => {
                kind_of(kind).map_or_else(nothing, |kind| names(kind, ""))
            }
            ("node", []) | ("whatif", ["taint" | "delete-node" | "cordon"]) => names("node", begun),
            ("whatif", []) => words(&["bind", "cordon", "delete", "delete-node", "taint"]),
            ("whatif", ["delete"]) => words(&["pod", "pvc"]),
            ("repair", []) => words(&["free", "relink", "unstick"]),
            ("repair", ["relink"]) => names("pvc", begun),
            ("repair", ["free"] | ["relink", _]) => names("pv", begun),
            ("repair", ["unstick"]) => names("va", begun),
            (_, plain) => self
                .command
                .get_positionals()
                .nth(plain.len())
                .filter(|positional| is_general(positional))
                .map_or_else(nothing, values),
        }
    }
}

/// Whether what may stand there does not depend on the words before.
fn is_general(positional: &Arg) -> bool {
    !matches!(positional.get_id().as_str(), "subject" | "words")
}

/// The kind that a word means, as it is offered; in any form that kubectl takes.
fn kind_of(word: &str) -> Option<&'static str> {
    let subject = Subject::new(word, "-", "-").ok()?.to_string();
    let kind = subject.split('/').next()?;
    KINDS.into_iter().find(|known| *known == kind)
}

/// Names of a kind, behind the kind if that was typed.
fn names(kind: &'static str, begun: &str) -> Wanted {
    let head = begun.split_once('/').filter(|(typed, _)| kind_of(typed) == Some(kind));
    Wanted::Names { kind, head: head.map_or_else(String::new, |(typed, _)| format!("{typed}/")) }
}

/// What an argument takes.
fn values(arg: &Arg) -> Wanted {
    if arg.get_id() == "namespace" {
        return Wanted::Namespaces;
    }
    match arg.get_value_hint() {
        ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath => Wanted::Files,
        _ => {
            let shown = arg.get_possible_values().into_iter().filter(|value| !value.is_hide_set());
            Wanted::Words(shown.map(|value| value.get_name().to_owned()).collect())
        }
    }
}

fn words(words: &[&str]) -> Wanted {
    Wanted::Words(words.iter().map(|&word| word.to_owned()).collect())
}

fn nothing() -> Wanted {
    words(&[])
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn ask(line: &str) -> Asked {
        let mut program = Cli::command();
        program.build();
        asked(&line.split(' ').collect::<Vec<_>>(), &program)
    }

    #[test]
    fn what_may_come_next_follows_from_the_words_before() {
        let commands = words(&["run", "explain", "doctor", "node", "whatif", "repair", "completion", "man"]);
        let kinds = words(&["node/", "pod/", "pv/", "pvc/", "sc/", "va/"]);
        let forms = words(&["text", "wide", "json", "yaml", "dot"]);
        let names = |kind, head: &str| Wanted::Names { kind, head: head.to_owned() };
        let cases = [
            ("", commands.clone()),
            ("ex", commands),
            ("explain ", kinds.clone()),
            ("explain pv", kinds),
            ("explain pvc/da", names("pvc", "pvc/")),
            ("explain PersistentVolumeClaims/da", names("pvc", "PersistentVolumeClaims/")),
            ("explain pod ", names("pod", "")),
            ("explain po ", names("pod", "")),
            ("explain thing/a", nothing()),
            ("explain thing ", nothing()),
            ("explain pvc data ", nothing()),
            ("explain pvc/data ", nothing()),
            ("explain -n ", Wanted::Namespaces),
            ("explain --namespace ", Wanted::Namespaces),
            ("explain --namespace=sh", Wanted::Namespaces),
            ("explain -n shop pvc/", names("pvc", "pvc/")),
            ("explain -nshop pvc/", names("pvc", "pvc/")),
            ("explain -wn shop pvc/", names("pvc", "pvc/")),
            ("explain --as alice --token t pvc/", names("pvc", "pvc/")),
            ("explain --request-timeout 5s --ascii pv ", names("pv", "")),
            ("explain --wait pod/", names("pod", "pod/")),
            ("explain --wait=5m pod/", names("pod", "pod/")),
            ("explain --bogus pod/", names("pod", "pod/")),
            ("explain pvc/a -o ", forms.clone()),
            ("explain pvc/a --output=j", forms),
            ("explain --context ", nothing()),
            ("explain --kubeconfig ", Wanted::Files),
            ("explain --bogus=", nothing()),
            ("doctor ", nothing()),
            ("doctor -o ", words(&["text", "json", "yaml"])),
            ("node ", names("node", "")),
            ("node n1 ", nothing()),
            ("whatif ", words(&["bind", "cordon", "delete", "delete-node", "taint"])),
            ("whatif taint ", names("node", "")),
            ("whatif bind -f ", Wanted::Files),
            ("whatif bind ", nothing()),
            ("whatif delete ", words(&["pod", "pvc"])),
            ("whatif delete pod ", names("pod", "")),
            ("repair ", words(&["free", "relink", "unstick"])),
            ("repair relink ", names("pvc", "")),
            ("repair relink pvc/d", names("pvc", "pvc/")),
            ("repair relink pvc/data pv/", names("pv", "pv/")),
            ("repair free pvc/", names("pv", "")),
            ("repair unstick va/", names("va", "va/")),
            ("run --logging-format ", words(&["text", "logfmt", "json"])),
            ("run ", nothing()),
            ("completion ", words(&["bash", "elvish", "fish", "powershell", "zsh"])),
            ("man ", Wanted::Files),
        ];
        for (line, expected) in cases {
            assert_eq!(ask(line).wanted, expected, "{line:?}");
        }
    }

    #[test]
    fn flags_are_those_of_the_command() {
        let flags = |line| match ask(line).wanted {
            Wanted::Words(words) => words,
            other => panic!("{line}: {other:?}"),
        };
        let explain = flags("explain pvc/a --na");
        assert!(["--namespace", "--help", "--output"].iter().all(|flag| explain.iter().any(|it| it == flag)));
        assert!(!explain.iter().any(|flag| flag == "--leader-elect"), "{explain:?}");
        assert!(flags("run -").iter().any(|flag| flag == "--leader-elect"));
    }

    #[test]
    fn the_flags_before_say_whose_names_are_wanted() {
        let asked =
            ask("explain -n old -wnshop --context=x --as alice --as-group a --as-group=b --output=js");
        assert_eq!((asked.begun.as_str(), asked.flag("namespace")), ("js", Some("shop")));
        assert_eq!((asked.flag("context"), asked.flag("server")), (Some("x"), None));
        assert_eq!(asked.flag("impersonated"), Some("alice"));
        assert_eq!(asked.flags.get("impersonated_groups"), Some(&vec!["a".to_owned(), "b".to_owned()]));
        assert!(asked.flags.contains_key("watch"));
    }
}
