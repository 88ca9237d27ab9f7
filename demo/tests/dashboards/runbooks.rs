//! The commands of the runbooks, run by a shell beside the demo as a person would type them.
//!
//! Those without a word to fill in are run once each, unless they are about the Deployment, which the demo does not have. And of an
//! alert in [`SCENES`] what it is about is brought about, and the page is followed, until the alert's condition is over.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use libtest_mimic::Failed;
use test_support::{
    assets::Assets,
    control_plane::free_ports,
    process::{Process, temporary_folder},
    visitor::{Credentials, ask},
};
use tokio::time::Instant;

use crate::{is_installed, repository};

/// What shows that a command is about the installation, or about programs that are not in the demo.
const INSTALLED: [&str; 3] = ["mooring-system", "kube-system", "openssl"];

/// How long what is waited for may take, on slow machines.
const PATIENCE: Duration = Duration::from_mins(2);

/// An alert's condition, made and mended.
struct Scene {
    alert: &'static str,
    /// Objects that are well at first, and the line by which it is seen that they are.
    objects: &'static str,
    well: (&'static str, &'static str),
    /// What a person does to them.
    harm: &'static str,
    /// Series of the daemon, the sum of which is above 0 while the alert's condition holds.
    condition: &'static str,
    /// For the words in angle brackets of the page.
    filled_in: &'static [(&'static str, &'static str)],
}

const SCENES: [Scene; 1] = [Scene {
    alert: "MooringClaimsLost",
    objects: r#"
{"apiVersion": "v1", "kind": "List", "items": [
  {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "the-volume"}, "spec": {
    "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand",
    "persistentVolumeReclaimPolicy": "Delete", "csi": {"driver": "by-hand.example", "volumeHandle": "the-disk"}}},
  {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "the-claim", "namespace": "default"}, "spec": {
    "accessModes": ["ReadWriteOnce"], "storageClassName": "by-hand", "resources": {"requests": {"storage": "1Gi"}}}}
]}"#,
    well: ("kubectl get pvc the-claim -o jsonpath='{.status.phase}'", "Bound"),
    // As after a restore, when claims have got new UIDs.
    harm: r#"kubectl patch pv the-volume --type=merge -p '{"spec":{"claimRef":{"uid":"00000000-0000-4000-8000-000000000000"}}}'"#,
    condition: r#"mooring_waiting{kind="claim",reason="Lost"#,
    filled_in: &[("<claim>", "the-claim"), ("<volume>", "the-volume"), ("<namespace>", "default")],
}];

pub fn commands_work_and_end_what_they_are_about() -> Result<(), Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let stage = Stage::start().await?;
        let commands: BTreeSet<String> = pages().iter().flat_map(|(_, text)| commands(text)).collect();
        // Without jq what it makes of kubectl's answers is not seen.
        let has_jq = is_installed("jq");
        let runs = |command: &&String| {
            let is_here = !INSTALLED.iter().any(|word| command.contains(word));
            is_here && !command.contains('<') && (has_jq || !command.contains("jq "))
        };
        let runs: Vec<&String> = commands.iter().filter(runs).collect();
        assert!(runs.len() > 10, "{runs:#?}");
        for command in runs {
            stage.run(command)?;
        }
        for scene in &SCENES {
            stage.play(scene).await?;
        }
        Ok(())
    })
}

/// The runbooks, by alert.
fn pages() -> Vec<(String, String)> {
    let files = fs::read_dir(repository("docs/runbooks")).unwrap().map(|entry| entry.unwrap().path());
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    };
    files.map(read).collect()
}

/// The commands of a page, in order; one that goes on in the next line, in one.
fn commands(page: &str) -> Vec<String> {
    let mut commands = Vec::new();
    let mut lines = page.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let Some(begun) = line.strip_prefix("$ ") else { continue };
        let mut command = begun.to_owned();
        while command.ends_with(['\\', '|']) {
            command = format!("{} {}", command.trim_end_matches('\\'), lines.next().unwrap_or_default());
        }
        commands.push(command);
    }
    commands
}

/// The demo, and a shell beside it.
struct Stage {
    demo: Process,
    path: String,
    kubeconfig: String,
    /// Of the daemon.
    metrics: kube::Client,
}

