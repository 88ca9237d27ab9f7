//! How long the parts may take to end: it follows from how long their requests may take.

use std::time::Duration;

use apiserver::call::deadline::ANSWER;

use crate::config::Config;

/// How long HTTP may take to close; it bounds itself.
pub(super) const HTTP_TIMEOUT: Duration = Duration::from_secs(2);
/// How long events may take to be written by a process of which a part has died.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(3);
/// For what ends at its own limit, so that it is not cut off just then.
const SLACK: Duration = Duration::from_secs(1);

/// How long the parts may take to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// The subsystems: a request under way, and what follows from it, at their time-out.
    pub drain: Duration,
    /// The elector: an attempt under way, which is cut off unless it may win the lease, and giving that up.
    pub release: Duration,
}

impl Patience {
    pub fn of(config: &Config) -> Self {
        let release = config.election.map(|timing| timing.giving_up());
        Self { drain: (config.request_timeout + ANSWER) * 2, release: release.unwrap_or_default() + SLACK }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{self, Command};

    fn patience(flags: &[&str]) -> Patience {
        let Command::Run(args) = cli::parse(["mooring", "run"].iter().chain(flags)).unwrap().command else {
            panic!("it is run")
        };
        Patience::of(&Config::try_from(*args).unwrap())
    }

    #[test]
    fn the_parts_have_as_long_to_end_as_the_manifest_gives_them() {
        let patience = patience(&[]);
        let whole = patience.drain + patience.release + HTTP_TIMEOUT;
        let manifest = include_str!("../../deploy/deployment.yaml");
        let line =
            manifest.lines().find_map(|line| line.trim().strip_prefix("terminationGracePeriodSeconds: "));
        let given = Duration::from_secs(line.unwrap().parse().unwrap());
        assert!(whole < given && given < whole + Duration::from_secs(5), "{whole:?} of {given:?}");
    }

    #[test]
    fn whoever_makes_the_time_outs_longer_is_waited_for() {
        let patience = patience(&["--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=40s"]);
        assert!(patience.drain > Duration::from_mins(1), "{patience:?}");
        assert!(patience.release > Duration::from_secs(40), "{patience:?}");
    }
}
