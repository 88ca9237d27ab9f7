//! What is measured: a process that attaches, detaches and binds.
//!
//! Both get the same rights, their own connections, no client-side limit, no leader election, and
//! their default verbosity. A subject can be paused (SIGSTOP) while work is piled up before it, so
//! that its own speed is measured and not that of whoever makes the work.

use std::{path::Path, process::Command};

use clap::ValueEnum;

use super::{
    cost,
    support::{
        control_plane::{ControlPlane, User},
        process::Process,
    },
};

/// Who can take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// This program, built with the same profile as the benchmark.
    Mooring,
    /// kube-controller-manager with nothing but the two controllers that mooring replaces.
    Kcm,
}

impl Kind {
    /// As the report names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mooring => "mooring",
            Self::Kcm => "KCM",
        }
    }
}

/// A running subject; killed when dropped.
#[derive(Debug)]
pub struct Subject {
    process: Process,
}

impl Subject {
    /// Starts it.
    pub fn start(kind: Kind, plane: &ControlPlane) -> Self {
        let process = match kind {
            Kind::Mooring => {
                let token = plane.token(User::ControllerManager);
                let arguments = [
                    "run".to_owned(),
                    format!("--kubeconfig={}", plane.kubeconfig(plane.url(), &token).display()),
                    "--leader-elect=false".to_owned(),
                    "--bind-address=127.0.0.1".to_owned(),
                    "--port=0".to_owned(),
                ];
                Process::start("mooring", Path::new(env!("CARGO_BIN_EXE_mooring")), &arguments, &[])
            }
            Kind::Kcm => plane.controller_manager(
                &["persistentvolume-attach-detach-controller", "persistentvolume-binder-controller"],
                &["--kube-api-qps=-1", "--kube-api-burst=-1"],
            ),
        };
        Self { process }
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Stops it in its tracks, and returns when it stands still.
    pub async fn pause(&self) {
        self.signal("-STOP");
        while cost::state(self.id()) != 'T' {
            tokio::task::yield_now().await;
        }
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").arg(signal).arg(self.id().to_string()).status().expect("run kill");
        assert!(status.success(), "the subject ended:\n{}", self.log());
    }

    /// What it has said last.
    pub fn log(&self) -> String {
        self.process.log().tail(30)
    }
}
