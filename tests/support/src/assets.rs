//! The location of the control plane's binaries.
//!
//! `KUBEBUILDER_ASSETS` names their folder (the convention of kubebuilder's envtest). Without it,
//! `tests/control-plane/build` builds them once for each version of that folder, into a cache outside the
//! tree. If neither is possible, the result is the cause and a remedy. The CSI sidecars, the scheduler
//! and the CSI driver have a separate build, because only the chain stories need them.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::repository;

/// A folder with binaries.
#[derive(Clone, Debug)]
pub struct Assets(PathBuf);

impl Assets {
    /// Finds or builds `etcd`, `kube-apiserver`, `kube-controller-manager` and `kubectl`.
    ///
    /// # Errors
    /// One line: why there are none, and what helps.
    pub fn find() -> Result<Self, String> {
        if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS") {
            let assets = Self(PathBuf::from(folder));
            for name in ["etcd", "kube-apiserver"] {
                if !assets.binary(name).is_file() {
                    return Err(format!(
                        "KUBEBUILDER_ASSETS is {}, which has no {name}: correct it, or unset it to build the \
                         binaries with Go",
                        assets.0.display()
                    ));
                }
            }
            return Ok(assets);
        }
        build(
            "build",
            "assets: ",
            "install Go, or set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver",
        )
    }

    /// Builds `kube-scheduler`, `csi-attacher`, `csi-provisioner`, `csi-resizer` and `csi-driver`, or finds them built.
    ///
    /// # Errors
    /// One line: why there are none, and what helps.
    pub fn chain() -> Result<Self, String> {
        build("build-chain", "chain: ", "install Go")
    }

    /// Builds `trial-parts`, the kubelets and machines of the field trial, or finds it built.
    ///
    /// # Errors
    /// One line: why there is none, and what helps.
    pub fn trial() -> Result<Self, String> {
        build("build-trial", "trial: ", "install Go")
    }

    /// Builds `seed`, which fills etcd, or finds it built.
    ///
    /// # Errors
    /// One line: why there is none, and what helps.
    pub fn seed() -> Result<Self, String> {
        build("build-seed", "seed: ", "install Go")
    }

    /// Builds `helm`, or finds it built.
    ///
    /// # Errors
    /// One line: why there is none, and what helps.
    pub fn helm() -> Result<Self, String> {
        build("build-helm", "helm: ", "install Go")
    }

    /// Path of one binary.
    pub fn binary(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

/// Runs a script of the control plane's folder, which ends with a line of this prefix and a folder.
fn build(script: &str, prefix: &str, cure: &str) -> Result<Assets, String> {
    let script = repository().join("tests/control-plane").join(script);
    let mut child = Command::new(&script)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("cannot run {}: {error}; {cure}", script.display()))?;
    // The build's own complaints (its last line says why it failed).
    let errors = child.stderr.take().map(|stream| {
        std::thread::spawn(move || {
            let mut last = String::new();
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                eprintln!("{line}");
                last = line;
            }
            last
        })
    });
    let mut assets = None;
    let mut announced = false;
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(folder) = line.strip_prefix(prefix) {
                assets = Some(Assets(PathBuf::from(folder)));
                continue;
            }
            if !announced {
                announced = true;
                eprintln!(
                    "Binaries for the tests are built once; that takes some minutes and downloads Go modules."
                );
            }
            // Passed on at once: it says which binary is being built and how long each took.
            eprintln!("{line}");
        }
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let last = errors.and_then(|thread| thread.join().ok()).unwrap_or_default();
    match assets {
        Some(assets) if status.success() => Ok(assets),
        _ => Err(format!("{}; {cure}", if last.is_empty() { "the build failed" } else { &last })),
    }
}
