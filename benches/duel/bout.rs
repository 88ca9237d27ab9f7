//! One subject at work: piled up before it, as it comes, or one after the other; and doing nothing.
//!
//! Together: the subject is paused while the work is created, then let go; every latency is from
//! "go" to the sighting. As it comes: the work is created while the subject is at it, round robin over the
//! nodes, so that both share the API server; the rate is from our first request to the last sighting, each
//! latency from the answer to its own request. One at a time: from the API server's answer to our request to
//! the sighting, then the next.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    sync::Mutex,
    time::Duration,
};

use test_support::control_plane::ControlPlane;
use tokio::time::{Instant, sleep};

use super::{
    cost::{self, Cpu, Requests},
    instructions::Counter,
    load::{Load, each},
    sightings::{Sight, Sightings},
    subject::{Kind, Subject},
    traffic::{Bytes, Traffic},
};

/// How long the API server must take no write until a phase is over for good.
const QUIET: Duration = Duration::from_millis(500);
/// How often to look for quiet before going on without.
const QUIET_ATTEMPTS: usize = 40;

/// One phase.
#[derive(Debug)]
pub struct Measured {
    pub phase: &'static str,
    /// Whether all was there to be done at once.
    pub together: bool,
    pub latencies: Vec<Duration>,
    /// From the first "go" to the last sighting.
    pub wall: Duration,
    /// Within that time.
    pub cpu: Cpu,
    /// Of the subject in user mode within that time, where they can be counted.
    pub instructions: Option<u64>,
    /// What came after: mostly events about what was done.
    pub tail: Tail,
    /// From the first "go" to the end of the tail.
    pub requests: Requests,
    /// In the same time, if they are counted.
    pub bytes: Option<Bytes>,
    pub peak_memory: u64,
}

/// What is read before a phase.
struct Before {
    requests: Requests,
    bytes: Option<Bytes>,
    cpu: Cpu,
}

/// What a subject still does after the last sighting.
#[derive(Debug)]
pub struct Tail {
    pub wall: Duration,
    pub cpu: Duration,
}

/// Doing nothing.
#[derive(Debug)]
pub struct Idle {
    /// In which cluster.
    pub with: String,
    pub peak_memory: u64,
    pub wall: Duration,
    pub cpu: Duration,
    pub requests: Requests,
}

/// A subject and its surroundings.
pub struct Bout<'a> {
    pub kind: Kind,
    pub plane: &'a ControlPlane,
    pub load: &'a Load,
    pub subject: Subject,
    pub sightings: Sightings,
    pub traffic: Option<Traffic>,
}

