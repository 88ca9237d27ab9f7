//! Flags of the commands that query a cluster: which, as which user, and how the answer is printed.
//!
//! In: the words of the command line. Out: [`ExplainArgs`]. Names and notation are kubectl's, so that what is typed after
//! `kubectl` can be typed here.

pub mod observe;
pub mod questions;
pub mod switching;

use std::{path::PathBuf, time::Duration};

use apiserver::connect::Choice;
use clap::{Args, ValueEnum};

use crate::durations::parse_duration;

/// Commands that query a cluster, whose exit codes are their own.
pub const ASKING: [&str; 8] =
    ["explain", "doctor", "node", "whatif", "repair", "observe", "preflight", "switch"];

/// Exit codes of these commands, for their help.
const EXIT_CODES: &str = "Exit codes: 0 as it should be; 1 it waits and continues by itself; 2 a person has to act; 3 not found; \
    4 usage; 5 the API server cannot be reached; 6 your rights are not sufficient for an answer.";

/// The heading of these flags.
const CONNECTION: &str = "Connection, as for kubectl";

/// kubectl's flags for connections.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = CONNECTION)]
pub struct ConnectionArgs {
    /// Which API server, and as whom.
    #[command(flatten)]
    pub choice: Choice,

    /// How long an answer of the API server may take [default: 1m].
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub request_timeout: Option<Duration>,

    /// Namespace [default: the context's].
    #[arg(long, short, value_name = "NAMESPACE")]
    pub namespace: Option<String>,
}

impl ConnectionArgs {
    /// How long an answer may take; as kubectl's, 0 is no limit of ours.
    pub fn patience(&self) -> Option<Duration> {
        self.request_timeout.filter(|time| !time.is_zero())
    }
}

/// How an answer is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputForm {
    /// For people.
    #[default]
    Text,
    /// For people, with all evidence and all candidates.
    Wide,
    /// `explain/v1`.
    Json,
    /// The same as YAML.
    Yaml,
}

/// How the answer is printed, and the connection.
#[derive(Debug, Args)]
pub struct ViewArgs {
    /// How the answer is printed.
    #[arg(long, short, value_name = "FORM", value_enum, default_value_t)]
    pub output: OutputForm,

    /// Times in full beside ages.
    #[arg(long)]
    pub utc: bool,

    /// No characters beyond ASCII.
    #[arg(long)]
    pub ascii: bool,

    /// No colours, as with NO_COLOR.
    #[arg(long)]
    pub no_color: bool,

    /// The cluster.
    #[command(flatten)]
    pub connection: ConnectionArgs,
}

/// Flags of `mooring explain`.
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ExplainArgs {
    /// What to explain: pod, pvc, pv, va, node, sc or vac, and its name.
    #[arg(value_name = "KIND/NAME | KIND NAME", required_unless_present = "serve", num_args = 1..=2)]
    pub subject: Vec<String>,

    /// Wait until it is as it should be, at most that long, and print the last answer.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "watch")]
    #[arg(num_args = 0..=1, require_equals = true)]
    pub wait: Option<Option<Duration>>,

    /// Print the answer again whenever it has changed.
    #[arg(long, short)]
    pub watch: bool,

    /// Serve the answers as a page, for you alone, on this port of 127.0.0.1 [default: any], and print its address.
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "0")]
    #[arg(conflicts_with_all = ["watch", "wait", "subject"])]
    pub serve: Option<u16>,

    /// Also read the timers and the history of this daemon. You need the right to read its pages below /debug/. The daemon
    /// receives your token or certificate, so its own certificate is verified by --daemon-ca alone.
    #[arg(long, value_name = "URL", conflicts_with = "serve", requires = "daemon_ca")]
    pub daemon: Option<String>,

    /// Certificate authority of the daemon, or its own certificate, as PEM.
    #[arg(long, value_name = "FILE", requires = "daemon")]
    pub daemon_ca: Option<PathBuf>,

    /// How and where.
    #[command(flatten)]
    pub view: ViewArgs,
}

#[cfg(test)]
mod tests {
    use super::super::{Command, Stop, parse};
    use super::*;

