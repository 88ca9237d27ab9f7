//! The life of the process: one daemon after another, as a restore of etcd ends one and begins the next.

use std::sync::Arc;

use anyhow::anyhow;
use apiserver::{connect::ApiServer, restore::RestoreGrace};
use serving::Gate;
use tokio::sync::watch;

use super::Daemon;
use crate::{config::Config, supervise::Threads};

/// A daemon, and after a restore of etcd the next one in its place: what the first one knew, has proven and
/// has told no longer holds, so nothing of it is kept but the grace in which nothing destructive is done (E11).
#[derive(Debug)]
pub struct Life {
    config: Config,
    api: ApiServer,
    grace: RestoreGrace,
    restores: watch::Receiver<u64>,
    daemon: Option<Daemon>,
    threads: Threads,
    pages: watch::Sender<Option<Arc<Gate>>>,
}

impl Life {
    /// Starts a daemon. Its pages go to `pages`, for who is in the same process.
    ///
    /// # Errors
    /// See [`Daemon::start`].
    pub async fn start(
        config: Config,
        api: &ApiServer,
        threads: Threads,
        pages: watch::Sender<Option<Arc<Gate>>>,
    ) -> anyhow::Result<Self> {
        let grace = RestoreGrace::default();
        let restores = grace.seen();
        let daemon = Daemon::start(config.clone(), api, &grace, threads).await?;
        pages.send_replace(Some(daemon.gate()));
        Ok(Self { config, api: api.clone(), grace, restores, daemon: Some(daemon), threads, pages })
    }

    /// Waits until a part dies, which none should; starts anew when etcd was restored.
    pub async fn failure(&mut self) -> anyhow::Error {
        loop {
            let Some(daemon) = &mut self.daemon else { return anyhow!("it did not start again") };
            tokio::select! {
                death = daemon.death() => {
                    daemon.tell().await;
                    return death.into();
                }
                _ = self.restores.changed() => {}
            }
            if let Err(error) = self.start_over().await {
                return error.context("starting over after a restore of etcd");
            }
        }
    }

    /// Takes the daemon down in order, and starts the next one.
    async fn start_over(&mut self) -> anyhow::Result<()> {
        tracing::warn!("starting over after a restore of etcd");
        self.stop_daemon().await?;
        self.restores.mark_unchanged();
        let daemon = Daemon::start(self.config.clone(), &self.api, &self.grace, self.threads).await?;
        self.pages.send_replace(Some(daemon.gate()));
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Also what a signal has interrupted while it started over.
    async fn stop_daemon(&mut self) -> anyhow::Result<()> {
        if let Some(daemon) = &mut self.daemon {
            daemon.stop().await?;
        }
        self.daemon = None;
        Ok(())
    }

    /// Takes it down in order.
    ///
    /// # Errors
    /// See [`Daemon::stop`].
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop_daemon().await
    }
}
