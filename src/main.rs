//! Entry of the `mooring` program.
//!
//! Exit codes: 0 after an orderly end; 1 when a part died or the lease was lost; 2 when it could not
//! start as told to (flags, kubeconfig, address); 128 + signal when a second signal cut the shutdown
//! short.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use mooring::{
    app::{self, Failure},
    cli::{self, Cli, Command, Stop},
    config::Config,
    supervise, telemetry,
};

const FAILED: u8 = 1;
const MISTAKE: u8 = 2;

fn main() -> ExitCode {
    let Cli { command: Command::Run(args) } = match cli::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(Stop::Print(text)) => {
            // A closed pipe (`--help | head`) is no failure.
            let _ = io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(Stop::Mistake(line)) => return mistake(&line),
    };
    let config = match Config::try_from(*args) {
        Ok(config) => config,
        Err(error) => return mistake(&error.to_string()),
    };
    if let Err(error) = telemetry::init(&config.log) {
        return mistake(&error.to_string());
    }
    exit_on_panic();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return mistake(&format!("cannot start the runtime: {error}")),
    };
    let result = runtime.block_on(app::run(config));
    // Watches have no end of their own.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Setup(error)) => mistake(&format!("{error:#}")),
        Err(Failure::Running(error)) => {
            tracing::error!(error = format!("{error:#}"), "exiting");
            ExitCode::from(FAILED)
        }
    }
}

/// One line on stderr, whatever the message is made of.
fn mistake(message: &str) -> ExitCode {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(io::stderr(), "mooring: {line}");
    ExitCode::from(MISTAKE)
}

/// A panic anywhere ends the process with exit 1 and one line that names the task, whether or not
/// the build unwinds: a task that a library catches would otherwise die unnoticed.
fn exit_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let payload = panic.payload();
        let message = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        let location = panic.location().map(ToString::to_string);
        let task = supervise::current_task();
        tracing::error!(task, message, location, "panicked, exiting");
        std::process::exit(i32::from(FAILED));
    }));
}
