//! Stops one thread of another process while its other threads continue, as if that thread blocked or span.
//!
//! SIGSTOP stops all threads, but a debugger can stop one, so this is a debugger. The program needs no hook for it that a
//! release would have to leave out. The thread continues when this value is dropped.

use std::{
    sync::mpsc::{Sender, channel},
    thread::{JoinHandle, spawn},
};

use nix::{
    sys::{
        ptrace,
        wait::{WaitPidFlag, waitpid},
    },
    unistd::Pid,
};

/// A thread that stands still.
#[derive(Debug)]
pub struct Standstill {
    /// All that is asked of a thread that is debugged is asked by the thread that debugs it.
    debugger: Option<JoinHandle<()>>,
    goes_on: Option<Sender<()>>,
}

impl Standstill {
    /// Stops the thread of this id, and returns when it stands still. That of a process' first thread is the process' own.
    pub fn of(thread: u32) -> Self {
        let thread = Pid::from_raw(i32::try_from(thread).expect("an id"));
        let (stopped, stands_still) = channel();
        let (goes_on, told) = channel::<()>();
        let debugger = spawn(move || {
            ptrace::seize(thread, ptrace::Options::empty()).expect("debug a child of ours");
            ptrace::interrupt(thread).expect("stop it");
            waitpid(thread, Some(WaitPidFlag::__WALL)).expect("it stops");
            stopped.send(()).expect("somebody waits for it");
            // Told by the end of the sender.
            let _ = told.recv();
            // One that was killed meanwhile is gone.
            let _ = ptrace::detach(thread, None);
        });
        stands_still.recv().expect("it stands still");
        Self { debugger: Some(debugger), goes_on: Some(goes_on) }
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        drop(self.goes_on.take());
        if let Some(debugger) = self.debugger.take() {
            let _ = debugger.join();
        }
    }
}
