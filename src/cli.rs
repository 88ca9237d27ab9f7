//! The command line: flags as the operator types them.
//!
//! Names and notation are kube-controller-manager's where it has the flag, so that its arguments
//! can be copied: Go's durations (`1m30s`), Go's booleans (`--leader-elect` and
//! `--leader-elect=false`), the last of two counts, and of lists all. Its other flags are ignored or refused in
//! [`arguments`]. What a combination of values means is checked in [`crate::config`].
//! Anything clap objects to becomes one line that names the flag.

pub(crate) mod arguments;
#[cfg(test)]
mod flag_docs;
mod kcm_flags;
pub mod query;

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf, time::Duration};

use arguments::Ignored;
use query::{
    ASKING, ExplainArgs,
    observe::ObserveArgs,
    questions::{DoctorArgs, NodeArgs, RepairArgs, WhatIfArgs},
    switching::{PreflightArgs, SwitchArgs},
};

use apiserver::wire::Encoding;
use clap::{ArgMatches, Args, CommandFactory, Parser, Subcommand, error::ErrorKind};

pub use crate::serving_flags::ServingArgs;
use crate::{durations::parse_duration, fence::arguments::parse_bool, telemetry::LoggingFormat};

/// What was built from which commit.
const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("MOORING_COMMIT"), ")");

/// Attach/detach controller and PV binder for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "mooring", version = LONG_VERSION, about, disable_help_subcommand = true)]
#[command(args_override_self = true, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the daemon.
    Run(Box<RunArgs>),
    /// Explain why a pod, a claim, a volume, an attachment, a node or a class waits, who has to act, and what is safe.
    /// Reads with your own rights, in any cluster, and writes nothing.
    Explain(Box<ExplainArgs>),
    /// Report what is blocked, waits or is at risk in the whole cluster. Causes that affect most pods come first.
    Doctor(Box<DoctorArgs>),
    /// List the volumes of a node, what still holds them, and their pods.
    Node(Box<NodeArgs>),
    /// Show what would follow from a change. Writes nothing.
    #[command(name = "whatif")]
    WhatIf(Box<WhatIfArgs>),
    /// Make one of the few patches that people make by hand, with the proof that it needs. Sends nothing without --yes.
    Repair(Box<RepairArgs>),
    /// Observe the process that rules storage, such as kube-controller-manager: report its acts that break the laws of
    /// storage, and what mooring would have done. Reads, and writes nothing.
    Observe(Box<ObserveArgs>),
    /// Check whether this cluster can be switched from kube-controller-manager to mooring, and what is in the way. Creates
    /// nothing.
    Preflight(Box<PreflightArgs>),
    /// Hand the storage loops over from kube-controller-manager to mooring behind a fence, or back. Prints the steps, and does
    /// nothing without --yes.
    Switch(Box<SwitchArgs>),
    /// Print the completion script of a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual, or write a page for each command into a folder.
    Man {
        /// The folder.
        folder: Option<PathBuf>,
    },
}

impl Command {
    /// The flags of `mooring run`, if that is it.
    pub fn run_args(&mut self) -> Option<&mut RunArgs> {
        match self {
            Self::Run(args) => Some(args),
            _ => None,
        }
    }
}

/// Exit codes of the daemon, and of the demo, for their help.
pub const EXIT_CODES_OF_RUN: &str = "Exit codes: 0 ended in order; 1 a part died, or the lease was lost; \
    2 it cannot start: flags, kubeconfig, address.";

const AFTER_RUN: &str = "kube-controller-manager's other flags are ignored if they cannot change what the two loops do, else \
    refused: docs/flags.md";

