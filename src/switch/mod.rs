//! `mooring switch`: hands the storage loops over from kube-controller-manager (KCM) to mooring behind a fence, and back.
//!
//! It keeps no state: [`observe`] reads from the cluster how far it has come, [`step`] says what is next, [`act`] does it, and
//! so on until nothing is left. It can therefore be killed anywhere and run again. What only time shows (that every API
//! server enforces the fence, that KCM's old leader has exited) begins anew with each run. A lease keeps a second one out.

mod act;
mod hold;
#[cfg(test)]
mod kills;
mod observe;
#[cfg(test)]
mod observe_tests;
pub mod step;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod unwritable_tests;
mod users;
pub mod words;

use std::time::Duration;

use apiserver::connect::ApiServer;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::fence::{
    ask::{NoAnswer, client},
    policies::Fence,
};
use act::Switcher;
use observe::{BETWEEN_LOOKS, Observer};
use step::{Direction, FenceStanding, MOST_TO_WAIT, SwitchOrder, SwitchSeen, SwitchStep, next};
use users::shared_user;

/// So many looks and writes may fail one after the other: get no answer, or meet a conflict.
const MOST_MISSES: u32 = 10;

/// Likewise, while each server is about to restart.
const MOST_MISSES_AT_RESTART: u32 = 120;

/// Between two looks while nobody rules: each may reach another API server.
const PROVING: Duration = Duration::from_millis(250);

/// So often a plan looks again, for a leader or another server: leases are renewed every two seconds.
const LOOKS_OF_A_PLAN: u32 = 5;

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SwitchEnd {
    /// The other one rules. For how long nobody did, and for how long all of KCM stood still, as far as this run saw it.
    Done([Option<Duration>; 2]),
    /// It cannot go on: why.
    Stopped(String),
}

