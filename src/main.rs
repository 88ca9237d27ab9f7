//! Entry of the `mooring` program.

use std::process::ExitCode;

use mooring::{
    cli::{self, Cli},
    program, telemetry,
};

fn main() -> ExitCode {
    let exit = match cli::parse(std::env::args_os()) {
        Ok(Cli { command }) => program::execute(command),
        Err(stop) => program::stop(&stop),
    };
    telemetry::flush();
    exit
}
