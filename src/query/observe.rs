//! `mooring observe`, from its arguments to its summary.

use std::{collections::BTreeSet, future::pending, time::Duration};

use apiserver::connect::ApiServer;
use tokio::time::timeout;

use super::output::{QueryStop, UNREACHABLE, USAGE, form, print};
use crate::{
    app::Termination,
    cli::{
        self, Command,
        query::{OutputForm, observe::ObserveArgs},
    },
    config::Config,
    explain::report::Verdict,
    observe::{
        ObserveOrder, ObserveStop, observe,
        self_test::{Played, self_test},
        summary::Difference,
    },
    supervise::Threads,
    telemetry,
};

/// `mooring observe`, to its end.
///
/// # Errors
/// There is no answer.
pub async fn run(args: &ObserveArgs) -> Result<Verdict, QueryStop> {
    if args.self_test {
        return play_recordings();
    }
    let config = config(args).map_err(|line| QueryStop(USAGE, line))?;
    let logging = telemetry::init(&config.log);
    logging.map_err(|error| QueryStop(USAGE, error.to_string()))?;
    let is_text = matches!(args.view.output, OutputForm::Text | OutputForm::Wide);
    let api = ApiServer::choose(&args.view.connection.choice).await?;
    let (duration, stop) = (args.duration, stop(args.duration));
    if is_text {
        let how_long = duration.map_or_else(|| "until Ctrl-C".to_owned(), |time| format!("for {time:?}"));
        print(&format!("Observing {} {how_long}. Nothing is written.\n", api.host()));
    }
    let show = |difference: &Difference| {
        if is_text {
            print(&(difference.line() + "\n"));
        }
    };
    let order = ObserveOrder { config, rehearses: args.dry_run_writes, audit_log: args.audit_log.clone() };
    let stopped = |cause: ObserveStop| match &cause {
        ObserveStop::Forbidden(..) => QueryStop(Verdict::Forbidden.exit_code(), cause.to_string()),
        ObserveStop::Failed(_) => QueryStop(UNREACHABLE, cause.to_string()),
    };
    let (summary, ended) = observe(order, &api, Threads::Apart, stop, show).await.map_err(stopped)?;
    print(&form(&summary, args.view.output, || format!("\n{}", summary.text()))?);
    ended.map(|()| summary.exit()).map_err(stopped)
}

/// `--self-test`: well if each recording is told, and no more.
fn play_recordings() -> Result<Verdict, QueryStop> {
    let recordings = self_test().map_err(|error| QueryStop(UNREACHABLE, error))?;
    let mut verdict = Verdict::Healthy;
    for Played { name, expected, told } in recordings {
        let list = |words: &BTreeSet<String>| words.iter().cloned().collect::<Vec<_>>().join(", ");
        if told == expected {
            print(&format!("told    {name}\n"));
        } else {
            verdict = Verdict::Blocked;
            print(&format!("MISSED  {name}: expected [{}], told [{}]\n", list(&expected), list(&told)));
        }
    }
    Ok(verdict)
}

/// The configuration of the daemon that decides.
fn config(args: &ObserveArgs) -> Result<Config, String> {
    let words = [
        "mooring".to_owned(),
        "run".to_owned(),
        "--leader-elect=false".to_owned(),
        format!("--controllers={}", args.controllers),
        format!("--secure-port={}", args.secure_port),
        "--log-level=error".to_owned(),
    ];
    let cli = cli::parse(words).map_err(|_| format!("--controllers={}: not understood", args.controllers))?;
    match cli.command {
        Command::Run(run) => Config::try_from(*run).map_err(|error| error.to_string()),
        _ => Err("mooring run is not understood".to_owned()),
    }
}

/// When to stop.
async fn stop(duration: Option<Duration>) {
    let asked = async {
        match Termination::listen() {
            Ok(mut asked) => drop(asked.signal().await),
            Err(_) => pending().await,
        }
    };
    let _ = timeout(duration.unwrap_or(Duration::MAX), asked).await;
}
