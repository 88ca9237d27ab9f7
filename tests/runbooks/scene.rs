//! What happens in a scene, as it is written in `scenes.yaml`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use libtest_mimic::Failed;
use serde::Deserialize;
use tokio::runtime::Builder;

/// The file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenes {
    pub outages: Vec<Scene>,
    pub ordinary: Vec<Ordinary>,
}

impl Scenes {
    /// Reads it.
    pub fn read() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cases/runbooks/scenes.yaml");
        serde_saphyr::from_str(&fs::read_to_string(path).unwrap())
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

/// An alert's condition, made and mended. All times are minutes.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scene {
    pub alert: String,
    /// What tells it from other scenes of the alert.
    #[serde(default)]
    case: Option<String>,
    /// The server's clock is an hour late: what it has deleted is old by the daemon's, which reads the machine's clock for that.
    #[serde(default)]
    pub ago: bool,
    /// What there is, and is well.
    #[serde(default)]
    pub given: Vec<Step>,
    /// What goes wrong.
    pub harm: Vec<Step>,
    /// After which the alert fires, and no other.
    pub fires: usize,
    /// For the words in angle brackets of the page, as a shell takes them.
    #[serde(default)]
    fill: BTreeMap<String, String>,
    /// What a person does besides the page's commands, because it says so.
    #[serde(default)]
    pub done: Vec<Done>,
    /// After which nothing fires any more.
    pub over: usize,
}

/// What happens everywhere, and of which no alert tells.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ordinary {
    pub name: String,
    pub steps: Vec<Step>,
}

/// What is done because of a sentence of the page.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    pub told: String,
    pub steps: Vec<Step>,
}

/// Something that happens.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// A command of a person or program, as in a shell.
    Run(String),
    /// Objects, as YAML; those that exist are left.
    Make(String),
    /// A node that is Ready.
    Node(String),
    /// Volume and claim of the driver, Bound.
    Pair(String, String),
    /// A pod, its node, its claim; it runs if its kubelet does.
    Pod(String, String, String),
    /// Minutes that pass.
    Wait(usize),
    /// The same, so many times.
    Repeat(usize, Vec<Step>),
    /// Attaches and detaches of all volumes, or of one.
    Attacher(Work),
    /// Detaches of a volume.
    Detach(String, Work),
    /// A node's kubelet.
    Kubelet(String, Life),
    /// What becomes of requests of a replica that have this in their line of method and path.
    Requests(Replica, String, Answering),
    /// A replica hears nothing of these kinds any more, or does again.
    Deaf(Replica, Vec<String>),
    Hears(Replica, Vec<String>),
    /// It is killed, asked to end, started.
    Stop(Replica),
    End(Replica),
    Start(Replica),
    /// The API server is not there for a replica, or is again.
    Away(Replica),
    Back(Replica),
    /// Whether kube-controller-manager's loops are denied what they write, as the API server's metrics tell.
    Fenced(bool),
    /// The share of the memory that it may use, in percent, as the kubelet and kube-state-metrics show it.
    Memory(u32),
    /// In how many days the certificate expires that a replica serves with, or with which it identifies itself, as its page shows it.
    Certificate(Certificate, u32),
    /// A PersistentVolume as an API server that did not validate it stored it. No watch tells of it.
    Stored(String),
    /// The server is put back to what it was, after it was told to remember.
    Remember,
    Restore,
}

/// How the API server answers a request.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum Answering {
    Answered,
    Forbidden,
    /// With an internal error.
    Failing,
    /// After three seconds.
    Slow,
}

/// Which certificate of a replica.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub enum Certificate {
    Serving,
    Client,
}

/// How a driver's side works.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    Works,
    Fails,
    Silent,
}

/// How a kubelet works.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Life {
    Works,
    Silent,
    /// It does not unmount.
    Holds,
}

/// Which of the two.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Replica {
    Leader,
    Standby,
    /// Whichever does not run.
    Stopped,
    Both,
}

impl Scene {
    /// Its name among the tests.
    pub fn name(&self) -> String {
        match &self.case {
            Some(case) => format!("{}: {case}", self.alert),
            None => self.alert.clone(),
        }
    }

    /// A command of the page with its words filled in.
    pub fn filled(&self, command: &str) -> String {
        let fill =
            |command: String, (word, value): (&String, &String)| command.replace(&format!("<{word}>"), value);
        self.fill.iter().fold(command.to_owned(), fill)
    }
}

/// Plays it in paused time. A program that runs beside holds the time, so it meets the cluster as it is.
pub fn played(scene: impl Future<Output = Result<(), Failed>>) -> Result<(), Failed> {
    fastrand::seed(1);
    Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(scene)
}

/// Names that are in a text of words.
pub fn names(text: &str) -> BTreeSet<&str> {
    text.split(|character: char| !character.is_alphanumeric() && character != '_' && character != ':')
        .collect()
}
