//! The tasks of the process: none may end unnoticed, and they end in order.
//!
//! In: named futures, each in a [`Stage`] of the shutdown. Out: the first death, which ends the
//! process; at shutdown, the end of one stage after the other.

use std::{
    collections::HashMap,
    error::Error,
    future::Future,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use thiserror::Error;
use tokio::{
    task::{Id, JoinError, JoinSet},
    time::{Instant, timeout_at},
};

tokio::task_local! {
    /// Name of the task that runs, for the report of a panic.
    static TASK: &'static str;
}

/// Name of the supervised task that asks.
#[must_use]
pub fn current_task() -> Option<&'static str> {
    TASK.try_with(|name| *name).ok()
}

/// When a task ends at shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// First: plans and writes.
    Subsystem,
    /// Then: writes what the subsystems recorded.
    Events,
    /// Then: gives up the lease, when nothing is written any more.
    Election,
    /// Then: answers probes until the end.
    Http,
    /// Never: ends with the process.
    Watch,
}

/// Why a task ended that should not have.
#[derive(Debug, Error)]
pub enum Death {
    /// Its future was done.
    #[error("task {0} ended")]
    Ended(&'static str),
    /// It returned an error.
    #[error("task {0} failed: {1}")]
    Failed(&'static str, Box<dyn Error + Send + Sync>),
    /// It panicked.
    #[error("task {0} panicked: {1}")]
    Panicked(&'static str, JoinError),
    /// It did not stop in time.
    #[error("task {0} did not stop within {1:?}")]
    Stuck(&'static str, Duration),
}

/// Names of the tasks that have died.
#[derive(Clone, Debug, Default)]
pub struct Dead(Arc<Mutex<Vec<&'static str>>>);

impl Dead {
    /// The names.
    #[must_use]
    pub fn names(&self) -> Vec<&'static str> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn push(&self, name: &'static str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(name);
    }
}

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Starts tasks and watches over them.
#[derive(Debug, Default)]
pub struct Supervisor {
    tasks: JoinSet<Outcome>,
    running: HashMap<Id, (Stage, &'static str)>,
    dead: Dead,
}

impl Supervisor {
    /// Starts a task that ends when it is told to.
    pub fn spawn<F>(&mut self, stage: Stage, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.start(stage, name, async move {
            task.await;
            Ok(())
        });
    }

    /// Starts a task that may fail.
    pub fn spawn_fallible<F, E>(&mut self, stage: Stage, name: &'static str, task: F)
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Error + Send + Sync + 'static,
    {
        self.start(stage, name, async move { task.await.map_err(Into::into) });
    }

    fn start(
        &mut self,
        stage: Stage,
        name: &'static str,
        task: impl Future<Output = Outcome> + Send + 'static,
    ) {
        let handle = self.tasks.spawn(TASK.scope(name, task));
        self.running.insert(handle.id(), (stage, name));
    }

    /// Which tasks have died, as a value that can be asked from elsewhere.
    #[must_use]
    pub fn dead(&self) -> Dead {
        self.dead.clone()
    }

    /// Waits until any task ends, which none should. Cancel safe.
    pub async fn death(&mut self) -> Death {
        let Some((_, name, outcome)) = self.next_end().await else {
            return std::future::pending().await;
        };
        self.dead.push(name);
        match outcome {
            Ok(()) => Death::Ended(name),
            Err(death) => death,
        }
    }

    /// Waits until the tasks of a stage, which have been told to stop, have ended.
    ///
    /// # Errors
    /// One of them failed or did not end in time, or a task of a later stage failed. The deaths of
    /// later stages are reported, too, because those tasks are still needed.
    pub async fn finished(&mut self, stage: Stage, within: Duration) -> Result<(), Death> {
        let deadline = Instant::now() + within;
        while let Some(name) = self.running.values().find(|(of, _)| *of == stage).map(|(_, name)| *name) {
            match timeout_at(deadline, self.next_end()).await {
                Err(_) => return Err(Death::Stuck(name, within)),
                Ok(None) => return Ok(()),
                Ok(Some((ended, name, outcome))) => {
                    outcome?;
                    if ended != stage {
                        return Err(Death::Ended(name));
                    }
                }
            }
        }
        Ok(())
    }

    async fn next_end(&mut self) -> Option<(Stage, &'static str, Result<(), Death>)> {
        loop {
            let (id, outcome) = match self.tasks.join_next_with_id().await? {
                Ok((id, outcome)) => (id, Ok(outcome)),
                Err(error) => (error.id(), Err(error)),
            };
            let Some((stage, name)) = self.running.remove(&id) else { continue };
            let outcome = match outcome {
                Ok(Ok(())) => Ok(()),
                Ok(Err(error)) => Err(Death::Failed(name, error)),
                Err(error) => Err(Death::Panicked(name, error)),
            };
            return Some((stage, name, outcome));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn any_end_is_a_death() {
        type Start = fn(&mut Supervisor);
        let cases: [(Start, &str); 3] = [
            (|tasks| tasks.spawn(Stage::Watch, "a", async {}), "task a ended"),
            (
                |tasks| {
                    let failure = async { Err(std::io::Error::other("no luck")) };
                    tasks.spawn_fallible(Stage::Watch, "a", failure);
                },
                "task a failed: no luck",
            ),
            (|tasks| tasks.spawn(Stage::Watch, "a", async { panic!("oh") }), "task a panicked: "),
        ];
        for (start, expected) in cases {
            let mut tasks = Supervisor::default();
            tasks.spawn(Stage::Watch, "b", std::future::pending());
            start(&mut tasks);
            let death = tasks.death().await.to_string();
            assert!(death.starts_with(expected), "{death}");
            assert_eq!(tasks.dead().names(), ["a"]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stage_ends_when_all_its_tasks_have() {
        let stop = CancellationToken::new();
        let mut tasks = Supervisor::default();
        for (name, seconds) in [("quick", 1), ("slow", 5)] {
            let stop = stop.clone();
            tasks.spawn(Stage::Subsystem, name, async move {
                stop.cancelled().await;
                tokio::time::sleep(Duration::from_secs(seconds)).await;
            });
        }
        tasks.spawn(Stage::Http, "http", std::future::pending());
        let started = Instant::now();
        stop.cancel();
        tasks.finished(Stage::Subsystem, Duration::from_secs(20)).await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 5);
        // Nothing of that stage is left: no wait.
        tasks.finished(Stage::Subsystem, Duration::from_secs(20)).await.unwrap();
        assert_eq!(started.elapsed().as_secs(), 5);
        let stuck = tasks.finished(Stage::Http, Duration::from_secs(2)).await.unwrap_err();
        assert_eq!(stuck.to_string(), "task http did not stop within 2s");
    }

    #[tokio::test(start_paused = true)]
    async fn losing_the_lease_while_draining_is_noticed() {
        let mut tasks = Supervisor::default();
        tasks.spawn(Stage::Subsystem, "binder", std::future::pending());
        let lost = async { Err(std::io::Error::other("lease lost")) };
        tasks.spawn_fallible(Stage::Election, "leader-election", lost);
        let death = tasks.finished(Stage::Subsystem, Duration::from_secs(20)).await.unwrap_err();
        assert_eq!(death.to_string(), "task leader-election failed: lease lost");
    }

    #[tokio::test]
    async fn a_task_knows_its_name() {
        let mut tasks = Supervisor::default();
        tasks.spawn(Stage::Watch, "a", async { assert_eq!(current_task(), Some("a")) });
        assert!(matches!(tasks.death().await, Death::Ended("a")));
        assert_eq!(current_task(), None);
    }
}
