//! What may stand in place of the word that is being typed. Pure.
//!
//! In: the words so far, the last of which is the begun one, and the definition of the command line. Out: what there is to
//! complete, and the connection that the flags before it name, which says whose names are wanted.

use clap::{Arg, ArgMatches, Command, FromArgMatches, ValueHint};

use crate::{cli::query::ConnectionArgs, explain::subject::Subject};

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
pub(super) struct CompletedWords {
    /// What is wanted.
    pub wanted: Wanted,
    /// How it begins.
    pub begun: String,
    /// Which API server, and as whom, if the command asks one.
    pub connection: ConnectionArgs,
}

/// What is asked for. The command is built.
pub(super) fn asked(words: &[&str], program: &Command) -> CompletedWords {
    let begun = words.last().copied().unwrap_or_default().to_owned();
    understood(words, program).unwrap_or(CompletedWords {
        wanted: nothing(),
        begun,
        connection: ConnectionArgs::default(),
    })
}

fn understood(words: &[&str], program: &Command) -> Option<CompletedWords> {
    let (begun, before) = words.split_last().map_or(("", &[][..]), |(begun, before)| (*begun, before));
    // What is not complete is no mistake yet.
    let lenient = program.clone().ignore_errors(true);
    let matches = lenient.try_get_matches_from(std::iter::once(&"mooring").chain(before)).ok()?;
    let (command, matches) = match matches.subcommand() {
        Some((name, matches)) => (program.find_subcommand(name)?, matches),
        None => (program, &matches),
    };
    let of_flag = begun.strip_prefix("--").and_then(|flag| flag.split_once('='));
    let (wanted, begun) = match (before.last().and_then(|word| open_flag(command, word)), of_flag) {
        (Some(flag), _) => (values(flag), begun),
        // What stands before the `=` is the shell's to keep.
        (None, Some((name, value))) => (long(command, name).map_or_else(nothing, values), value),
        (None, None) if begun.starts_with('-') => (long_flags(command), begun),
        (None, None) => (next(command, matches, begun), begun),
    };
    let asks = command.get_arguments().any(|arg| arg.get_id() == "impersonated");
    let connection = asks.then(|| ConnectionArgs::from_arg_matches(matches).ok()).flatten();
    Some(CompletedWords { wanted, begun: begun.to_owned(), connection: connection.unwrap_or_default() })
}

/// The flag that waits for its value after this word.
fn open_flag<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let flag = match word.strip_prefix("--") {
        Some(name) => long(command, name)?,
        None => {
            let short = |letter| command.get_arguments().find(|flag| flag.get_short() == Some(letter));
            // Switches may stand together, and a value behind its letter: `-wn shop`, `-nshop`.
            let mut letters = word.strip_prefix('-')?.chars();
            let valued = letters.by_ref().find_map(|letter| short(letter).filter(|it| takes_word(it)))?;
            return letters.as_str().is_empty().then_some(valued);
        }
    };
    takes_word(flag).then_some(flag)
}

/// Whether a flag takes the next word.
fn takes_word(flag: &Arg) -> bool {
    flag.get_action().takes_values() && !flag.is_require_equals_set()
}

fn long<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|flag| flag.get_long() == Some(name))
}

fn long_flags(command: &Command) -> Wanted {
    let shown = command.get_arguments().filter(|flag| !flag.is_hide_set());
    Wanted::Words(shown.filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect())
}

/// The next word that is no flag.
fn next(command: &Command, matches: &ArgMatches, begun: &str) -> Wanted {
    if command.has_subcommands() {
        let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
        return Wanted::Words(shown.map(|command| command.get_name().to_owned()).collect());
    }
    let given = command.get_positionals().filter_map(|arg| matches.get_raw(arg.get_id().as_str()));
    let plain: Vec<&str> = given.flatten().filter_map(|word| word.to_str()).collect();
    match (command.get_name(), plain.as_slice()) {
        ("explain", []) => match begun.split_once('/') {
            Some((kind, _)) => kind_of(kind).map_or_else(nothing, |kind| names(kind, begun)),
            None => Wanted::Words(Subject::words().map(|kind| format!("{kind}/")).collect()),
        },
        ("explain", [kind]) | ("whatif", ["delete", kind]) if !kind.contains('/') => {
            kind_of(kind).map_or_else(nothing, |kind| names(kind, ""))
        }
        ("node", []) | ("whatif", ["taint" | "delete-node" | "cordon"]) => names("node", begun),
        ("whatif", []) => words(&["bind", "cordon", "delete", "delete-node", "taint"]),
        ("whatif", ["delete"]) => words(&["pod", "pvc", "vac"]),
        ("repair", []) => words(&["free", "relink", "unstick"]),
        ("repair", ["relink"]) => names("pvc", begun),
        ("repair", ["free"] | ["relink", _]) => names("pv", begun),
        ("repair", ["unstick"]) => names("va", begun),
        (_, plain) => command
            .get_positionals()
            .nth(plain.len())
            .filter(|positional| is_general(positional))
            .map_or_else(nothing, values),
    }
}

/// Whether what may stand there does not depend on the words before.
fn is_general(positional: &Arg) -> bool {
    !matches!(positional.get_id().as_str(), "subject" | "words")
}

/// The kind that a word means, as it is offered; in any form that kubectl takes.
fn kind_of(word: &str) -> Option<&'static str> {
    Subject::new(word, "-", "-").ok().map(|subject| subject.word())
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

    fn ask(line: &str) -> CompletedWords {
        let mut program = Cli::command();
        program.build();
        asked(&line.split(' ').collect::<Vec<_>>(), &program)
    }

    #[test]
    fn what_may_come_next_follows_from_the_words_before() {
        let commands = words(&[
            "run",
            "explain",
            "doctor",
            "node",
            "whatif",
            "repair",
            "observe",
            "preflight",
            "switch",
            "completion",
            "man",
        ]);
        let kinds = words(&["pod/", "pvc/", "pv/", "va/", "node/", "sc/", "vac/"]);
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
            ("explain pvc/a --output=j", forms.clone()),
            ("explain --context ", nothing()),
            ("explain --kubeconfig ", Wanted::Files),
            ("explain --bogus=", nothing()),
            ("doctor ", nothing()),
            ("doctor -o ", forms.clone()),
            ("node ", names("node", "")),
            ("node n1 ", nothing()),
            ("whatif ", words(&["bind", "cordon", "delete", "delete-node", "taint"])),
            ("whatif taint ", names("node", "")),
            ("whatif bind -f ", Wanted::Files),
            ("whatif bind ", nothing()),
            ("whatif delete ", words(&["pod", "pvc", "vac"])),
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
        let (connection, choice) = (&asked.connection, &asked.connection.choice);
        assert_eq!((asked.begun.as_str(), connection.namespace.as_deref()), ("js", Some("shop")));
        assert_eq!((choice.context.as_deref(), choice.server.as_deref()), (Some("x"), None));
        assert_eq!(choice.impersonated.as_deref(), Some("alice"));
        assert_eq!(choice.impersonated_groups, ["a", "b"]);
    }
}
