//! `docs/flags.md`, printed from the table of flags and from clap's own. `MOORING_WRITE_DOCS=1` writes it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    path::Path,
};

use clap::CommandFactory;

use super::{
    Cli,
    kcm_flags::{self, LISTED, TREATED, Treatment},
};

/// The default of each flag of kube-controller-manager.
fn stock_defaults() -> BTreeMap<&'static str, &'static str> {
    let default = |line: &'static str| {
        let mut parts = line.splitn(3, ' ');
        (parts.next().unwrap(), parts.nth(1).unwrap_or_default().trim_matches('"'))
    };
    LISTED.lines().map(default).collect()
}

/// What clap knows of `mooring run`: its long flags with their help and default.
fn own() -> BTreeMap<String, (String, String)> {
    let mut command = Cli::command();
    command.build();
    let run = command.find_subcommand("run").unwrap();
    let known = run.get_arguments().filter_map(|argument| {
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let default: Vec<_> =
            argument.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        Some((argument.get_long()?.to_owned(), (help, default.join(","))))
    });
    known.collect()
}

#[test]
fn every_flag_of_kube_controller_manager_is_obeyed_ignored_or_refused() {
    let stock = stock_defaults();
    let mut treated = BTreeSet::new();
    for name in TREATED.iter().flat_map(|(_, names)| names.split_whitespace()) {
        assert!(stock.contains_key(name) && treated.insert(name), "{name} is not listed, or treated twice");
    }
    assert!(stock.len() > 140, "{}", stock.len());

    let own = own();
    for flag in kcm_flags::all() {
        let known = own.contains_key(flag.name);
        let expected = if flag.treatment == Treatment::Obeyed { known } else { !known };
        assert!(expected, "{}: {:?}, but known to clap: {known}", flag.name, flag.treatment);
        // As it would be copied, with the value it has by default: nothing is in the way.
        let default = stock[flag.name];
        let word = if default.is_empty() { None } else { Some(format!("--{}={default}", flag.name)) };
        let result = word.map(|word| super::arguments::sort([word.into()]));
        assert!(result.is_none_or(|result| result.is_ok()), "{}", flag.name);
    }
}

fn row(text: &mut String, cells: &[&str]) {
    writeln!(text, "| {} |", cells.join(" | ")).unwrap();
}

/// The first sentence, for a cell.
fn sentence(help: &str) -> String {
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    help.split_once(". ").map_or(help.clone(), |(first, _)| first.to_owned())
}

fn document() -> String {
    let own = own();
    let defaults = stock_defaults();
    let mut flags: Vec<_> = kcm_flags::all().collect();
    flags.sort_unstable_by_key(|flag| flag.name);
    let mut text = String::from(include_str!("flag_docs.md"));

    text.push_str("\n## Obeyed\n\n");
    row(&mut text, &["Flag", "What it says", "Default", "kube-controller-manager's"]);
    row(&mut text, &["---", "---", "---", "---"]);
    for flag in flags.iter().filter(|flag| flag.treatment == Treatment::Obeyed) {
        let Some((help, default)) = own.get(flag.name) else { continue };
        let stock = defaults[flag.name];
        // Go prints 1m0s, and 0s or nothing for what is nothing.
        let stock_list = stock.trim_matches(['[', ']']);
        let same = default == stock_list
            || *default == stock.replace("m0s", "m")
            || default == "false" && stock.is_empty();
        let code = |value: &str| if value.is_empty() { String::new() } else { format!("`{value}`") };
        let name = format!("`--{}`", flag.name);
        row(
            &mut text,
            &[
                &name,
                &sentence(help),
                &code(default),
                &if same { "the same".to_owned() } else { code(stock) },
            ],
        );
    }

    text.push_str("\n## Refused\n\n");
    row(&mut text, &["Flag", "Why", "But for the values"]);
    row(&mut text, &["---", "---", "---"]);
    for flag in &flags {
        if let Treatment::Refused(reason, unless) = flag.treatment {
            let unless: Vec<_> = unless
                .iter()
                .filter(|value| flag.takes_value || !value.is_empty())
                .filter(|value| !flag.takes_value || **value != "false")
                .map(|value| if value.is_empty() { "empty".to_owned() } else { format!("`{value}`") })
                .collect();
            row(&mut text, &[&format!("`--{}`", flag.name), reason, &unless.join(", ")]);
        }
    }
    text.push_str("\n## Ignored\n\n");
    row(&mut text, &["Why", "Flags"]);
    row(&mut text, &["---", "---"]);
    let mut reasons: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for flag in &flags {
        if let Treatment::Ignored(reason) = flag.treatment {
            reasons.entry(reason).or_default().push(format!("`--{}`", flag.name));
        }
    }
    for (reason, names) in reasons {
        row(&mut text, &[reason, &names.join(" ")]);
    }

    text.push_str("\n## mooring's own\n\n");
    row(&mut text, &["Flag", "What it says", "Default"]);
    row(&mut text, &["---", "---", "---"]);
    for (name, (help, default)) in own.iter().filter(|(name, _)| kcm_flags::find(name).is_none()) {
        let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
        row(&mut text, &[&format!("`--{name}`"), &sentence(help), &default]);
    }
    text
}

#[test]
fn the_page_about_flags_is_printed_from_the_table() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/flags.md");
    let expected = document();
    if std::env::var_os("MOORING_WRITE_DOCS").is_some() {
        fs::write(&page, &expected).unwrap();
    }
    let found = fs::read_to_string(&page).unwrap_or_default();
    assert!(
        found == expected,
        "docs/flags.md is not what the flags are: MOORING_WRITE_DOCS=1 writes it anew"
    );
}
