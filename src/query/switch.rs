//! `mooring switch`, from its arguments to its exit code: says where it stands and what is next, and with `--yes` does it.

use std::time::Duration;

use apiserver::connect::ApiServer;

use super::{
    output::{QueryStop, UNREACHABLE, clean_lines, print},
    preflight::fences_of,
};
use crate::{
    cli::query::switching::SwitchArgs,
    explain::{report::Verdict, sheet::clean},
    fence::{
        ask::{NoAnswer, read},
        policies::FENCES,
    },
    preflight::facts::DEPLOYMENT,
    switch::{
        SwitchEnd, carry_out, plan,
        step::{Direction, SwitchOrder, SwitchStep},
        words::printed,
    },
    terminal::complain,
};

/// `mooring switch`, to its end.
///
/// # Errors
/// The cluster cannot be read, or a write was refused.
pub async fn run(args: &SwitchArgs) -> Result<Verdict, QueryStop> {
    let api = ApiServer::choose(&args.choice).await?;
    let fences = match args.to {
        Direction::Mooring => {
            let deployment = read(&api.client()?, DEPLOYMENT).await.map_err(|error| stop(&error))?;
            fences_of(None, deployment.as_ref())?
        }
        // Whichever are there.
        Direction::KubeControllerManager => FENCES.iter().collect(),
    };
    let order = SwitchOrder {
        to: args.to,
        one_way: args.one_way,
        replace_fence: args.replace_fence,
        max_pause: args.max_pause,
        manager_restarted: args.manager_was_restarted,
    };
    let tell = |line: &str| complain(&clean(line));
    if !args.yes {
        let (step, remembers) =
            plan(&api, order, &fences, &args.leave, tell).await.map_err(|error| stop(&error))?;
        print(&clean_lines(&printed(args.to, (&step, remembers), &fences)));
        let is_over = matches!(step, SwitchStep::Done | SwitchStep::Stop(_));
        print(if is_over {
            "Nothing was done.\n"
        } else {
            "Nothing was done. The same command with --yes does it.\n"
        });
        return Ok(match step {
            SwitchStep::Done => Verdict::Healthy,
            SwitchStep::Stop(_) => Verdict::Blocked,
            _ => Verdict::Waiting,
        });
    }
    match carry_out(&api, order, &fences, &args.leave, tell).await.map_err(|error| stop(&error))? {
        SwitchEnd::Done(pauses) => {
            print(&format!("{}\n", done(args.to, pauses)));
            Ok(Verdict::Healthy)
        }
        SwitchEnd::Stopped(why) => {
            print(&format!("stopped: {}\n", clean(&why)));
            Ok(Verdict::Blocked)
        }
    }
}

/// How long who stood still, as far as this run saw it.
fn done(to: Direction, pauses: [Option<Duration>; 2]) -> String {
    let words = ["nobody ruled", "all loops of kube-controller-manager stood still"];
    let told = words.iter().zip(pauses).filter_map(|(words, pause)| {
        pause.map(|pause| format!("; {words} for {:.1} s", pause.as_secs_f64()))
    });
    let is_new = to == Direction::Mooring && pauses.iter().any(Option::is_some);
    let waits = if is_new { "; new attachments wait for up to a minute more (reason HandOver)" } else { "" };
    format!("done{}{waits}", told.collect::<String>())
}

fn stop(error: &NoAnswer) -> QueryStop {
    let code = match error {
        NoAnswer::Refused(403, _) => Verdict::Forbidden.exit_code(),
        NoAnswer::Unknown(_) | NoAnswer::Refused(401, _) => UNREACHABLE,
        NoAnswer::Refused(..) => Verdict::Blocked.exit_code(),
    };
    QueryStop(code, clean(&format!("{error}; run the same command again")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_after_the_way_over_is_told() {
        let second = Some(Duration::from_secs(1));
        let over = done(Direction::Mooring, [second, None]);
        assert_eq!(
            over,
            "done; nobody ruled for 1.0 s; new attachments wait for up to a minute more (reason HandOver)"
        );
        let back = done(Direction::KubeControllerManager, [second, second]);
        assert!(back.ends_with("stood still for 1.0 s"), "{back}");
        assert_eq!(done(Direction::Mooring, [None; 2]), "done", "nothing was to be done");
    }

    #[test]
    fn who_asks_is_not_known_or_has_no_right_or_something_refuses() {
        let codes =
            [(401, UNREACHABLE), (403, Verdict::Forbidden.exit_code()), (422, Verdict::Blocked.exit_code())];
        for (status, code) in codes {
            let stop = stop(&NoAnswer::Refused(status, "no".to_owned()));
            assert_eq!(stop.0, code, "{status}");
        }
    }
}