    fn explain(words: &[&str]) -> Result<ExplainArgs, Stop> {
        match parse(["mooring", "explain"].iter().chain(words))?.command {
            Command::Explain(args) => Ok(*args),
            _ => panic!("{words:?}"),
        }
    }

    #[test]
    fn what_is_typed_after_kubectl_can_be_typed_here() {
        let words = [
            "pvc/data",
            "-n",
            "shop",
            "--context",
            "c",
            "-s",
            "https://x",
            "--as",
            "alice",
            "--as-uid=7",
            "--as-group=a",
            "--as-group",
            "b",
            "--as-user-extra=scopes=a=b",
            "--certificate-authority=ca.crt",
            "--tls-server-name=api.example",
            "--client-certificate=me.crt",
            "--client-key=me.key",
            "--request-timeout=5s",
            "-o",
            "json",
        ];
        let args = explain(&words).unwrap();
        assert_eq!(
            (args.subject.as_slice(), args.view.output),
            (&["pvc/data".to_owned()][..], OutputForm::Json)
        );
        let connection = &args.view.connection;
        assert_eq!(connection.namespace.as_deref(), Some("shop"));
        assert_eq!(connection.patience(), Some(Duration::from_secs(5)));
        let choice = &connection.choice;
        assert_eq!((choice.context.as_deref(), choice.server.as_deref()), (Some("c"), Some("https://x")));
        assert_eq!((choice.impersonated.as_deref(), choice.impersonated_groups.len()), (Some("alice"), 2));
        assert_eq!(choice.impersonated_extra, [("scopes".to_owned(), "a=b".to_owned())]);
        assert!(explain(&["--as-user-extra=scopes"]).is_err());
        assert_eq!(
            (choice.impersonated_uid.as_deref(), choice.tls_server_name.as_deref()),
            (Some("7"), Some("api.example"))
        );
        let files = [&choice.certificate_authority, &choice.client_certificate, &choice.client_key];
        let files = files.map(|file| file.as_ref().and_then(|file| file.to_str()));
        assert_eq!(files, [Some("ca.crt"), Some("me.crt"), Some("me.key")]);
        let args = explain(&["-w", "pod", "web-0", "--request-timeout=0"]).unwrap();
        assert!(args.watch && args.view.connection.patience().is_none());
        assert_eq!(args.subject, ["pod", "web-0"]);
    }

    #[test]
    fn a_page_is_of_no_single_object() {
        assert_eq!(explain(&["--serve"]).unwrap().serve, Some(0));
        assert_eq!(explain(&["--serve=8080", "--context=c"]).unwrap().serve, Some(8080));
        assert!(matches!(explain(&["pvc/a", "--serve"]), Err(Stop::Usage(_))));
        assert!(matches!(explain(&["--serve", "-w"]), Err(Stop::Usage(_))));
    }

    #[test]
    fn waiting_takes_a_time_or_none() {
        assert_eq!(explain(&["pvc/a"]).unwrap().wait, None);
        assert_eq!(explain(&["--wait", "pvc/a"]).unwrap().wait, Some(None));
        assert_eq!(explain(&["pvc/a", "--wait=90s"]).unwrap().wait, Some(Some(Duration::from_secs(90))));
    }

    #[test]
    fn a_mistake_of_one_who_asks_is_no_mistake_of_the_daemons() {
        let cases: [&[&str]; 5] = [
            &[],
            &["pvc/a", "-o", "xml"],
            &["a", "b", "c"],
            &["pvc/a", "-w", "--wait"],
            &["pvc/a", "--bogus"],
        ];
        for words in cases {
            let Err(Stop::Usage(line)) = explain(words) else { panic!("{words:?}") };
            assert!(!line.contains('\n'), "{line}");
        }
        assert!(matches!(parse(["mooring", "run", "--bogus"]), Err(Stop::Mistake(_))));
        let Err(Stop::Print(help)) = explain(&["--help"]) else { panic!("no help") };
        assert!(help.contains("Exit codes: 0 as it should be; 1 it waits"), "{help}");
    }
}
