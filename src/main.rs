//! Entry of the `mooring` program.

use std::process::ExitCode;

use mooring::{
    cli::{self, Cli},
    program,
    query::completion,
    telemetry,
};

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    if cli::is_called(words.next().as_ref(), completion::COMPLETER) {
        return completion::complete(&words.collect::<Vec<_>>());
    }
    let exit = match cli::parse(std::env::args_os()) {
        Ok(Cli { command }) => program::execute(command),
        Err(stop) => program::stop(&stop),
    };
    telemetry::flush();
    exit
}