/// What is next, without doing it, and whether a loop [remembers](SwitchSeen::remembers). Volumes that are left need not come to
/// rest.
///
/// # Errors
/// The cluster cannot be read.
pub async fn plan(
    api: &ApiServer,
    order: SwitchOrder,
    fences: &[&'static Fence],
    leave: &[String],
    tell: impl Fn(&str),
) -> Result<(SwitchStep, bool), NoAnswer> {
    if let Some(why) = shared_user(&client(api)?, order.to, fences, &tell).await? {
        return Ok((SwitchStep::Stop(why), true));
    }
    let mut observer = Observer::new(api, fences, None, (order.to, leave));
    let mut seen = observer.look().await?;
    let mut step = next(order, &seen);
    for _ in 0..LOOKS_OF_A_PLAN {
        if !matches!(step, SwitchStep::AwaitLeader | SwitchStep::FindManager | SwitchStep::ProveOpen) {
            break;
        }
        sleep(BETWEEN_LOOKS).await;
        seen = observer.look().await?;
        step = next(order, &seen);
    }
    Ok((step, seen.remembers))
}

/// Does it, and tells each step as it begins.
///
/// # Errors
/// The cluster cannot be read, or a write was refused.
pub async fn carry_out(
    api: &ApiServer,
    order: SwitchOrder,
    fences: &[&'static Fence],
    leave: &[String],
    tell: impl Fn(&str),
) -> Result<SwitchEnd, NoAnswer> {
    if let Some(why) = shared_user(&client(api)?, order.to, fences, &tell).await? {
        return Ok(SwitchEnd::Stopped(why));
    }
    let mut switcher = Switcher::new(api, fences).await?;
    match switcher.lock(&tell).await {
        // Without the namespace there is no Deployment either, and no lock.
        Err(error @ NoAnswer::Refused(404, _)) => {
            return match plan(api, order, fences, leave, tell).await?.0 {
                SwitchStep::Stop(why) => Ok(SwitchEnd::Stopped(why)),
                SwitchStep::Done => Ok(SwitchEnd::Done([None; 2])),
                _ => Err(error),
            };
        }
        taken => drop(taken?),
    }
    let mut observer = Observer::new(api, fences, Some(switcher.manager().clone()), (order.to, leave));
    let (mut nobody_rules, mut all_stand_still, mut misses) = (Pause::default(), Pause::default(), 0);
    let mut is_told = false;
    // The last step, and since when it is the next.
    let mut last: Option<(SwitchStep, Instant)> = None;
    let end = loop {
        sleep(match last {
            Some((SwitchStep::ReachServers | SwitchStep::ProveFence | SwitchStep::ProveOpen, _)) => PROVING,
            _ => BETWEEN_LOOKS,
        })
        .await;
        let look = observer.look().await;
        // Where KCM is a part of the API server, that restarts, too.
        let most = match last {
            Some((SwitchStep::AwaitRestart, since)) if since.elapsed() < MOST_TO_WAIT => {
                MOST_MISSES_AT_RESTART
            }
            _ => MOST_MISSES,
        };
        let may_miss = misses < most && !observer.has_held_on().await;
        let seen = match look {
            Ok(SwitchSeen { fence: FenceStanding::Unknown(_), .. }) | Err(_) if may_miss => {
                misses += 1;
                continue;
            }
            seen => seen?,
        };
        let now = Instant::now();
        let step = next(order, &seen);
        if step == SwitchStep::AwaitRestart {
            // Each server may restart in its turn.
            misses = 0;
        }
        if seen.is_by_time && !std::mem::replace(&mut is_told, true) {
            tell(words::NOT_PROVEN);
        }
        nobody_rules.note(is_without_ruler(order.to, &seen, (&step, observer.has_raised)), now);
        all_stand_still.note(!seen.manager.leads, now);
        let since = match last {
            Some((known, since)) if known.is_same(&step) => {
                if known != step {
                    tell(&step.told());
                }
                since
            }
            _ => {
                tell(&step.told());
                now
            }
        };
        if let Some(why) = step.given_up(now.duration_since(since), &seen) {
            if matches!(step, SwitchStep::Drain(_)) {
                switcher.ask_to_drain(&Value::Null).await?;
            }
            break SwitchEnd::Stopped(why);
        }
        match &step {
            SwitchStep::Done => break SwitchEnd::Done([nobody_rules.lasted, all_stand_still.lasted]),
            SwitchStep::Stop(why) => break SwitchEnd::Stopped(why.clone()),
            step => {
                let taken = match switcher.lock(&tell).await {
                    Ok(true) => switcher.take(step, &seen, &tell).await,
                    // Another run may have gone on meanwhile.
                    Ok(false) => {
                        last = None;
                        continue;
                    }
                    Err(error) => Err(error),
                };
                match taken {
                    // Not again in this run: another volume could come between each time.
                    Ok(()) if matches!(step, SwitchStep::StartAgain(_)) => {
                        break SwitchEnd::Stopped(step.told());
                    }
                    Ok(()) => {
                        misses = 0;
                        observer.took(step);
                    }
                    // The next look shows what became of it.
                    Err(NoAnswer::Unknown(_) | NoAnswer::Refused(409, _)) if misses < most => {
                        misses += 1;
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        last = Some((step, since));
    };
    switcher.unlock().await?;
    Ok(end)
}

/// The first time for which something was so.
#[derive(Default)]
struct Pause {
    since: Option<Instant>,
    lasted: Option<Duration>,
}

impl Pause {
    fn note(&mut self, is_so: bool, now: Instant) {
        if is_so {
            self.since.get_or_insert(now);
        } else if let Some(since) = self.since {
            self.lasted.get_or_insert(now.duration_since(since));
        }
    }
}

/// Whether loops stand still: from the first denial over, and from the stop of mooring back, until the other one leads. Over with
/// one more loop, the replica that leads does not run that until the rollout is over.
fn is_without_ruler(to: Direction, seen: &SwitchSeen, (step, has_raised): (&SwitchStep, bool)) -> bool {
    let is_open = matches!(seen.fence, FenceStanding::Absent { .. });
    match to {
        Direction::Mooring => {
            let raises = *step == SwitchStep::RaiseFence;
            let does_not_run_it = !seen.daemon.may_lead || (has_raised || raises) && seen.daemon.rolls;
            does_not_run_it && (seen.fence.is_up() || raises)
        }
        Direction::KubeControllerManager => !(seen.daemon.may_lead || is_open && seen.manager.leads),
    }
}