/// Flags of `mooring run`.
#[derive(Debug, Args)]
#[command(after_help = format!("{AFTER_RUN}\n\n{EXIT_CODES_OF_RUN}"))]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub struct RunArgs {
    /// Kubeconfig file. Without it: the pod's service account inside a cluster, else $KUBECONFIG or
    /// ~/.kube/config.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    /// Controllers to run. `*` is persistentvolume-attach-detach-controller and persistentvolume-binder-controller,
    /// `name` one more, `-name` one less, `storage` all of them. There are also persistentvolumeclaim-protection-controller,
    /// persistentvolume-protection-controller, volumeattributesclass-protection-controller, ephemeral-volume-controller and
    /// persistentvolume-expander-controller: only where kube-controller-manager's are switched off. Several flags are one list.
    #[arg(long, value_name = "LIST", default_value = "*", allow_hyphen_values = true)]
    pub controllers: Vec<String>,

    /// Lead only once kube-controller-manager's loops are seen to be fenced off (deploy/fence), and take nothing away while
    /// they are not. Needs the rights in deploy/optional/fence.
    #[arg(long, value_name = "BOOL", default_value = "false", default_missing_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, value_parser = parse_bool)]
    pub fence: bool,

    /// Write only while holding a lease, so that several replicas can run.
    #[arg(long, value_name = "BOOL", default_value = "true", default_missing_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, value_parser = parse_bool)]
    pub leader_elect: bool,

    /// How long others wait, after the last renewal they saw, before they take the lease.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = parse_duration)]
    pub leader_elect_lease_duration: Duration,

    /// How long the leader goes on after its last successful renewal.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub leader_elect_renew_deadline: Duration,

    /// Time between two attempts to acquire or renew the lease.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub leader_elect_retry_period: Duration,

    /// Name of the lease. Never kube-controller-manager's own, which guards other controllers.
    #[arg(long, value_name = "NAME", default_value = "mooring")]
    pub leader_elect_resource_name: String,

    /// Kind of object that is the lease. There is no other.
    #[arg(long, value_name = "KIND", default_value = "leases", value_parser = ["leases"])]
    pub leader_elect_resource_lock: String,

    /// Namespace of the lease. Without it: the pod's own inside a cluster, else kube-system.
    #[arg(long, value_name = "NAMESPACE")]
    pub leader_elect_resource_namespace: Option<String>,

    /// How long the API server may take to answer a request. If this is less than the timeout of an admission webhook
    /// that hangs and fails open (10s by default), nothing is written at all [default: as long as the lease allows,
    /// 11.5s with the defaults, and at most 34s].
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub request_timeout: Option<Duration>,

    /// Requests per second of each client of the API server. Attach/detach is two clients: one for VolumeAttachments, one for
    /// nodes; each other controller is one, and the writer of events is one. Without it there is no limit here: the
    /// server's priority and fairness decides.
    #[arg(long, value_name = "QPS", allow_negative_numbers = true)]
    pub kube_api_qps: Option<f64>,

    /// Requests that may exceed --kube-api-qps at once [default: 30 with --kube-api-qps].
    #[arg(long, value_name = "COUNT")]
    pub kube_api_burst: Option<usize>,

    /// How objects are read from the API server.
    #[arg(long, value_name = "TYPE", value_enum, default_value_t)]
    pub kube_api_content_type: Encoding,

    /// How log lines look.
    #[arg(long, value_name = "FORMAT", value_enum, default_value = "text")]
    pub logging_format: LoggingFormat,

    /// What to log: a level (error, warn, info, debug, trace), or target=level pairs after it
    /// [default: what -v says].
    #[arg(long, value_name = "FILTER")]
    pub log_level: Option<String>,

    /// How much to log, as kube-controller-manager counts: 0 to 3 is each change of an object's state, 4 also each
    /// write, 5 all that mooring has to say, 6 to 10 the libraries' as well. PUT /debug/flags/v changes it.
    #[arg(long = "v", short = 'v', value_name = "LEVEL", default_value_t = 0)]
    pub verbosity: i32,

    /// File with a TracingConfiguration, as the API server takes it: traces of attaches, detaches and binds go to
    /// its endpoint over OTLP (gRPC). Without it nothing is traced.
    #[arg(long, value_name = "FILE")]
    pub tracing_config_file: Option<PathBuf>,

    /// Serve /debug/flags, which changes what is logged, and /debug/pprof/profile, to those who have the right.
    #[arg(long, value_name = "BOOL", default_value = "true", default_missing_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, value_parser = parse_bool)]
    pub profiling: bool,

    /// Threads that watch, decide and write. The election and the server have their own.
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=64))]
    pub worker_threads: usize,

    /// Reconcile attachments only when something has happened.
    #[arg(long, value_name = "BOOL", default_value = "false", default_missing_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, value_parser = parse_bool)]
    pub disable_attach_detach_reconcile_sync: bool,

    /// How often to reconcile all attachments although nothing has happened, at least 1s. This safety net
    /// sends nothing when all is well, so its period is longer than kube-controller-manager's 1m.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub attach_detach_reconcile_sync_period: Duration,

    /// Never detach by force because of time alone: then only the taint
    /// node.kubernetes.io/out-of-service forces.
    #[arg(long, value_name = "BOOL", default_value = "false", default_missing_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, value_parser = parse_bool)]
    pub disable_force_detach_on_timeout: bool,

    /// How long a volume that may be in use stays attached to a node whose object was deleted. A missing node object
    /// does not prove that its machine is off.
    #[arg(long, value_name = "DURATION", default_value = "6m", value_parser = parse_duration)]
    pub force_detach_gone_node_after: Duration,

    /// How often to reconcile all claims and volumes that are not settled although nothing has happened, at
    /// least 1s. This safety net sends nothing when all is well, so its period is longer than the 15s of
    /// kube-controller-manager, which finds its work in this way.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub pvclaimbinder_sync_period: Duration,

    /// Hand claims that no volume matches to their provisioners.
    #[arg(long, value_name = "BOOL", default_value = "true", default_missing_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, value_parser = parse_bool)]
    pub enable_dynamic_provisioning: bool,

    /// Create and delete volumes of kubernetes.io/host-path below /tmp of the machine that mooring runs on. Only for
    /// test clusters of one machine. Needs the rights in deploy/optional/host-path.
    #[arg(long, value_name = "BOOL", default_value = "false", default_missing_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, value_parser = parse_bool)]
    pub enable_hostpath_provisioner: bool,

    /// Recycle volumes of policy Recycle, which is deprecated: a pod deletes what is on them. Needs the
    /// rights in deploy/optional/recycler.
    #[arg(long, value_name = "BOOL", default_value = "false", default_missing_value = "true")]
    #[arg(num_args = 0..=1, require_equals = true, value_parser = parse_bool)]
    pub enable_recycler: bool,

    /// File with the pod that recycles host path volumes.
    #[arg(long, value_name = "FILE")]
    pub pv_recycler_pod_template_filepath_hostpath: Option<PathBuf>,

    /// File with the pod that recycles NFS volumes.
    #[arg(long, value_name = "FILE")]
    pub pv_recycler_pod_template_filepath_nfs: Option<PathBuf>,

    /// Least time for recycling a host path volume, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub pv_recycler_minimum_timeout_hostpath: u32,

    /// Least time for recycling an NFS volume, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)))]
    pub pv_recycler_minimum_timeout_nfs: u32,

    /// Time for each GiB of a host path volume, in seconds, if that is more.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=i64::from(i32::MAX)))]
    pub pv_recycler_timeout_increment_hostpath: u32,

    /// Time for each GiB of an NFS volume, in seconds, if that is more.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=i64::from(i32::MAX)))]
    pub pv_recycler_increment_timeout_nfs: u32,

    /// Flags of serving.
    #[command(flatten)]
    pub serving: ServingArgs,

    /// kube-controller-manager's flags that were given and have no effect.
    #[arg(skip)]
    pub ignored: Vec<Ignored>,

    /// The value of each flag, as it was given or by default; empty for none.
    #[arg(skip)]
    pub values: BTreeMap<String, String>,
}

