//! What is measured: a process that attaches, detaches and binds, or the floor under it.
//!
//! The processes get the same rights, their own connections, no client-side limit, no leader election but where it is
//! measured, and their default verbosity. A subject can be paused (SIGSTOP) while work is piled up before it, so
//! that its own speed is measured and not that of its load.

use std::{path::Path, process::Command};

use apiserver::wire::Encoding;
use clap::ValueEnum;

use test_support::{
    control_plane::{ControlPlane, User},
    process::Process,
};

use super::{
    cost,
    floor::{Floor, Work},
};

/// Who can take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// This program, built with the same profile as the benchmark.
    Mooring,
    /// The same as the leader of an election, which keeps most writes back until the API server asks for the body.
    MooringElected,
    /// Mooring told to read JSON.
    MooringJson,
    /// Mooring with all seven controllers instead of two.
    MooringStorage,
    /// kube-controller-manager with nothing but the two controllers that mooring replaces.
    Kcm,
    /// No controller: the writes of each bind, attach and detach alone, which are all that these can take.
    Floor,
    /// The same, with answers in JSON.
    FloorJson,
    /// The same in the term of a leader, which keeps the same writes back.
    FloorElected,
    /// The same beside all watches that mooring has, which it reads and discards.
    FloorWatching,
}

impl Kind {
    /// As the report names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mooring => "mooring",
            Self::MooringElected => "mooring, elected",
            Self::MooringJson => "mooring, JSON",
            Self::MooringStorage => "mooring, seven controllers",
            Self::Kcm => "KCM",
            Self::Floor => "floor",
            Self::FloorJson => "floor, JSON",
            Self::FloorElected => "floor, elected",
            Self::FloorWatching => "floor, watching",
        }
    }

    /// Whether it is no controller.
    pub fn is_floor(self) -> bool {
        matches!(self, Self::Floor | Self::FloorJson | Self::FloorElected | Self::FloorWatching)
    }
}

/// The program: as built with the benchmark, unless another build is named.
pub fn mooring(other: Option<&Path>) -> &Path {
    other.unwrap_or(Path::new(env!("CARGO_BIN_EXE_mooring")))
}

/// A running subject; killed when dropped.
pub enum Subject {
    /// One that has to find out by itself what there is to do.
    Process(Process),
    /// One that is told.
    Floor(Floor),
}

impl Subject {
    /// Starts it before the API server of this URL; mooring as built with the benchmark, unless another build is named.
    pub async fn start(kind: Kind, plane: &ControlPlane, url: &str, mooring: Option<&Path>) -> Self {
        let token = plane.token(User::ControllerManager);
        let floor = || Floor::new(plane.client_at(url, Some(&token)));
        let kubeconfig = || format!("--kubeconfig={}", plane.kubeconfig(url, &token).display());
        let process = match kind {
            Kind::Mooring | Kind::MooringElected | Kind::MooringJson | Kind::MooringStorage => {
                let mut arguments = vec![
                    "run".to_owned(),
                    kubeconfig(),
                    format!("--leader-elect={}", kind == Kind::MooringElected),
                    "--secure-port=0".to_owned(),
                ];
                match kind {
                    Kind::MooringJson => {
                        arguments.push("--kube-api-content-type=application/json".to_owned());
                    }
                    Kind::MooringStorage => arguments.push("--controllers=storage".to_owned()),
                    _ => {}
                }
                Process::start("mooring", self::mooring(mooring), &arguments, &[])
            }
            Kind::Kcm => plane.controller_manager(
                &["persistentvolume-attach-detach-controller", "persistentvolume-binder-controller"],
                &["--kube-api-qps=-1", "--kube-api-burst=-1", &kubeconfig()],
            ),
            Kind::Floor => return Self::Floor(floor()),
            Kind::FloorJson => return Self::Floor(floor().accepting(Encoding::Json)),
            Kind::FloorElected => return Self::Floor(floor().in_a_term()),
            Kind::FloorWatching => return Self::Floor(floor().watching().await),
        };
        Self::Process(process)
    }

    /// Process id; the floor is in none of its own.
    pub fn id(&self) -> Option<u32> {
        match self {
            Self::Process(process) => Some(process.id()),
            Self::Floor(_) => None,
        }
    }

    /// Stops it in its tracks, and returns when it stands still.
    pub async fn pause(&self) {
        if let Self::Process(process) = self {
            signal(process, "-STOP");
            while cost::state(process.id()) != 'T' {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Takes in what there is to do, if it has to be told.
    pub async fn prepare(&self) {
        if let Self::Floor(floor) = self {
            floor.prepare().await;
        }
    }

    /// Tells one that has to be told which volumes to attach to which nodes next.
    pub fn attach_next(&self, pairs: Vec<(String, String)>) {
        if let Self::Floor(floor) = self {
            floor.next(Work::Attach(pairs));
        }
    }

    /// The same for a detach.
    pub fn detach_next(&self, pairs: Vec<(String, String)>) {
        if let Self::Floor(floor) = self {
            floor.next(Work::Detach(pairs));
        }
    }

    /// Lets it go on.
    pub fn resume(&self) {
        match self {
            Self::Process(process) => signal(process, "-CONT"),
            Self::Floor(floor) => floor.begin(),
        }
    }

    /// What it has said last.
    pub fn log(&self) -> String {
        match self {
            Self::Process(process) => process.log().tail(30),
            Self::Floor(_) => String::new(),
        }
    }
}

fn signal(process: &Process, signal: &str) {
    let status = Command::new("kill").arg(signal).arg(process.id().to_string()).status().expect("run kill");
    assert!(status.success(), "the subject ended:\n{}", process.log().tail(30));
}
