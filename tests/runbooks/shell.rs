//! A shell with `mooring` and `kubectl` on its path, as the person who reads a page has it.

use std::{path::PathBuf, process::Command};

use libtest_mimic::Failed;
use test_support::{assets::Assets, process::temporary_folder};

/// What shows that a command asks for what an embedded cluster does not have: a Deployment, pods of the daemon, policies, who may what.
const NOT_HERE: [&str; 10] = [
    " logs ",
    "deploy",
    "port-forward",
    "auth can-i",
    "kube-controller-manager",
    "create token",
    "openssl",
    "validatingadmission",
    "kubeadm",
    "/etc/kubernetes",
];

/// Whether it can be run here. Without jq what it makes of kubectl's answers is not seen.
pub fn can_run(command: &str) -> bool {
    !NOT_HERE.iter().any(|word| command.contains(word)) && (is_installed("jq") || !command.contains("jq "))
}

/// Whether a program is installed.
pub fn is_installed(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}

/// The shell.
#[derive(Clone, Debug)]
pub struct Shell {
    path: String,
    kubeconfig: PathBuf,
}

impl Shell {
    /// For a server without TLS at this address.
    pub fn of(server: &str) -> Self {
        let folder = temporary_folder("runbooks");
        let kubeconfig = folder.join("kubeconfig");
        let written = format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: '{server}'}}}}], \
             users: [{{name: u, user: {{}}}}], contexts: [{{name: c, context: {{cluster: c, user: u, namespace: default}}}}]}}"
        );
        std::fs::write(&kubeconfig, written).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mooring"), folder.join("mooring")).unwrap();
        if !is_installed("kubectl") {
            let kubectl = Assets::find().expect("looked for before").binary("kubectl");
            std::os::unix::fs::symlink(kubectl, folder.join("kubectl")).unwrap();
        }
        Self { path: format!("{}:{}", folder.display(), std::env::var("PATH").unwrap()), kubeconfig }
    }

    /// What a command says. `mooring` ends with 1 and 2 where something waits, `doctor` with 6 where something could not be read, and
    /// `grep` with 1 where there is nothing.
    pub fn run(&self, command: &str) -> Result<String, Failed> {
        let mut shell = Command::new("bash");
        shell.args(["-c", command]).env("PATH", &self.path).env("KUBECONFIG", &self.kubeconfig);
        shell.env("HOME", self.kubeconfig.parent().unwrap());
        let output = shell.output()?;
        let fine: &[i32] = match command {
            "mooring doctor" => &[0, 1, 2, 6],
            _ if command.starts_with("mooring ") => &[0, 1, 2],
            _ if command.contains("| grep ") => &[0, 1],
            _ => &[0],
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.code().is_some_and(|code| fine.contains(&code)) {
            return Ok(said);
        }
        Err(format!("{command}: {}\n{said}{}", output.status, String::from_utf8_lossy(&output.stderr)).into())
    }
}
