//! Flags of `mooring observe`.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::ViewArgs;
use crate::durations::parse_duration;

/// What is claimed, and what the exit codes mean.
const WHAT_IS_CLAIMED: &str = "\
Each act of the process that rules is held against the laws of docs/spec/safety.md, and against what mooring's controllers \
decided in the same cluster. resourceVersion shows who was first: mooring was first if it decided on a revision before that \
of the act. Its lead is the time from its decision until the watch event of the act, without the time of a request of mooring. A difference comes to light when all watches have passed its revision, after ten seconds at most in a quiet cluster. \
\"The ruler\" is whoever made an act; --audit-log names users.

Exit codes: 0 alike; 1 different: it does not do, or chooses otherwise, or inconclusive: fewer than half of the acts were \
compared; 2 unsafe or unexplained; 3 nothing was compared; 4 usage; 5 the API server cannot be reached, a kind cannot be \
listed within ten minutes of the start, or is not watched for two minutes while others change; 6 your rights are not sufficient.";

/// Flags of `mooring observe`.
#[derive(Debug, Args)]
#[command(after_help = WHAT_IS_CLAIMED)]
pub struct ObserveArgs {
    /// How long to observe [default: until Ctrl-C].
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// Controllers to compare, as for mooring run. All acts are held against the laws.
    #[arg(long, value_name = "LIST", default_value = "*", allow_hyphen_values = true)]
    pub controllers: String,

    /// Port to serve /metrics on; 0 serves nothing.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub secure_port: u16,

    /// Send each write that mooring would make with dryRun=All, and report which the API server would refuse. You need the
    /// rights of mooring for that. Nothing is stored.
    #[arg(long)]
    pub dry_run_writes: bool,

    /// Audit log of the API server as a file of JSON lines, to name who made each act. At the level RequestResponse the revision
    /// identifies the user; at Metadata object, verb and time do, and several users may be named.
    #[arg(long, value_name = "FILE")]
    pub audit_log: Option<PathBuf>,

    /// Play bundled recordings of rulers that do what no ruler should, and show that each is reported. Needs no cluster.
    #[arg(long)]
    pub self_test: bool,

    /// How and where.
    #[command(flatten)]
    pub view: ViewArgs,
}
