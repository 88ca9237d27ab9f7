//! What every command does with the terminal and the process: a runtime, a line on stderr, an exit code.

use std::{
    io::{self, Write},
    process::ExitCode,
};

/// Exit code of what could not go on.
pub const FAILED: u8 = 1;

/// Runs to the end and leaves behind what has no end of its own, such as watches.
///
/// # Errors
/// There is no runtime to be had.
pub fn block_on<F: Future>(threads: usize, future: F) -> io::Result<F::Output> {
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

/// It could not go on: says why.
pub fn failure(message: &str) -> ExitCode {
    complain(message);
    ExitCode::from(FAILED)
}

/// One line on stderr, for messages of several lines, too.
pub fn complain(message: &str) {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(io::stderr(), "mooring: {line}");
}
