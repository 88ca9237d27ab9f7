//! `mooring preflight`, from its arguments to its exit code: the checks of one cluster, or of each context of a fleet.

use serde::Serialize;

use super::output::{QueryStop, UNREACHABLE, USAGE, print};
use crate::{
    cli::query::{OutputForm, switching::PreflightArgs},
    config::Controllers,
    explain::{report::Verdict, sheet::clean},
    fence::policies::Fence,
    preflight::{Level, Line, facts::PreflightFacts, judge, text, worst},
};
use apiserver::connect::ApiServer;

/// One cluster's answer.
#[derive(Debug, Serialize)]
struct Preflight {
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    level: Level,
    lines: Vec<Line>,
}

/// The fences of a list of controllers.
pub(super) fn fences_of(controllers: &str) -> Result<Vec<&'static Fence>, QueryStop> {
    let list = Controllers::parse(controllers);
    let list = list.map_err(|why| QueryStop(USAGE, format!("--controllers: {why}")))?;
    Ok(list.running.iter().filter_map(|controller| Fence::of(controller.name())).collect())
}

/// `mooring preflight`, to its end.
///
/// # Errors
/// There is no answer.
pub async fn run(args: &PreflightArgs) -> Result<Verdict, QueryStop> {
    let fences = fences_of(&args.controllers)?;
    let mut contexts: Vec<Option<String>> = args.contexts.iter().cloned().map(Some).collect();
    if contexts.is_empty() {
        contexts.push(args.view.connection.context.clone());
    }
    let mut answers = Vec::new();
    for context in contexts {
        let choice = apiserver::connect::Choice { context: context.clone(), ..args.view.connection.choice() };
        let client = ApiServer::choose(&choice).await?.client()?;
        let facts = PreflightFacts::read(&client, &fences).await;
        let facts = facts.map_err(|error| QueryStop(UNREACHABLE, error.to_string()))?;
        let lines = judge(&facts, &fences);
        answers.push(Preflight { context, level: worst(&lines), lines });
    }
    let worst = answers.iter().map(|answer| answer.level).max().unwrap_or(Level::Ok);
    print(&form(&answers, args.view.output)?);
    Ok(match worst {
        Level::Ok => Verdict::Healthy,
        Level::Warn => Verdict::Waiting,
        Level::Stop => Verdict::Blocked,
    })
}

fn form(answers: &[Preflight], form: OutputForm) -> Result<String, QueryStop> {
    let unprintable = |error: &dyn std::error::Error| QueryStop(UNREACHABLE, error.to_string());
    match form {
        OutputForm::Json => {
            Ok(serde_json::to_string_pretty(answers).map_err(|error| unprintable(&error))? + "\n")
        }
        OutputForm::Yaml => serde_saphyr::to_string(&answers).map_err(|error| unprintable(&error)),
        OutputForm::Dot => Err(QueryStop(USAGE, "-o dot goes with explain alone".to_owned())),
        OutputForm::Text | OutputForm::Wide => {
            let one = |answer: &Preflight| {
                let title = answer.context.as_ref().filter(|_| answers.len() > 1);
                let title = title.map(|context| clean(context) + "\n").unwrap_or_default();
                // A server may say anything.
                let lines: String = text(&answer.lines).lines().map(|line| clean(line) + "\n").collect();
                title + &lines
            };
            Ok(answers.iter().map(one).collect::<Vec<_>>().join("\n"))
        }
    }
}
