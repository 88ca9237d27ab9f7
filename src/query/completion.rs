//! Completion for shells, and the manual, both from the definition of the flags.

use std::{
    fs,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use clap::CommandFactory;
use clap_complete::{Shell, generate};
use clap_mangen::Man;

use crate::{cli::Cli, terminal::failure};

/// Prints the completion script of a shell.
pub fn script(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "mooring", &mut script);
    // A closed pipe is no failure.
    let _ = io::stdout().write_all(&script);
    ExitCode::SUCCESS
}

/// Prints the manual as a page for each command, or writes the pages into a folder.
pub fn manual(folder: Option<&Path>) -> ExitCode {
    let written = match folder {
        Some(folder) => {
            fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder))
        }
        None => pages().map(|pages| {
            // A closed pipe is no failure.
            let _ = io::stdout().write_all(&pages);
        }),
    };
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&format!("the manual cannot be written: {error}")),
    }
}

/// All pages, the program's own first.
fn pages() -> io::Result<Vec<u8>> {
    let mut program = Cli::command();
    program.build();
    let commands = program.get_subcommands().filter(|command| !command.is_hide_set());
    let mut pages = Vec::new();
    for command in std::iter::once(&program).chain(commands) {
        Man::new(command.clone()).render(&mut pages)?;
    }
    Ok(pages)
}