/// The file name under which kubectl finds the program as a plugin.
pub const PLUGIN: &str = "kubectl-mooring";

/// Whether the program was called by this file name.
pub fn is_called(program: Option<&OsString>, name: &str) -> bool {
    let file = program.map(std::path::Path::new).and_then(|path| path.file_stem());
    file.is_some_and(|file| file == name)
}

/// Why there are no arguments to run with.
#[derive(Debug, PartialEq, Eq)]
pub enum Stop {
    /// Help or version was asked for: print it on stdout and exit 0.
    Print(String),
    /// A mistake: print this one line on stderr and exit 2.
    Mistake(String),
    /// A mistake in a command that asks, or no command at all: the same, and exit 4.
    Usage(String),
}

/// Parses the command line, the program's name first.
///
/// # Errors
/// See [`Stop`].
pub fn parse<I>(arguments: I) -> Result<Cli, Stop>
where
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    parse_as(arguments, |cli: &mut Cli| cli.command.run_args())
}

/// The same for a program that can do more; `run` finds the flags of `mooring run` in what it was told.
///
/// # Errors
/// See [`Stop`].
pub fn parse_as<C, I>(arguments: I, run: impl FnOnce(&mut C) -> Option<&mut RunArgs>) -> Result<C, Stop>
where
    C: Parser,
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    let mut words: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let mut ignored = Vec::new();
    if words.get(1).is_some_and(|word| word == "run") {
        let sorted = arguments::sort(words.split_off(2)).map_err(Stop::Mistake)?;
        words.extend(sorted.arguments);
        ignored = sorted.ignored;
    }
    // As of kubectl, `help COMMAND` and `version`.
    if words.get(1).is_some_and(|word| word == "help" || word == "version") {
        let word = words.remove(1);
        words.push(if word == "help" { "--help".into() } else { "--version".into() });
    }
    let asks = words.get(1).is_some_and(|word| ASKING.iter().any(|asking| word == asking));
    let stop = |error: &clap::Error| match stop(error) {
        Stop::Mistake(line) if asks => Stop::Usage(line),
        stop => stop,
    };
    let mut command = C::command();
    if is_called(words.first(), PLUGIN) {
        command = command.bin_name("kubectl mooring");
    }
    let matches = command.try_get_matches_from(words).map_err(|error| stop(&error))?;
    let mut cli = C::from_arg_matches(&matches).map_err(|error| stop(&error))?;
    if let Some(run) = run(&mut cli) {
        run.ignored = ignored;
        run.values = values(&matches);
    }
    Ok(cli)
}

