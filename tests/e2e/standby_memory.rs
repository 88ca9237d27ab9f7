//! A replica that stands by while volumes come and go holds no more than one that has not seen them: two
//! processes on the real server, and a third that begins later.
//!
//! Volumes come in waves of [`WAVE`], and each wave goes before the next comes: attached, published, detached, deleted.
//! [`WAVES`] of them and one that both replicas see are 2 000 volumes in all. At that scale it shows what costs some 3 KiB a
//! volume that is gone, such as its objects; `MOORING_WAVES=80` makes it 20 000 volumes, and a tenth of that is seen. What the
//! tables, the controller and the planner keep is counted by the byte in `tests/standby.rs`, in each run of CI.

use std::time::Duration;

use futures::{StreamExt, stream};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::ListParams;
use test_support::{
    cluster::{VolumeShape, within_deadline},
    daemon::{Daemon, Launch},
};

use crate::stage::{DAEMON_NAMESPACE, Stage, Story, story};

const WAVE: usize = 250;
const WAVES: usize = 7;
/// More than a wave takes.
const TIME_OF_A_WAVE: Duration = Duration::from_mins(1);
const NODES: usize = 5;
/// So many requests at once.
const AT_ONCE: usize = 32;

pub fn stories() -> Vec<Story> {
    let name = "standby_keeps_as_much_as_a_process_that_saw_nothing_come_and_go";
    let time = TIME_OF_A_WAVE * u32::try_from(waves()).unwrap_or(u32::MAX);
    vec![
        story(name, churn)
            .only_real_if_all("A process has a size, which grows with what it does not forget.")
            .given(time),
    ]
}

fn waves() -> usize {
    std::env::var("MOORING_WAVES").ok().and_then(|text| text.parse().ok()).unwrap_or(WAVES)
}

fn node(number: usize) -> String {
    format!("n{}", number % NODES)
}

fn volume(number: usize) -> String {
    format!("v{number:05}")
}

async fn each<F: Future<Output = ()>>(numbers: impl Iterator<Item = usize>, act: impl Fn(usize) -> F) {
    stream::iter(numbers).for_each_concurrent(AT_ONCE, act).await;
}

/// Volumes come with claims and pods, are attached and published, and go again with all that belongs to them.
async fn wave(stage: &Stage, wave: usize) {
    let cluster = &stage.cluster;
    let numbers = wave * WAVE..(wave + 1) * WAVE;
    let (claim, pod) = (|number: usize| format!("c{number:05}"), |number: usize| format!("p{number:05}"));
    each(numbers.clone(), async |number| {
        cluster.intended_pair(&volume(number), &claim(number), &VolumeShape::default()).await;
        cluster.pod(&pod(number), &node(number), &[&claim(number)]).await;
    })
    .await;
    for of in 0..NODES {
        let volumes: Vec<String> =
            numbers.clone().filter(|number| number % NODES == of).map(volume).collect();
        let volumes: Vec<&str> = volumes.iter().map(String::as_str).collect();
        cluster.published(&node(of), &volumes).await;
    }
    each(numbers.clone(), async |number| cluster.remove_pod(&pod(number)).await).await;
    let attachments = cluster.all::<VolumeAttachment>();
    let all_detached = async {
        let mut pause = tokio::time::interval(Duration::from_millis(200));
        while !attachments.list_metadata(&ListParams::default()).await.unwrap().items.is_empty() {
            pause.tick().await;
        }
    };
    within_deadline("all is detached", all_detached).await.expect("all is detached");
    each(numbers, async |number| {
        cluster.delete_claim(&claim(number)).await;
        cluster.delete_volume(&volume(number)).await;
    })
    .await;
}

/// Bytes of a process that are in memory.
fn memory(daemon: &Daemon) -> u64 {
    let path = format!("/proc/{}/status", daemon.id().expect("a process"));
    let status = std::fs::read_to_string(path).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

async fn churn(stage: Stage) {
    let waves = waves();
    let _attacher = stage.attacher();
    for number in 0..NODES {
        stage.cluster.node(&node(number)).await;
    }
    let launch = Launch::replica_by_default(DAEMON_NAMESPACE);
    let _leader = stage.start_daemon(&launch, &stage.proxy).await;
    // The first to lead; the others stand by.
    wave(&stage, 0).await;
    let standby = stage.start_daemon(&launch, &stage.another_proxy().await).await;
    for number in 1..waves {
        wave(&stage, number).await;
    }
    // What a process takes for one wave it may keep: the other sees one, too.
    let fresh = stage.start_daemon(&launch, &stage.another_proxy().await).await;
    wave(&stage, waves).await;
    let is_alike = async {
        let mut pause = tokio::time::interval(Duration::from_millis(100));
        while memory(&standby) > memory(&fresh) + memory(&fresh) / 10 {
            pause.tick().await;
        }
    };
    let sizes = || format!("{} and {} KiB", memory(&standby) >> 10, memory(&fresh) >> 10);
    within_deadline("a standby holds no more", is_alike).await.unwrap_or_else(|_| panic!("{}", sizes()));
    eprintln!("after {} volumes a standby and a fresh process hold {}", (waves + 1) * WAVE, sizes());
}
