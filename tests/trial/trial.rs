//! One trial from beginning to end: the plan by the clock, then calm, then nothing, then the judges.

use std::{collections::VecDeque, path::Path, time::Duration};

use test_support::{
    audit,
    cluster::{Cluster, DRIVER},
};
use tokio::time::Instant;

use crate::{
    Request, actors, faults, judges,
    plan::{Fault, Plan, Window, plan},
    record::{Op, Phase, Recorder, driver_log, now},
    report::{Held, Outcome, Played},
    stage::{Stage, Subject},
    waits,
};

/// By then everything runs after the last fault, and by then nothing is left: what a node needs to be found well again, several
/// minutes of back-off of pods and sidecars, and no forced detach, as no machine stays away.
const BOUND: Duration = Duration::from_mins(5);

/// By then a replica has closed connections that faults have cut.
const GIVEN_BACK: Duration = Duration::from_mins(1);

/// The time between two looks at the clock.
const TICK: Duration = Duration::from_millis(200);

/// How long a node is cordoned, without its Node object, or without power.
const ERRAND: Duration = Duration::from_secs(8);

/// The window of now.
struct Begun<'a> {
    window: &'a Window,
    faults: Vec<faults::Begun>,
    from: i64,
}

/// What is asked for.
pub fn plan_of(request: &Request) -> Plan {
    let fits = |fault: Fault| fault.fits(request.subject, request.fence);
    let mut plan = plan(request.seed, request.seconds, &request.faults, fits);
    plan.windows.retain(|window| request.only.as_ref().is_none_or(|only| only.contains(&window.from)));
    plan
}

pub async fn play(request: &Request) -> Result<Outcome, String> {
    let plan = plan_of(request);
    let mut stage = Stage::open(request.subject, request.nodes, request.seed, request.fence).await?;
    let mut recorder = Recorder::start(stage.plane.etcd_url());
    actors::set_up(&stage.cluster).await;
    settled(&mut stage, BOUND, actors::not_running)
        .await
        .map_err(|missing| format!("it never began: {missing:?}"))?;

    let mut played = Vec::new();
    let before = stage.usage();
    let mut acts = 0;
    let start = Instant::now();
    let mut to_act: VecDeque<_> = plan.acts.iter().copied().collect();
    let mut to_begin: VecDeque<_> = plan.windows.iter().collect();
    let mut begun: Option<Begun> = None;
    let mut errands: Vec<(Instant, actors::Errand)> = Vec::new();
    let mut ticks = tokio::time::interval(TICK);
    while start.elapsed() < plan.length || !errands.is_empty() || begun.is_some() {
        ticks.tick().await;
        stage.tend();
        if let Some(Begun { window, faults, from }) = &mut begun {
            if start.elapsed() >= window.to {
                faults::heal(&mut stage, &mut recorder, faults).await;
                say(start, &format!("healed: {}", window.name()));
                if window.faults.contains(&Fault::RestoreEtcd) {
                    let repairs = actors::after_restore(&stage).into_iter();
                    errands.extend(repairs.map(|errand| (Instant::now() + ERRAND, errand)));
                }
                played.push(Played { name: window.name(), from: *from, to: now(), pause: window.pause() });
                begun = None;
            } else {
                faults::go_on(&mut stage, faults);
            }
        } else if to_begin.front().is_some_and(|window| start.elapsed() >= window.from)
            && let Some(window) = to_begin.pop_front()
        {
            say(start, &format!("fault: {}", window.name()));
            let from = now();
            begun = Some(Begun { window, faults: faults::begin(&mut stage, &recorder, window).await, from });
        }
        let due: Vec<_> = errands.extract_if(.., |(at, _)| *at <= Instant::now()).collect();
        for (_, errand) in due {
            if !actors::run(&mut stage, &errand).await {
                errands.push((Instant::now() + TICK, errand));
            }
        }
        if to_act.front().is_some_and(|(at, _)| start.elapsed() >= *at)
            && let Some((_, act)) = to_act.pop_front()
        {
            let (what, more) = actors::act(&mut stage, act).await;
            acts += 1;
            say(start, &what);
            errands.extend(more.into_iter().map(|errand| (Instant::now() + ERRAND, errand)));
        }
    }

    say(start, "no more faults and acts");
    let bound = BOUND + plan.windows.iter().map(Window::pause).max().unwrap_or_default();
    let calm = settled(&mut stage, bound, actors::not_running).await;
    if calm.is_ok() {
        actors::take_away(&stage.cluster.client).await;
    }
    let clean = match &calm {
        Ok(_) => settled(&mut stage, bound, actors::left).await,
        Err(_) => Err(vec!["not asked for, as not everything ran".to_owned()]),
    };
    let mut held = Held { before, after: stage.usage() };
    let asked = Instant::now();
    while !held.is_back() && asked.elapsed() < GIVEN_BACK {
        ticks.tick().await;
        held.after = stage.usage();
    }
    judged(request, stage, &recorder, End { acts, played, calm, clean, held }).await
}

