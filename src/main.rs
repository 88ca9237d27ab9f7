//! Entry of the `mooring` program.
//!
//! Exit codes: 0 after an orderly end; 1 when a part died or the lease was lost; 2 when it could not
//! start as told to (flags, kubeconfig, address); 128 + signal when a second signal cut the shutdown
//! short.

use std::{
    backtrace::Backtrace,
    io::{self, Write},
    process::ExitCode,
};

use mooring::{
    app::{self, Failure},
    cli::{self, Cli, Command, RunArgs, Stop, arguments::Ignored},
    config::Config,
    supervise, telemetry,
};

const FAILED: u8 = 1;
const MISTAKE: u8 = 2;

fn main() -> ExitCode {
    let exit = match cli::parse(std::env::args_os()) {
        Ok(Cli { command: Command::Run(args) }) => run(*args),
        #[cfg(feature = "demo")]
        Ok(Cli { command: Command::Demo(args) }) => demo(&args),
        Err(Stop::Print(text)) => {
            // A closed pipe (`--help | head`) is no failure.
            let _ = io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(Stop::Mistake(line)) => mistake(&line),
    };
    telemetry::flush();
    exit
}

fn run(args: RunArgs) -> ExitCode {
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
        tracing::info!(flag, reason, "flag has no effect here");
    }
    let result = match block_on(config.worker_threads, app::run(config)) {
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
    // It plays a whole cluster.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match block_on(cores, mooring::demo::run(args)) {
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
fn block_on<F: Future>(threads: usize, future: F) -> io::Result<F::Output> {
    use tokio::runtime::Builder;
    let runtime = match threads {
        // An event goes from its connection to its reader without waking another thread, which costs more than
        // all that is done about it.
        1 => Builder::new_current_thread().enable_all().build()?,
        more => Builder::new_multi_thread().worker_threads(more).enable_all().build()?,
    };
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
        let reason = payload
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        let location = panic.location().map(ToString::to_string);
        let task = supervise::current_task();
        let backtrace = Backtrace::force_capture().to_string();
        tracing::error!(task, reason, location, backtrace, "panicked, exiting");
        telemetry::flush();
        std::process::exit(i32::from(FAILED));
    }));
}

#[cfg(test)]
mod tests {
    use mooring::{cli::LoggingFormat, config::LogConfig};

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
            .args(["--exact", "--ignored", "--nocapture", "tests::panics_as_the_daemon_does"])
            .env_remove("RUST_BACKTRACE")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(i32::from(FAILED)));
        let log = String::from_utf8(output.stderr).unwrap();
        let line: serde_json::Value =
            serde_json::from_str(&log).unwrap_or_else(|error| panic!("{error}: {log}"));
        assert_eq!(
            (line["message"].as_str(), line["reason"].as_str()),
            (Some("panicked, exiting"), Some("oh"))
        );
        assert!(line["location"].as_str().is_some_and(|place| place.starts_with("src/main.rs:")), "{line}");
        let backtrace = line["backtrace"].as_str().unwrap();
        assert!(backtrace.contains("panics_as_the_daemon_does"), "{backtrace}");
    }
}
