//! What comes before clap: the arguments of `mooring run` as kube-controller-manager (KCM) would read them.
//!
//! In: the words after `run`. Out: the words for clap, and the flags of KCM that are ignored; or one line
//! that says which flag is refused and why. The words are read as Go's pflag does: `--flag=value` and
//! `--flag value`, a value may begin with a dash, booleans only take `=value`, `_` is as good as `-` in a
//! name, `-v=2`, `-v2` and `-v 2` are `--v=2`. Which flag is treated how: [`super::kcm_flags`].

use std::ffi::OsString;

use super::kcm_flags::{self, Flag, Treatment};
use crate::fence::arguments::parse_bool;

/// A flag that was given and has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ignored {
    /// As it was given, with its dashes, without a value.
    pub flag: String,
    /// Why it has none.
    pub reason: &'static str,
}

/// The arguments after the table of KCM's flags was applied to them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sorted {
    /// What clap is to parse.
    pub arguments: Vec<OsString>,
    /// What was left out.
    pub ignored: Vec<Ignored>,
}

/// Applies the table.
///
/// # Errors
/// One line: a flag that is refused, or has no value.
pub fn sort(arguments: impl IntoIterator<Item = OsString>) -> Result<Sorted, String> {
    let mut sorted = Sorted::default();
    let mut words = arguments.into_iter();
    while let Some(word) = words.next() {
        if word == "--" {
            sorted.arguments.push(word);
            break;
        }
        let Some((name, value)) = word.to_str().and_then(split) else {
            sorted.arguments.push(word);
            continue;
        };
        let Some(flag) = kcm_flags::find(&name) else {
            sorted.arguments.push(joined(&name, value.as_ref().map(OsString::from)));
            continue;
        };
        let value = match value.map(OsString::from) {
            None if flag.takes_value => match words.next() {
                Some(next) => Some(next),
                None => return Err(format!("--{name}: needs a value")),
            },
            value => value,
        };
        apply(flag, value, &mut sorted)?;
    }
    sorted.arguments.extend(words);
    Ok(sorted)
}

/// A word that is a flag: its name, and its value if that is in the same word.
fn split(word: &str) -> Option<(String, Option<String>)> {
    if let Some(flag) = word.strip_prefix("--") {
        let (name, value) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (flag, None),
        };
        return Some((name.replace('_', "-"), value));
    }
    let value = word.strip_prefix("-v")?;
    let value = value.strip_prefix('=').unwrap_or(value);
    Some(("v".to_owned(), (!value.is_empty()).then(|| value.to_owned())))
}

fn joined(name: &str, value: Option<OsString>) -> OsString {
    let value = value.map(|value| ["=".into(), value]);
    std::iter::once(format!("--{name}").into()).chain(value.into_iter().flatten()).collect()
}

fn apply(flag: Flag, value: Option<OsString>, sorted: &mut Sorted) -> Result<(), String> {
    let text = value.as_ref().map_or_else(|| "true".into(), |value| value.to_string_lossy());
    match flag.treatment {
        Treatment::Obeyed => sorted.arguments.push(joined(flag.name, value)),
        Treatment::Ignored(reason) => sorted.ignored.push(ignored(flag, reason)),
        Treatment::Refused(reason, unless) => {
            let means_nothing = |harmless: &&'static str| {
                *harmless == text
                    || !flag.takes_value
                        && parse_bool(&text).is_ok_and(|value| Ok(value) == parse_bool(harmless))
            };
            if !unless.iter().any(means_nothing) {
                return Err(format!("--{}: {reason}", flag.name));
            }
            sorted.ignored.push(ignored(flag, "with this value it means nothing here"));
        }
    }
    Ok(())
}

fn ignored(flag: Flag, reason: &'static str) -> Ignored {
    Ignored { flag: format!("--{}", flag.name), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(words: &[&str]) -> Result<(Vec<String>, Vec<String>), String> {
        let sorted = sort(words.iter().map(OsString::from))?;
        let arguments = sorted.arguments.into_iter().map(|word| word.into_string().unwrap()).collect();
        Ok((arguments, sorted.ignored.into_iter().map(|ignored| ignored.flag).collect()))
    }

    #[test]
    fn flags_are_read_as_go_reads_them() {
        let cases: [(&[&str], &[&str]); 12] = [
            (&["--kube-api-qps", "-1"], &["--kube-api-qps=-1"]),
            (&["--kube-api-qps=-1"], &["--kube-api-qps=-1"]),
            (&["--kube_api_qps=5"], &["--kube-api-qps=5"]),
            (&["--leader-elect", "--kubeconfig", "x"], &["--leader-elect", "--kubeconfig=x"]),
            (&["--leader-elect=false"], &["--leader-elect=false"]),
            (&["-v", "4"], &["--v=4"]),
            (&["-v=4"], &["--v=4"]),
            (&["-v4"], &["--v=4"]),
            (&["--v", "4"], &["--v=4"]),
            // A value that looks like a flag is a value still.
            (&["--kubeconfig", "--leader-elect"], &["--kubeconfig=--leader-elect"]),
            (&["--", "--controllers=*"], &["--", "--controllers=*"]),
            // Not KCM's: for clap to judge.
            (&["--log_level", "debug", "word", "-x"], &["--log-level", "debug", "word", "-x"]),
        ];
        for (words, expected) in cases {
            let (arguments, ignored) = sorted(words).unwrap();
            assert_eq!(arguments, expected, "{words:?}");
            assert!(ignored.is_empty(), "{words:?}: {ignored:?}");
        }
    }

    #[test]
    fn what_is_ignored_is_left_out_with_its_value_and_named() {
        let words = [
            "--cluster-cidr",
            "10.0.0.0/8",
            "--allocate-node-cidrs",
            "--v=2",
            "--contention-profiling=false",
            "--feature-gates=SELinuxMount=true,AllBeta=true",
        ];
        let (arguments, ignored) = sorted(&words).unwrap();
        assert_eq!(arguments, ["--v=2"]);
        assert_eq!(
            ignored,
            ["--cluster-cidr", "--allocate-node-cidrs", "--contention-profiling", "--feature-gates"]
        );
    }

    #[test]
    fn what_is_refused_says_why_and_what_means_nothing_is_let_through() {
        let refused: [(&[&str], &str); 6] = [
            (&["--enable-leader-migration"], "--enable-leader-migration: "),
            (&["--enable-leader-migration=T"], "--enable-leader-migration: "),
            (&["--leader-migration-config=/f"], "--leader-migration-config: "),
            (&["--master=https://x"], "--master: name the server in the file of --kubeconfig"),
            (&["--emulated-version=kube=1.33"], "--emulated-version: "),
            (&["--cluster-cidr"], "--cluster-cidr: needs a value"),
        ];
        for (words, expected) in refused {
            let line = sorted(words).unwrap_err();
            assert!(line.starts_with(expected) && !line.contains('\n'), "{line}");
        }
        let words = ["--enable-leader-migration=f", "--master=", "--emulated-version=1.36"];
        assert_eq!(sorted(&words).unwrap().0, [""; 0]);
    }
}
