//! Flags of the commands about who rules: `preflight` and `switch`.

use std::time::Duration;

use apiserver::connect::Choice;
use clap::Args;

use super::{CONNECTION, OutputForm};
use crate::{durations::parse_duration, switch::step::Direction};

/// Exit codes of `preflight`, for its help.
const EXIT_CODES_OF_PREFLIGHT: &str = "Exit codes: 0 nothing is in the way; 1 warnings; 2 it cannot be switched; 4 usage; \
    5 an API server cannot be reached.";

/// Flags of `mooring preflight`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES_OF_PREFLIGHT)]
pub struct PreflightArgs {
    /// Controllers that mooring is to take, as `mooring run --controllers` has them. A Deployment that is there says it
    /// itself; a list that differs from its own is refused.
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    pub controllers: Option<String>,

    /// Contexts of the kubeconfig to check, one after the other.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', conflicts_with = "context")]
    pub contexts: Vec<String>,

    /// How the answer is printed.
    #[arg(long, short, value_name = "FORM", value_enum, default_value_t)]
    pub output: OutputForm,

    /// The cluster.
    #[command(flatten, next_help_heading = CONNECTION)]
    pub choice: Choice,
}

/// Exit codes of `switch`, for its help.
const EXIT_CODES_OF_SWITCH: &str = "Exit codes: 0 nothing is left to do; 1 there is a next step, and --yes was not given; 2 it \
    cannot go on; 4 usage; 5 the API server cannot be reached; 6 your rights are not sufficient.";

/// Flags of `mooring switch`.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES_OF_SWITCH)]
pub struct SwitchArgs {
    /// Who is to rule.
    #[arg(long, value_name = "WHO", value_enum)]
    pub to: Direction,

    /// Only print the steps, their commands and which is next, as without --yes.
    #[arg(long, conflicts_with = "yes")]
    pub plan: bool,

    /// Do what is left to do. It can be ended at any time, and run again.
    #[arg(long)]
    pub yes: bool,

    /// Over, although you cannot write kube-controller-manager's lease: on the way back, somebody has to restart it.
    #[arg(long)]
    pub one_way: bool,

    /// Over, although the fence is that of another version of mooring: apply the fence of this version, which is to be rolled
    /// out next. Replicas of the other version go on, and take nothing away.
    #[arg(long)]
    pub replace_fence: bool,

    /// Back: the longest time for which all loops of kube-controller-manager may stand still. It is known from its lease before
    /// anything is stopped.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub max_pause: Option<Duration>,

    /// Back: a volume that need not come to rest; may be given more than once. kube-controller-manager may then attach it a
    /// second time: name only what no machine uses.
    #[arg(long, value_name = "VOLUME", action = clap::ArgAction::Append)]
    pub leave: Vec<String>,

    /// Back: after this command has stopped mooring, and while the fence is up, the kube-controller-manager of each server is
    /// restarted by hand. Its lease is not held then. The command waits until another process than before has begun to lead, and
    /// takes the fence down about five seconds after that at most.
    #[arg(long)]
    pub manager_was_restarted: bool,

    /// The cluster.
    #[command(flatten, next_help_heading = CONNECTION)]
    pub choice: Choice,
}
