//! The process around the daemon, for every program that can run it: from its arguments to its exit code.
//!
//! Exit codes of `run`: 0 after an orderly end; 1 when a part died or the lease was lost; 2 when it could not
//! start as told to (flags, kubeconfig, address); 128 + signal when a second signal cut the shutdown
//! short. The commands that ask have their own ([`query`]).

use std::{
    backtrace::Backtrace,
    io::{self, Write},
    process::ExitCode,
};

use crate::{
    app::{self, DaemonFailure},
    cli::{Command, RunArgs, Stop, arguments::Ignored},
    config::Config,
    query, supervise, telemetry,
    terminal::{FAILED, block_on, complain},
};

const MISTAKE: u8 = 2;
/// In the log, this is the program and not one of its parts.
const LOG_TARGET: &str = "mooring";

/// A command, to its end.
pub fn execute(command: Command) -> ExitCode {
    match command {
        Command::Run(args) => run(*args),
        Command::Explain(args) => query::finish(query::explain(&args)),
        Command::Doctor(args) => query::finish(query::doctor(&args)),
        Command::Node(args) => query::finish(query::node(&args)),
        Command::WhatIf(args) => query::finish(query::whatif(&args)),
        Command::Repair(args) => query::finish(query::repair::run(&args)),
        Command::Observe(args) => query::finish(query::observe::run(&args)),
        Command::Preflight(args) => query::finish(query::preflight::run(&args)),
        Command::Switch(args) => query::finish(query::switch::run(&args)),
        Command::Completion { shell } => query::completion::script(shell),
        Command::Man { folder } => query::completion::manual(folder.as_deref()),
    }
}

/// `mooring run`, to its end.
pub fn run(args: RunArgs) -> ExitCode {
    let ignored = args.ignored.clone();
    let config = match Config::try_from(args) {
        Ok(config) => config,
        Err(error) => return mistake(&error.to_string()),
    };
    if let Err(error) = telemetry::init(&config.log) {
        return mistake(&error.to_string());
    }
    exit_on_panic();
    for Ignored { flag, reason } in &ignored {
        tracing::info!(target: LOG_TARGET, flag, reason, "flag has no effect here");
    }
    for controller in &config.controllers.passed_over {
        tracing::info!(target: LOG_TARGET, controller, "not mooring's: kube-controller-manager has to run it");
    }
    let result = match block_on(config.worker_threads, app::run(config)) {
        Ok(result) => result,
        Err(error) => return mistake(&format!("cannot start the runtime: {error}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(DaemonFailure::Setup(error)) => mistake(&format!("{error:#}")),
        Err(DaemonFailure::Running(error)) => {
            tracing::error!(target: LOG_TARGET, error = format!("{error:#}"), "exiting");
            ExitCode::from(FAILED)
        }
    }
}

/// Why there is nothing to run: says it.
pub fn stop(stop: &Stop) -> ExitCode {
    match stop {
        Stop::Print(text) => {
            // A closed pipe (`--help | head`) is no failure.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Stop::Mistake(line) => mistake(line),
        Stop::Usage(line) => {
            complain(line);
            ExitCode::from(query::USAGE)
        }
    }
}

/// It cannot start as told to: says why.
pub fn mistake(message: &str) -> ExitCode {
    complain(message);
    ExitCode::from(MISTAKE)
}

/// A panic anywhere ends the process with exit 1 and one line that names the task, whether or not
/// the build unwinds: a task that a library catches would otherwise die unnoticed.
pub fn exit_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let reason = panic.payload_as_str().unwrap_or("no message");
        let location = panic.location().map(ToString::to_string);
        let task = supervise::current_task();
        let backtrace = Backtrace::force_capture().to_string();
        tracing::error!(target: LOG_TARGET, task, reason, location, backtrace, "panicked, exiting");
        telemetry::flush();
        std::process::exit(i32::from(FAILED));
    }));
}

#[cfg(test)]
mod tests {
    use crate::telemetry::{LogConfig, LoggingFormat};

    use super::*;

    #[test]
    #[ignore = "ends its process: the next test runs it in one of its own"]
    fn panics_as_the_daemon_does() {
        let filter = "info".to_owned();
        telemetry::init(&LogConfig { format: LoggingFormat::Json, filter }).unwrap();
        exit_on_panic();
        panic!("oh");
    }

    #[test]
    fn a_panic_is_one_line_with_its_backtrace_and_exit_1() {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture", "program::tests::panics_as_the_daemon_does"])
            .env_remove("RUST_BACKTRACE")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(i32::from(FAILED)));
        let log = String::from_utf8(output.stderr).unwrap();
        let line: serde_json::Value =
            serde_json::from_str(&log).unwrap_or_else(|error| panic!("{error}: {log}"));
        assert_eq!((line["msg"].as_str(), line["reason"].as_str()), (Some("panicked, exiting"), Some("oh")));
        assert!(
            line["location"].as_str().is_some_and(|place| place.starts_with("src/program.rs:")),
            "{line}"
        );
        let backtrace = line["backtrace"].as_str().unwrap();
        assert!(backtrace.contains("panics_as_the_daemon_does"), "{backtrace}");
    }
}
