//! The API servers that stories play on: the real one ([`real`]) and the embedded one
//! ([`embedded`]), behind one trait.
//!
//! Both keep a complete record: every revision of every object and every request of the daemon. The
//! embedded server and its daemon run in the test's own process, without sockets and in paused time: when
//! all tasks wait, the clock jumps to the next timer.

pub mod embedded;
pub mod real;

use std::ops::Deref;

use futures::future::BoxFuture;
use http::{Method, StatusCode};
use kube::Client;
use testbed::{
    Server,
    faults::{Faults, Write},
};
use tokio_util::sync::DropGuard;

use super::{
    assets::Assets,
    audit::Entry,
    control_plane::{ControlPlane, User},
    daemon::{Daemon, Launch},
    history::Change,
};

/// The ClusterRole of `deploy/metrics-reader.yaml`.
pub const METRICS_READER: &str = "mooring-metrics-reader";
/// The ClusterRole of `deploy/optional/debug-reader`.
pub const DEBUG_READER: &str = "mooring-debug-reader";
/// The ClusterRole of `deploy/optional/explain-reader`.
pub const EXPLAIN_READER: &str = "mooring-explain-reader";

/// An API server with a record of what happened on it.
pub trait Backend: Send + Sync {
    /// A client with all rights.
    fn client(&self, user: User) -> Client;

    /// A new proxy before the server, with faults of its own.
    fn proxy(&self) -> BoxFuture<'_, Proxy>;

    /// A token of somebody new, with these ClusterRoles of `deploy`.
    fn visitor(&self, name: &'static str, roles: &'static [&'static str]) -> BoxFuture<'_, String>;

    /// Starts a daemon behind a proxy.
    fn start(&self, launch: &Launch, proxy: &Proxy) -> Daemon;

    /// A client with all rights that goes through a proxy.
    fn proxied_client(&self, proxy: &Proxy) -> Client;

    /// A client with the daemon's account.
    fn daemons_client(&self) -> Client;

    /// The present revision.
    fn revision(&self) -> BoxFuture<'_, u64>;

    /// All changes after a revision up to now, in order.
    fn history(&self, after: u64) -> BoxFuture<'_, Vec<Change>>;

    /// How much of the record of requests there is.
    fn recorded(&self) -> usize;

    /// The requests recorded from a position on: of the daemon all, of others what moves storage.
    fn requests(&self, from: usize) -> Vec<Entry>;

    /// The embedded one behind it, for what only a test in its process can do.
    fn embedded(&self) -> Option<&Server> {
        None
    }

    /// The real one behind it, for what only that one has.
    fn real(&self) -> Option<&Real> {
        None
    }
}

/// A control plane, and the account of the daemons.
pub struct Real {
    /// The daemon's program.
    pub program: &'static str,
    pub assets: Assets,
    pub plane: ControlPlane,
    /// Of the daemon's ServiceAccount.
    pub token: String,
}

/// Stands between daemons and their API server; daemons that come one after another may share it.
pub struct Proxy {
    faults: Faults,
    destination: Destination,
}

enum Destination {
    /// It listens at this address until the guard is dropped.
    Http { url: String, _stop: DropGuard },
    /// A client of the daemon's account.
    InProcess(Client),
}

impl Deref for Proxy {
    type Target = Faults;

    fn deref(&self) -> &Faults {
        &self.faults
    }
}

impl Proxy {
    /// Those writes that the server did not refuse as stale. A kubelet may report between the daemon's
    /// look and its write, which is then repeated.
    pub fn fresh_writes(&self) -> Vec<Write> {
        self.writes().into_iter().filter(|write| write.status != Some(StatusCode::CONFLICT)).collect()
    }

    /// Those that attach or detach: to VolumeAttachments and nodes.
    pub fn attach_detach_writes(&self) -> Vec<Write> {
        let is_one =
            |write: &Write| write.path.contains("/volumeattachments") || write.path.contains("/nodes/");
        self.fresh_writes().into_iter().filter(is_one).collect()
    }

    /// Whether a write is the deletion of a VolumeAttachment.
    pub fn is_detach(write: &Write) -> bool {
        write.is(&Method::DELETE, "/volumeattachments/")
    }
}
