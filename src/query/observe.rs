//! `mooring observe`, from its arguments to its summary.

use std::{collections::BTreeSet, fmt::Write as _, future::pending, time::Duration};

use apiserver::connect::ApiServer;
use tokio::time::timeout;

use super::output::{QueryStop, UNREACHABLE, USAGE, form, print, style, unreachable};
use crate::{
    app::Termination,
    cli::{
        self, Command,
        query::{OutputForm, observe::ObserveArgs},
    },
    config::Config,
    explain::{report::Verdict, sheet::text::painted},
    observe::{
        ObserveOrder, ObserveStop, observe,
        self_test::{Played, self_test},
        summary::{Difference, DifferenceKind},
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
    let color = style(&args.view).color;
    let is_text = matches!(args.view.output, OutputForm::Text | OutputForm::Wide);
    let api = ApiServer::choose(&args.view.connection.choice).await?;
    let (duration, stop) = (args.duration, stop(args.duration));
    if is_text {
        let how_long = duration.map_or_else(|| "until Ctrl-C".to_owned(), |time| format!("for {time:?}"));
        print(&format!("Observing {} {how_long}. Nothing is written.\n", api.host()));
    }
    let show = |difference: &Difference| {
        if is_text {
            print(&(shown(&difference.line(), of_kind(difference.kind), color) + "\n"));
        }
    };
    let order = ObserveOrder { config, rehearses: args.dry_run_writes, audit_log: args.audit_log.clone() };
    let (summary, ended) =
        observe(order, &api, Threads::Apart, stop, show).await.map_err(|cause| stopped(&cause))?;
    print(&form(&summary, args.view.output, || {
        let text = summary.text();
        let (verdict, rest) = text.split_once('\n').unwrap_or_default();
        format!("\n{}\n{rest}", shown(verdict, summary.exit(), color))
    })?);
    end(summary.exit(), ended)
}

fn stopped(cause: &ObserveStop) -> QueryStop {
    let code = match cause {
        ObserveStop::Forbidden(..) => Verdict::Forbidden.exit_code(),
        ObserveStop::Failed(_) => UNREACHABLE,
    };
    QueryStop(code, cause.to_string())
}

/// What has been told as unsafe counts more than that there was an end to watching.
fn end(verdict: Verdict, ended: Result<(), ObserveStop>) -> Result<Verdict, QueryStop> {
    let stop = ended.err().map(|cause| stopped(&cause));
    match stop {
        Some(QueryStop(_, why)) if verdict == Verdict::Blocked => Err(QueryStop(verdict.exit_code(), why)),
        Some(stop) => Err(stop),
        None => Ok(verdict),
    }
}

/// What a difference of this kind leads to.
fn of_kind(kind: DifferenceKind) -> Verdict {
    match kind {
        DifferenceKind::Unsafe | DifferenceKind::Unexplained => Verdict::Blocked,
        _ => Verdict::Waiting,
    }
}

/// A line in the colour of its verdict: red or yellow.
fn shown(line: &str, verdict: Verdict, color: bool) -> String {
    match verdict {
        Verdict::Blocked if color => painted("31", line),
        Verdict::Waiting if color => painted("33", line),
        _ => line.to_owned(),
    }
}

/// `--self-test`: well if each recording is told, and no more.
fn play_recordings() -> Result<Verdict, QueryStop> {
    let recordings = self_test().map_err(unreachable)?;
    let (verdict, text) = told_of(&recordings);
    print(&text);
    Ok(verdict)
}

fn told_of(recordings: &[Played]) -> (Verdict, String) {
    let (mut verdict, mut text) = (Verdict::Healthy, String::new());
    for Played { name, expected, told } in recordings {
        let list = |words: &BTreeSet<String>| words.iter().cloned().collect::<Vec<_>>().join(", ");
        if told == expected {
            let _ = writeln!(text, "told    {name}");
        } else {
            verdict = Verdict::Blocked;
            let _ = writeln!(text, "MISSED  {name}: expected [{}], told [{}]", list(expected), list(told));
        }
    }
    (verdict, text)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_any_one_law_or_situation_the_self_test_misses_its_recordings_and_ends_with_2() {
        let recordings = self_test().unwrap();
        assert_eq!(told_of(&recordings).0, Verdict::Healthy);
        // Each law and situation is in one: `self_test` has the test of that.
        let words: BTreeSet<String> = recordings.iter().flat_map(|played| played.expected.clone()).collect();
        assert!(words.len() > 24, "{words:?}");
        for word in &words {
            let mut without = recordings.clone();
            for played in &mut without {
                played.told.retain(|told| told != word);
            }
            let (verdict, text) = told_of(&without);
            assert_eq!(verdict.exit_code(), 2, "{word}");
            for played in recordings.iter().filter(|played| played.expected.contains(word)) {
                assert!(text.contains(&format!("MISSED  {}: expected [", played.name)), "{word}: {text}");
            }
        }
    }

    #[test]
    fn what_was_unsafe_is_exit_2_also_if_the_server_is_lost() {
        let lost = || Err(ObserveStop::Failed(anyhow::anyhow!("not watched")));
        let forbidden = || Err(ObserveStop::Forbidden("nodes", "no".to_owned()));
        let cases = [
            (Verdict::Blocked, Ok(()), 2),
            (Verdict::Blocked, lost(), 2),
            (Verdict::Blocked, forbidden(), 2),
            (Verdict::Healthy, lost(), 5),
            (Verdict::Waiting, forbidden(), 6),
            (Verdict::Waiting, Ok(()), 1),
        ];
        for (verdict, ended, expected) in cases {
            let code = end(verdict, ended).map_or_else(|QueryStop(code, _)| code, Verdict::exit_code);
            assert_eq!(code, expected, "{verdict:?}");
        }
    }

    #[test]
    fn what_is_unsafe_or_unexplained_is_red_on_terminals_and_nothing_elsewhere() {
        let line = |kind, color| shown("x", of_kind(kind), color);
        assert_eq!(line(DifferenceKind::Unsafe, true), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(line(DifferenceKind::Unexplained, true), "\u{1b}[31mx\u{1b}[0m");
        assert_eq!(line(DifferenceKind::Wait, true), "\u{1b}[33mx\u{1b}[0m");
        assert_eq!(line(DifferenceKind::Unsafe, false), "x");
        assert_eq!(shown("x", Verdict::Healthy, true), "x");
    }
}