/// What each flag of `run` says, in words.
fn values(matches: &ArgMatches) -> BTreeMap<String, String> {
    let command = Cli::command();
    let run = matches.subcommand().and_then(|(name, run)| Some((command.find_subcommand(name)?, run)));
    let Some((run, matches)) = run else { return BTreeMap::new() };
    let value = |id: &str| {
        let raw = matches.try_get_raw(id).ok().flatten();
        raw.into_iter().flatten().map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(",")
    };
    let flags = run
        .get_arguments()
        .filter_map(|argument| Some((argument.get_long()?.to_owned(), value(argument.get_id().as_str()))));
    flags.collect()
}

fn stop(error: &clap::Error) -> Stop {
    match error.kind() {
        // clap's mark of several values would say of words of one object that there may be more.
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            Stop::Print(error.render().to_string().replace(">...", ">"))
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Stop::Usage("no subcommand given: try doctor, explain pvc/NAME, or help".to_owned())
        }
        ErrorKind::InvalidSubcommand => Stop::Usage(one_line(&error.to_string())),
        _ => Stop::Mistake(one_line(&error.to_string())),
    }
}

/// clap's message without its usage text: the first paragraph, and the tip if there is one.
fn one_line(text: &str) -> String {
    let mut line = String::new();
    let mut first_paragraph = true;
    for part in text.lines().map(str::trim) {
        if part.is_empty() {
            first_paragraph = false;
        } else if first_paragraph || part.starts_with("tip:") {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(part.strip_prefix("error: ").unwrap_or(part));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str]) -> Result<RunArgs, Stop> {
        match parse(["mooring", "run"].iter().chain(arguments))?.command {
            Command::Run(args) => Ok(*args),
            _ => panic!("{arguments:?}"),
        }
    }

    fn mistake(arguments: &[&str]) -> String {
        match run(arguments) {
            Err(Stop::Mistake(line)) => line,
            other => panic!("{arguments:?}: {other:?}"),
        }
    }

    #[test]
    fn several_lists_of_controllers_are_one_as_with_pflag() {
        let lists = |arguments: &[&str]| run(arguments).unwrap().controllers.join(",");
        assert_eq!(lists(&[]), "*");
        assert_eq!(lists(&["--controllers=*,a", "--controllers", "-b,c"]), "*,a,-b,c");
    }

    #[test]
    fn durations_are_written_as_in_go() {
        let cases = [
            ("15s", Some(Duration::from_secs(15))),
            ("1m30s", Some(Duration::from_secs(90))),
            ("500ms", Some(Duration::from_millis(500))),
            ("1.5h", Some(Duration::from_mins(90))),
            ("0", Some(Duration::ZERO)),
            ("", None),
            ("15", None),
            ("s", None),
            ("-1s", None),
            ("1 s", None),
            ("1.2.3s", None),
            ("1d", None),
            ("99999999999999999999h", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_duration(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn booleans_are_written_as_in_go() {
        assert!(run(&[]).unwrap().leader_elect);
        assert!(run(&["--leader-elect"]).unwrap().leader_elect);
        assert!(run(&["--leader-elect=T"]).unwrap().leader_elect);
        assert!(!run(&["--leader-elect=false"]).unwrap().leader_elect);
        assert!(
            !run(&["--enable-dynamic-provisioning=0", "--secure-port=1"])
                .unwrap()
                .enable_dynamic_provisioning
        );
        // A bare flag does not swallow the next argument.
        assert_eq!(run(&["--leader-elect", "--secure-port", "1"]).unwrap().serving.secure_port, 1);
    }

    #[test]
    fn a_mistake_is_one_line_that_names_the_flag() {
        let cases: [(&[&str], &str); 8] = [
            (&["--leader-elect=maybe"], "--leader-elect"),
            (&["--leader-elect-lease-duration=15"], "--leader-elect-lease-duration"),
            (&["--leader-elect-retry-period", "-2s"], "'-2"),
            (&["--kubeconfig"], "--kubeconfig"),
            (&["--secure-port=70000"], "--secure-port"),
            (&["--bind-address=localhost"], "--bind-address"),
            (&["--logging-format=xml"], "--logging-format"),
            (&["--kube-api-qsp=5"], "--kube-api-qsp"),
        ];
        for (arguments, names) in cases {
            let line = mistake(arguments);
            assert!(line.contains(names), "{line}");
            assert!(!line.contains('\n') && !line.contains("Usage"), "{line}");
        }
        assert_eq!(
            mistake(&["--logging-format=xml"]),
            "invalid value 'xml' for '--logging-format <FORMAT>' [possible values: text, logfmt, json]"
        );
    }

    #[test]
    fn of_a_flag_given_twice_the_last_one_counts() {
        let words = ["--kubeconfig=a", "--leader-elect=false", "--kube-api-qps=5", "-v", "2"];
        let again = ["--kubeconfig", "b", "--leader-elect", "--kube-api-qps=-1", "-v4"];
        let args = run(&[words, again].concat()).unwrap();
        assert_eq!(args.kubeconfig, Some(PathBuf::from("b")));
        assert!(args.leader_elect);
        assert_eq!((args.kube_api_qps, args.verbosity), (Some(-1.0), 4));
    }

    #[test]
    fn what_has_no_effect_is_kept_for_the_log_and_what_is_refused_is_a_mistake() {
        let args =
            run(&["--min-resync-period=12h0m0s", "--secure-port=1", "--contention-profiling"]).unwrap();
        let given: Vec<_> = args.ignored.iter().map(|ignored| ignored.flag.as_str()).collect();
        assert_eq!(given, ["--min-resync-period", "--contention-profiling"]);
        assert!(mistake(&["--leader-elect-resource-lock=endpoints"]).contains("[possible values: leases]"));
    }

    #[test]
    fn the_help_of_a_plugin_says_what_is_typed() {
        let help = |program: &str| match parse([program, "doctor", "--help"]) {
            Err(Stop::Print(help)) => help,
            other => panic!("{other:?}"),
        };
        assert!(help("/usr/bin/kubectl-mooring").contains("Usage: kubectl mooring doctor [OPTIONS]"));
        assert!(help("/usr/bin/mooring").contains("Usage: mooring doctor [OPTIONS]"));
    }

    #[test]
    fn the_help_of_the_daemon_has_its_exit_codes() {
        let Err(Stop::Print(help)) = parse(["mooring", "run", "--help"]) else { panic!("no help") };
        assert!(
            help.contains("Exit codes: 0 ended in order; 1 a part died, or the lease was lost; 2 it"),
            "{help}"
        );
        assert!(help.contains("docs/flags.md"), "{help}");
    }

    #[test]
    fn help_and_version_are_not_mistakes() {
        for words in [&["mooring", "--help"][..], &["mooring", "--version"], &["mooring", "run", "--version"]]
        {
            assert!(matches!(parse(words), Err(Stop::Print(_))), "{words:?}");
        }
        for words in
            [&["mooring", "help"][..], &["mooring", "help", "doctor"], &["mooring", "explain", "--help"]]
        {
            let Err(Stop::Print(help)) = parse(words) else { panic!("{words:?}") };
            assert!(help.contains("Usage: mooring") && !help.contains(">..."), "{help}");
        }
        let Err(Stop::Print(version)) = parse(["mooring", "version"]) else { panic!("no version") };
        assert!(version.contains("(commit "), "{version}");
        // That a person has to act on the cluster, exit code 2, it is not.
        for words in [&["mooring"][..], &["mooring", "docter"]] {
            assert!(matches!(parse(words), Err(Stop::Usage(_))), "{words:?}");
        }
    }
}
