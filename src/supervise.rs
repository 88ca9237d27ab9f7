//! The tasks of the process: none may end unnoticed, and they end in order.
//!
//! In: named futures, each in a [`Stage`] of the shutdown. Out: the first death, which ends the
//! process; at shutdown, the end of one stage after the other.

use std::{collections::HashMap, error::Error, future::Future, io, sync::Arc, thread, time::Duration};

use parking_lot::Mutex;
use thiserror::Error;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::oneshot,
    task::{Id, JoinError, JoinSet},
    time::{Instant, timeout_at},
};
use tokio_util::sync::CancellationToken;

tokio::task_local! {
    /// Name of the task that runs, for the report of a panic.
    static TASK: &'static str;
}

/// Name of the supervised task that asks.
pub fn current_task() -> Option<&'static str> {
    TASK.try_with(|name| *name).ok()
}

/// Threads for what blocks in a [`Workplace`]: names that are looked up, files that are read, pages that are made.
const BLOCKING_THREADS: usize = 4;

/// Whether parts that must not wait for others get threads of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// They do, as in a daemon.
    Apart,
    /// Everything runs on the caller's runtime, which may be one in paused time.
    Shared,
}

/// Where a task runs: on the supervisor's runtime, or on a thread and runtime of its own, so that
/// work that keeps the others busy does not keep it waiting.
#[derive(Debug)]
pub struct Workplace(Option<Runtime>);

impl Workplace {
    /// A place for one task.
    ///
    /// # Errors
    /// There can be no more of them.
    pub fn new(threads: Threads) -> io::Result<Self> {
        let runtime = match threads {
            Threads::Shared => None,
            Threads::Apart => {
                let mut builder = Builder::new_current_thread();
                Some(builder.enable_all().max_blocking_threads(BLOCKING_THREADS).build()?)
            }
        };
        Ok(Self(runtime))
    }

    /// Its runtime, if it has one of its own.
    pub fn runtime(&self) -> Option<Handle> {
        self.0.as_ref().map(|runtime| runtime.handle().clone())
    }

    /// Makes something there that starts tasks when it is made, such as a client.
    pub fn enter<T>(&self, make: impl FnOnce() -> T) -> T {
        let _guard = self.0.as_ref().map(Runtime::enter);
        make()
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        // Otherwise it would wait for its threads, which a runtime does not let its tasks do.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A task whose thread is gone without saying how it ended.
#[derive(Debug, Error)]
#[error("its thread panicked")]
struct ThreadGone;

/// When a task ends at shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// First: plans and writes.
    Subsystem,
    /// Then: writes what the subsystems recorded, also beside the next stage.
    Events,
    /// Then: gives up the lease, when nothing is decided any more.
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
    pub fn names(&self) -> Vec<&'static str> {
        self.0.lock().clone()
    }

    fn push(&self, name: &'static str) {
        self.0.lock().push(name);
    }
}

type TaskResult = Result<(), Box<dyn Error + Send + Sync>>;

/// Starts tasks and watches over them.
#[derive(Debug, Default)]
pub struct Supervisor {
    tasks: JoinSet<TaskResult>,
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

    /// Starts a task at its place. On a thread of its own it is dropped, soon, when the supervisor is.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn spawn_at<F, E>(
        &mut self,
        stage: Stage,
        name: &'static str,
        mut place: Workplace,
        task: F,
    ) -> io::Result<()>
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Error + Send + Sync + 'static,
    {
        let Some(runtime) = place.0.take() else {
            self.spawn_fallible(stage, name, task);
            return Ok(());
        };
        let (ended, outcome) = oneshot::channel();
        let gone = CancellationToken::new();
        let running = gone.clone().run_until_cancelled_owned(TASK.scope(name, task));
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            let outcome = runtime.block_on(running);
            runtime.shutdown_background();
            // There is no receiver when the supervisor is gone.
            let _ = ended.send(outcome);
        })?;
        // Made here: the task may be dropped before it is first run.
        let guard = gone.drop_guard();
        self.start(stage, name, async move {
            let _guard = guard;
            match outcome.await {
                Ok(Some(outcome)) => outcome.map_err(Into::into),
                Ok(None) => Ok(()),
                Err(_) => Err(ThreadGone.into()),
            }
        });
        Ok(())
    }

    fn start(
        &mut self,
        stage: Stage,
        name: &'static str,
        task: impl Future<Output = TaskResult> + Send + 'static,
    ) {
        let handle = self.tasks.spawn(TASK.scope(name, task));
        self.running.insert(handle.id(), (stage, name));
    }

    /// Which tasks have died, as a value that can be asked from elsewhere.
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
                // Of an earlier stage, which goes on beside this one: nothing waits for it any more.
                Ok(Some((ended, _, outcome))) if ended < stage => {
                    if let Err(death) = outcome {
                        tracing::warn!(reason = %death, "a task failed while the process ends");
                    }
                }
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
    async fn s47_the_end_of_a_task_of_an_earlier_stage_beside_a_later_one_is_no_death() {
        let mut tasks = Supervisor::default();
        for (stage, name, seconds) in [(Stage::Events, "events", 1), (Stage::Election, "election", 2)] {
            tasks.spawn(stage, name, tokio::time::sleep(Duration::from_secs(seconds)));
        }
        tasks.finished(Stage::Election, Duration::from_secs(5)).await.unwrap();
        tasks.finished(Stage::Events, Duration::ZERO).await.unwrap();
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
    async fn a_task_of_its_own_thread_is_watched_over_like_any_other() {
        let here = thread::current().id();
        let place = || Workplace::new(Threads::Apart).unwrap();
        let mut tasks = Supervisor::default();
        let task = async move {
            assert_ne!(thread::current().id(), here);
            assert_eq!(current_task(), Some("a"));
            Err(io::Error::other("no luck"))
        };
        tasks.spawn_at(Stage::Watch, "a", place(), task).unwrap();
        assert_eq!(tasks.death().await.to_string(), "task a failed: no luck");

        let panics = async { panic!("oh") };
        tasks.spawn_at::<_, io::Error>(Stage::Watch, "b", place(), panics).unwrap();
        assert_eq!(tasks.death().await.to_string(), "task b failed: its thread panicked");

        let (sender, receiver) = oneshot::channel::<()>();
        let holds = async move {
            let _sender = sender;
            std::future::pending::<io::Result<()>>().await
        };
        tasks.spawn_at(Stage::Watch, "c", place(), holds).unwrap();
        drop(tasks);
        receiver.await.unwrap_err();
        // One that is never used does not mind where it is dropped.
        drop(place());
    }

    #[tokio::test]
    async fn what_is_made_at_a_place_starts_its_tasks_there() {
        let place = Workplace::new(Threads::Apart).unwrap();
        let made = place.enter(|| tokio::spawn(async { thread::current().id() }));
        let mut tasks = Supervisor::default();
        let (sender, receiver) = oneshot::channel();
        let task = async move {
            let _ = sender.send((thread::current().id(), made.await.unwrap()));
            std::future::pending::<io::Result<()>>().await
        };
        tasks.spawn_at(Stage::Watch, "a", place, task).unwrap();
        let (own, other) = receiver.await.unwrap();
        assert_eq!(own, other);
    }

    #[tokio::test]
    async fn a_task_knows_its_name() {
        let mut tasks = Supervisor::default();
        tasks.spawn(Stage::Watch, "a", async { assert_eq!(current_task(), Some("a")) });
        assert!(matches!(tasks.death().await, Death::Ended("a")));
        assert_eq!(current_task(), None);
    }
}