impl Bout<'_> {
    /// Piles the work up before the paused subject, then lets it go.
    pub async fn together(
        &mut self,
        phase: &'static str,
        numbers: Range<usize>,
        make: impl AsyncFn(&Load, Range<usize>),
        sight: &dyn Fn(usize) -> Sight,
    ) -> Measured {
        eprintln!("{}: {phase}", self.kind.name());
        self.load.heartbeats().await;
        self.quiet().await;
        self.subject.pause().await;
        make(self.load, numbers.clone()).await;
        self.subject.prepare().await;
        let counter = match self.subject.id() {
            Some(process) => Counter::start(process).await,
            None => None,
        };
        let before = self.before().await;
        let go = Instant::now();
        self.subject.resume();
        let times = self.seen(numbers.map(sight).collect()).await;
        let instructions = counter.and_then(Counter::read);
        let latencies = times.values().map(|at| at.saturating_duration_since(go)).collect();
        let wall = times.values().max().map(|last| last.saturating_duration_since(go)).unwrap_or_default();
        let measured = self.measured(phase, true, latencies, wall, &before).await;
        Measured { instructions, ..measured }
    }

    /// Makes the work while the subject is at it, as fast as the API server takes it. The rate counts from the
    /// first request of ours, each latency from the answer to its own.
    pub async fn flowing(
        &mut self,
        phase: &'static str,
        numbers: Range<usize>,
        make: impl AsyncFn(&Load, Range<usize>),
        sight: &dyn Fn(usize) -> Sight,
    ) -> Measured {
        eprintln!("{}: {phase}", self.kind.name());
        self.load.heartbeats().await;
        self.quiet().await;
        let counter = match self.subject.id() {
            Some(process) => Counter::start(process).await,
            None => None,
        };
        let (before, begin) = (self.before().await, Instant::now());
        let (load, answered) = (self.load, Mutex::new(BTreeMap::new()));
        let making = each(numbers.clone(), async |number| {
            make(load, number..number + 1).await;
            answered.lock().unwrap().insert(sight(number), Instant::now());
        });
        let (times, ()) = futures::join!(self.seen(numbers.map(sight).collect()), making);
        let instructions = counter.and_then(Counter::read);
        let answered = answered.into_inner().unwrap();
        let latencies =
            times.iter().map(|(sight, at)| at.saturating_duration_since(answered[sight])).collect();
        let wall = times.values().max().map(|last| last.saturating_duration_since(begin)).unwrap_or_default();
        let measured = self.measured(phase, true, latencies, wall, &before).await;
        Measured { instructions, ..measured }
    }

    /// Does one thing, sees it done, and does the next.
    pub async fn singly(
        &mut self,
        phase: &'static str,
        numbers: Range<usize>,
        make: impl AsyncFn(&Load, Range<usize>),
        sight: &dyn Fn(usize) -> Sight,
    ) -> Measured {
        eprintln!("{}: {phase}", self.kind.name());
        self.load.heartbeats().await;
        self.quiet().await;
        let (before, begin) = (self.before().await, Instant::now());
        let mut latencies = Vec::new();
        for number in numbers {
            make(self.load, number..number + 1).await;
            let answered = Instant::now();
            for at in self.seen([sight(number)].into()).await.into_values() {
                latencies.push(at.saturating_duration_since(answered));
            }
        }
        self.measured(phase, false, latencies, begin.elapsed(), &before).await
    }

    async fn measured(
        &mut self,
        phase: &'static str,
        together: bool,
        mut latencies: Vec<Duration>,
        wall: Duration,
        before: &Before,
    ) -> Measured {
        let cpu = self.cpu().since(before.cpu);
        latencies.sort_unstable();
        let (tail_begin, tail_cpu) = (Instant::now(), self.cpu());
        let requests = self.quiet().await.since(&before.requests);
        let bytes = self.bytes().zip(before.bytes).map(|(now, before)| now.since(before));
        let tail = Tail {
            // Quiet is noticed after it has lasted.
            wall: tail_begin.elapsed().saturating_sub(QUIET),
            cpu: self.cpu().since(tail_cpu).subject,
        };
        let peak_memory = self.subject.id().map_or(0, cost::peak_memory);
        Measured {
            phase,
            together,
            latencies,
            wall,
            cpu,
            instructions: None,
            tail,
            requests,
            bytes,
            peak_memory,
        }
    }

    async fn before(&self) -> Before {
        Before { requests: self.requests().await, bytes: self.bytes(), cpu: self.cpu() }
    }

    fn bytes(&self) -> Option<Bytes> {
        self.traffic.as_ref().map(Traffic::read)
    }

    /// Watches the subject do nothing.
    pub async fn idle(&mut self, length: Duration, with: String) -> Idle {
        eprintln!("{}: idle", self.kind.name());
        let (requests, cpu, begin) = (self.requests().await, self.cpu(), Instant::now());
        sleep(length).await;
        let (wall, cpu) = (begin.elapsed(), self.cpu().since(cpu).subject);
        let peak_memory = self.subject.id().map_or(0, cost::peak_memory);
        Idle { with, peak_memory, wall, cpu, requests: self.requests().await.since(&requests) }
    }

    /// Waits until nothing is written any more.
    pub async fn quiet(&self) -> Requests {
        let mut before = self.requests().await;
        for _ in 0..QUIET_ATTEMPTS {
            sleep(QUIET).await;
            let now = self.requests().await;
            if now.since(&before).count(|verb, _| cost::writes(verb)) == 0 {
                return now;
            }
            before = now;
        }
        before
    }

    /// Waits until all of these have been seen.
    pub async fn seen(&mut self, expected: BTreeSet<Sight>) -> BTreeMap<Sight, Instant> {
        match self.sightings.all(expected).await {
            Ok(times) => times,
            Err(reason) => panic!("{}: {reason}\n{}", self.kind.name(), self.subject.log()),
        }
    }

    /// What the API server has answered so far.
    pub async fn requests(&self) -> Requests {
        Requests::read(&self.load.cluster.client).await
    }

    /// CPU time that was used so far.
    pub fn cpu(&self) -> Cpu {
        Cpu::read(
            self.subject.id().unwrap_or_default(),
            self.plane.api_server_id(),
            cost::child("etcd").unwrap_or_default(),
        )
    }
}
