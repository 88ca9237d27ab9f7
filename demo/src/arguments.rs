//! The command line: mooring's, and `demo`.

use std::{ffi::OsString, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use mooring::{
    cli::{self, Stop},
    durations::parse_duration,
};

/// Attach/detach controller and PV binder for Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "mooring", version, about, disable_help_subcommand = true)]
#[command(args_override_self = true, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// What the daemon's own program can do.
    #[command(flatten)]
    Mooring(cli::Command),
    /// Watch the daemon at work on a cluster in this process.
    Demo(DemoArgs),
}

/// Flags of `mooring demo`.
#[derive(Clone, Debug, Args)]
#[command(after_help = cli::EXIT_CODES_OF_RUN)]
pub struct DemoArgs {
    /// Number of nodes, at least 2.
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(2..=1_000))]
    pub nodes: usize,

    /// Number of volumes, each with a claim and a pod.
    #[arg(long, value_name = "COUNT", default_value_t = 24)]
    #[arg(value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=10_000))]
    pub volumes: usize,

    /// Pods that are deleted and made again per second, most of them on another node; 0 for none.
    #[arg(long, value_name = "PER_SECOND", default_value_t = 1.0, value_parser = parse_rate)]
    pub rate: f64,

    /// What happens is drawn from this number [default: another one each time].
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,

    /// End by itself after this time.
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_duration)]
    pub duration: Option<Duration>,

    /// How to show it [default: view on a terminal, else log; with --metrics log].
    #[arg(long, value_name = "FORM", value_enum)]
    pub output: Option<DemoOutput>,

    /// Port of the API server on 127.0.0.1, for kubectl; 0 takes any free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    pub port: u16,

    /// Serve the daemon's metrics on this port of 127.0.0.1 [default: 10270], and say how to see the dashboards on a
    /// Prometheus and a Grafana that are installed here.
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "10270")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub metrics: Option<u16>,
}

/// How the demo is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DemoOutput {
    /// A live view that fills the terminal.
    View,
    /// A line for everything that happens.
    Log,
}

/// Parses the command line, the program's name first.
///
/// # Errors
/// See [`Stop`].
pub fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Cli, Stop> {
    cli::parse_as(arguments, |cli: &mut Cli| match &mut cli.command {
        Command::Mooring(command) => command.run_args(),
        Command::Demo(_) => None,
    })
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.0..=1_000.0).contains(&rate) => Ok(rate),
        _ => Err("not a number from 0 to 1000".to_owned()),
    }
}