impl Stage {
    async fn start() -> Result<Self, Failed> {
        let folder = temporary_folder("runbooks");
        let [port] = free_ports();
        let flags = ["demo", "--output=log", "--seed=7", "--rate=1", &format!("--metrics={port}")];
        let program = Path::new(env!("CARGO_BIN_EXE_mooring-demo"));
        let environment = [("TMPDIR", folder.display().to_string())];
        let demo = Process::start("demo", program, &flags.map(str::to_owned), &environment);
        let said = |line: &str| Some(line.trim().strip_prefix("export KUBECONFIG=")?.to_owned());
        let kubeconfig = demo.log().find(said).await.ok_or_else(|| demo.log().tail(40))?;
        let token = fs::read_to_string(Path::new(&kubeconfig).with_file_name("token"))?;
        let metrics = Credentials::token(token).client(&format!("https://127.0.0.1:{port}"));
        std::os::unix::fs::symlink(program, folder.join("mooring"))?;
        if !is_installed("kubectl") {
            std::os::unix::fs::symlink(Assets::find()?.binary("kubectl"), folder.join("kubectl"))?;
        }
        let path = format!("{}:{}", folder.display(), std::env::var("PATH")?);
        Ok(Self { demo, path, kubeconfig, metrics })
    }

    /// What a command says. `mooring` ends with 1 and 2 where something waits, and `grep` with 1 where there is nothing.
    fn run(&self, command: &str) -> Result<String, Failed> {
        let mut shell = Command::new("bash");
        shell.args(["-c", command]).env("PATH", &self.path).env("KUBECONFIG", &self.kubeconfig);
        let output = shell.output()?;
        let fine = match command {
            _ if command.starts_with("mooring ") => 0..=2,
            _ if command.contains("| grep ") => 0..=1,
            _ => 0..=0,
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.code().is_some_and(|code| fine.contains(&code)) {
            return Ok(said);
        }
        Err(format!("{command}: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr)).into())
    }

    /// The sum of the series that begin like this.
    async fn sum(&self, series: &str) -> f64 {
        let Some((_, page)) = ask(&self.metrics, "/metrics").await else { return 0.0 };
        let of = page.lines().filter(|line| line.starts_with(series));
        of.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    }

    async fn play(&self, scene: &Scene) -> Result<(), Failed> {
        self.run(&format!("echo '{}' | kubectl create --validate=false -f -", scene.objects))?;
        self.wait_until_well(scene).await?;
        self.run(scene.harm)?;
        let deadline = Instant::now() + PATIENCE;
        while self.sum(scene.condition).await == 0.0 {
            self.pause(deadline, scene.condition).await?;
        }
        let (_, page) = pages().into_iter().find(|(alert, _)| alert == scene.alert).unwrap();
        let (see, over) = page.split_once("## How to see that it is over").unwrap();
        for command in commands(see) {
            let fill = |command: String, (word, value): &(&str, &str)| command.replace(word, value);
            let command = scene.filled_in.iter().fold(command, fill);
            self.run(&command)?;
            // What it would send was printed; the page says how it is sent.
            if command.starts_with("mooring repair ") {
                self.run(&format!("{command} --yes"))?;
            }
        }
        let deadline = Instant::now() + PATIENCE;
        while self.sum(scene.condition).await > 0.0 {
            self.pause(deadline, &format!("no {}", scene.condition)).await?;
        }
        self.wait_until_well(scene).await?;
        for command in commands(over) {
            self.run(&command)?;
        }
        Ok(())
    }

    async fn wait_until_well(&self, scene: &Scene) -> Result<(), Failed> {
        let (command, wanted) = scene.well;
        let deadline = Instant::now() + PATIENCE;
        while self.run(command)? != wanted {
            self.pause(deadline, wanted).await?;
        }
        Ok(())
    }

    async fn pause(&self, deadline: Instant, wanted: &str) -> Result<(), Failed> {
        if Instant::now() > deadline {
            return Err(format!("waited in vain for {wanted}\n{}", self.demo.log().tail(20)).into());
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok(())
    }
}
