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
    cli::{self, Cli, Command, RunArgs, Stop},
    config::Config,
    supervise, telemetry,
};

const FAILED: u8 = 1;
const MISTAKE: u8 = 2;

fn main() -> ExitCode {
    match cli::parse(std::env::args_os()) {
        Ok(Cli { command: Command::Run(args) }) => run(*args),
        #[cfg(feature = "demo")]
        Ok(Cli { command: Command::Demo(args) }) => demo(&args),
        Err(Stop::Print(text)) => {
            // A closed pipe (`--help | head`) is no failure.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(Stop::Mistake(line)) => mistake(&line),
    }
}

fn run(args: RunArgs) -> ExitCode {
    let without_effect: Vec<_> = args.without_effect.given().collect();
    let config = match Config::try_from(args) {
        Ok(config) => config,
        Err(error) => return mistake(&error.to_string()),
    };
    if let Err(error) = telemetry::init(&config.log) {
        return mistake(&error.to_string());
    }
    exit_on_panic();
    if !without_effect.is_empty() {
        tracing::info!(flags = without_effect.join(" "), "flags that have no effect here");
    }
    let result = match block_on(app::run(config)) {
        Ok(result) => result,
        Err(error) => return mistake(&format!("cannot start the runtime: {error}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Setup(error)) => mistake(&format!("{error:#}")),
        Err(Failure::Running(error)) => {
            tracing::error!(error = format!("{error:#}"), "exiting");
            ExitCode::from(FAILED)
        }
    }
}

#[cfg(feature = "demo")]
fn demo(args: &cli::DemoArgs) -> ExitCode {
    exit_on_panic();
    // The log is a file here.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        complain(&panic.to_string());
        report(panic);
    }));
    match block_on(mooring::demo::run(args)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) if error.is::<mooring::demo::Mistake>() => mistake(&error.to_string()),
        Ok(Err(error)) => {
            complain(&format!("{error:#}"));
            ExitCode::from(FAILED)
        }
        Err(error) => mistake(&format!("cannot start the runtime: {error}")),
    }
}

/// Runs to the end and leaves behind what has no end of its own, such as watches.
fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let output = runtime.block_on(future);
    runtime.shutdown_background();
    Ok(output)
}

fn mistake(message: &str) -> ExitCode {
    complain(message);
    ExitCode::from(MISTAKE)
}

/// One line on stderr, whatever the message is made of.
fn complain(message: &str) {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(io::stderr(), "mooring: {line}");
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
