//! `mooring demo`: the daemon at work, without a cluster. All else that `mooring` can do, this program can, too; it is the one
//! that `cargo run` builds.
//!
//! ```text
//!  script (seeded) ─▶ director ─▶ stand-ins ─┐
//!                                            ▼
//!  daemon, unchanged ◀── HTTP ──▶ testbed API server  ◀── HTTP ── your kubectl
//!    │ pages                                 │ watches
//!    └───────────▶ observer ◀────────────────┘
//!                     └─▶ lines, snapshot ─▶ screen or plain lines
//! ```
//!
//! The script says what befalls the cluster and when, the director does it, the observer watches
//! what comes of it; what is shown is a function of its [`snapshot::Snapshot`].

mod arguments;
mod lines;
mod observer;
mod output;
mod place;
mod scraped;
mod screen;
mod show;
mod snapshot;
mod story;
mod view;
mod waits;
mod words;

use std::{process::ExitCode, thread};

use arguments::{Cli, Command, DemoArgs};
use mooring::{program, telemetry, terminal};

fn main() -> ExitCode {
    let exit = match arguments::parse(std::env::args_os()) {
        Ok(Cli { command: Command::Mooring(command) }) => program::execute(command),
        Ok(Cli { command: Command::Demo(args) }) => demo(&args),
        Err(stop) => program::stop(&stop),
    };
    telemetry::flush();
    exit
}

fn demo(args: &DemoArgs) -> ExitCode {
    program::exit_on_panic();
    // The log is a file here.
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        terminal::complain(&panic.to_string());
        report(panic);
    }));
    // It plays a whole cluster.
    let cores = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    match terminal::block_on(cores, show::run(args)) {
        Ok(Ok(())) => ExitCode::SUCCESS,
        Ok(Err(error)) if error.is::<show::Mistake>() => program::mistake(&error.to_string()),
        Ok(Err(error)) => terminal::failure(&format!("{error:#}")),
        Err(error) => program::mistake(&format!("cannot start the runtime: {error}")),
    }
}
