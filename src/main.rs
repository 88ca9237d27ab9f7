//! Entry of the `mooring` program.

use std::process::ExitCode;

use mooring::{
    cli::{self, Cli, Command},
    program, telemetry,
};

fn main() -> ExitCode {
    let exit = match cli::parse(std::env::args_os()) {
        Ok(Cli { command: Command::Run(args) }) => program::run(*args),
        Err(stop) => program::stop(&stop),
    };
    telemetry::flush();
    exit
}
