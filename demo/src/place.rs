//! The demo's folder: the kubeconfig for kubectl and the daemon, and the daemon's log.
//!
//! It is the user's alone, and gone after an orderly end; after a failure it stays, for the log.

use std::{
    fs::{self, DirBuilder, File},
    io,
    net::SocketAddr,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// The folder.
#[derive(Debug)]
pub struct Place {
    folder: PathBuf,
}

impl Place {
    /// Makes it.
    ///
    /// # Errors
    /// The temporary folder cannot be written to.
    pub fn make() -> io::Result<Self> {
        let random = getrandom::u32().map_err(|error| io::Error::other(error.to_string()))?;
        let folder = std::env::temp_dir().join(format!("mooring-demo-{random:08x}"));
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Self { folder })
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the kubeconfig is.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// Where the daemon's log is.
    pub fn log(&self) -> PathBuf {
        self.folder.join("mooring.log")
    }

    /// Opens the log.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn open_log(&self) -> io::Result<File> {
        File::create(self.log())
    }

    /// Writes the kubeconfig of a server.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_kubeconfig(&self, address: SocketAddr) -> io::Result<()> {
        fs::write(self.kubeconfig(), kubeconfig(address))
    }

    /// Removes it.
    pub fn remove(self) {
        // What is left in a temporary folder does no harm.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn kubeconfig(address: SocketAddr) -> String {
    format!(
        "apiVersion: v1
kind: Config
current-context: mooring-demo
clusters:
- name: mooring-demo
  cluster:
    server: http://{address}
users:
- name: everybody
  user: {{}}
contexts:
- name: mooring-demo
  context:
    cluster: mooring-demo
    user: everybody
    namespace: {}
",
        testbed::troubles::stage::NAMESPACE
    )
}