/// Waits until nothing is missing; returns after how many seconds that was.
async fn settled(
    stage: &mut Stage,
    bound: Duration,
    missing: impl AsyncFn(&Cluster) -> Vec<String>,
) -> Result<u64, Vec<String>> {
    let start = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        stage.tend();
        let now = missing(&stage.cluster).await;
        if now.is_empty() {
            return Ok(start.elapsed().as_secs());
        }
        if start.elapsed() > bound {
            return Err(now);
        }
    }
}

/// How it went, before anything is judged.
struct End {
    acts: usize,
    played: Vec<Played>,
    calm: Result<u64, Vec<String>>,
    clean: Result<u64, Vec<String>>,
    held: Held,
}

async fn judged(
    request: &Request,
    mut stage: Stage,
    recorder: &Recorder,
    end: End,
) -> Result<Outcome, String> {
    recorder.catch_up(stage.plane.etcd_url()).await;
    let seen = recorder.seen();
    let log = driver_log(&stage.driver_log());
    let mut requests = audit::read(&stage.plane.audit_log(), 0);
    requests.extend(audit::read(&stage.other_server.audit_log, 0));
    let ends = stage.parts().map(|part| (part.name.clone(), part.ends)).collect();
    if let Some(folder) = &request.keep {
        keep(Path::new(folder), &mut stage, &seen).map_err(|error| error.to_string())?;
    }
    let subject = request.subject;
    let is_subject = |user: &str| subject.is_user(user);
    let restored = recorder.restored();
    let violations =
        judges::judge(&seen, restored, requests, &log, DRIVER, is_subject, subject == Subject::Mooring);
    let left = judges::left_over(&seen, restored, &log, DRIVER);
    let (waits, endless) = waits::waits(&seen);
    let done =
        |op: Op| log.iter().filter(|line| line.op == op && line.phase == Phase::End && line.done).count();
    let operations = vec![
        ("acts", end.acts),
        ("attaches", done(Op::Publish)),
        ("detaches", done(Op::Unpublish)),
        ("mounts", done(Op::Mount)),
        ("volumes made", done(Op::CreateVolume)),
        ("volumes deleted", done(Op::DeleteVolume)),
        ("expansions", done(Op::Expand)),
    ];
    let heading = format!(
        "{}{}, seed {}, {} s, {} kubelets",
        subject.name(),
        if request.fence { " behind the fence" } else { "" },
        request.seed,
        request.seconds,
        request.nodes
    );
    let End { played, calm, clean, held, .. } = end;
    let left_out = Fault::left_out(|fault| fault.fits(subject, request.fence));
    let outcome = Outcome {
        heading,
        operations,
        played,
        violations,
        left,
        waits,
        endless,
        calm,
        clean,
        ends,
        held,
        left_out,
    };
    if let Some(folder) = &request.keep {
        let file = Path::new(folder).join("outcome.md");
        std::fs::write(file, outcome.text()).map_err(|error| error.to_string())?;
    }
    Ok(outcome)
}

/// Keeps logs and the record for whoever looks into a violation.
fn keep(folder: &Path, stage: &mut Stage, seen: &[crate::record::Seen]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    std::fs::copy(stage.driver_log(), folder.join("driver.log"))?;
    std::fs::copy(stage.plane.audit_log(), folder.join("audit-1.log"))?;
    std::fs::copy(&stage.other_server.audit_log, folder.join("audit-2.log"))?;
    for part in stage.parts() {
        std::fs::write(folder.join(format!("{}.log", part.name)), part.log())?;
    }
    let lines = seen.iter().map(|seen| {
        let change = &seen.change;
        let line = serde_json::json!({
            "at": seen.at, "revision": change.revision, "resource": change.resource, "name": change.name,
            "after": change.after,
        });
        line.to_string()
    });
    std::fs::write(folder.join("history.jsonl"), lines.collect::<Vec<_>>().join("\n"))
}

fn say(start: Instant, what: &str) {
    println!("{:>7.1} {what}", start.elapsed().as_secs_f64());
}
