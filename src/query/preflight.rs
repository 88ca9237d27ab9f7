//! `mooring preflight`, from its arguments to its exit code: the checks of one cluster, or of each context of a fleet.

use serde::Serialize;
use serde_json::Value;

use super::output::{QueryStop, USAGE, clean_lines, form, print, unreachable};
use crate::{
    cli::query::switching::PreflightArgs,
    config::Controllers,
    explain::{report::Verdict, sheet::clean},
    fence::{
        arguments::{controllers, of_deployment},
        ask::read_if_allowed,
        policies::Fence,
    },
    preflight::{
        Level, Line,
        facts::{DEPLOYMENT, PreflightFacts},
        judge, text, worst,
    },
};
use apiserver::connect::{ApiServer, Choice};

/// One cluster's answer.
#[derive(Debug, Serialize)]
struct Preflight {
    #[serde(skip_serializing_if = "Option::is_none")]
    context: Option<String>,
    level: Level,
    lines: Vec<Line>,
}

/// The fences of the controllers that the daemon runs by its Deployment, and of those that are asked for where there is none.
pub(super) fn fences_of(
    asked: Option<&str>,
    deployment: Option<&Value>,
) -> Result<Vec<&'static Fence>, QueryStop> {
    let parse = |list: &str, code: u8| {
        Controllers::parse(list).map_err(|why| QueryStop(code, format!("--controllers: {why}")))
    };
    let asked = asked.map(|list| parse(list, USAGE)).transpose()?;
    let blocked = Verdict::Blocked.exit_code();
    let theirs = deployment.map(|it| parse(&controllers(&of_deployment(Some(it))), blocked)).transpose()?;
    if let (Some(asked), Some(theirs)) = (&asked, &theirs)
        && asked.running != theirs.running
    {
        let why = "--controllers differs from that of the Deployment mooring in mooring-system, which counts: leave it away";
        return Err(QueryStop(blocked, why.to_owned()));
    }
    let list = match theirs.or(asked) {
        Some(list) => list,
        None => parse("*", USAGE)?,
    };
    Ok(list.running.iter().filter_map(|controller| Fence::of(controller.name())).collect())
}

/// `mooring preflight`, to its end.
///
/// # Errors
/// There is no answer.
pub async fn run(args: &PreflightArgs) -> Result<Verdict, QueryStop> {
    let mut contexts: Vec<Option<String>> = args.contexts.iter().cloned().map(Some).collect();
    if contexts.is_empty() {
        contexts.push(args.choice.context.clone());
    }
    // What is wrong with the command itself ends it before any cluster is asked.
    fences_of(args.controllers.as_deref(), None)?;
    let (mut answers, mut without) = (Vec::new(), Vec::new());
    for context in contexts {
        let choice = Choice { context: context.clone(), ..args.choice.clone() };
        let lines = match lines_of(&choice, args.controllers.as_deref()).await {
            Ok(lines) => lines,
            // Of one of a fleet, the others are answered.
            Err(QueryStop(code, evidence)) if args.contexts.len() > 1 => {
                without.push(QueryStop(code, format!("{}: {evidence}", context.clone().unwrap_or_default())));
                let todo = "see that this context reaches a cluster that answers you".to_owned();
                vec![Line { check: "cluster", level: Level::Stop, evidence, todo }]
            }
            Err(stop) => return Err(stop),
        };
        answers.push(Preflight { context, level: worst(&lines), lines });
    }
    let worst = answers.iter().map(|answer| answer.level).max().unwrap_or(Level::Ok);
    print(&form(&answers, args.output, || text_of(&answers))?);
    match without.into_iter().max_by_key(|QueryStop(code, _)| *code) {
        Some(stop) => Err(stop),
        None => Ok(match worst {
            Level::Ok => Verdict::Healthy,
            Level::Warn => Verdict::Waiting,
            Level::Stop => Verdict::Blocked,
        }),
    }
}

/// The answer of one cluster.
async fn lines_of(choice: &Choice, controllers: Option<&str>) -> Result<Vec<Line>, QueryStop> {
    let client = ApiServer::choose(choice).await?.client()?;
    // The check of the daemon says that it may not be seen.
    let deployment = read_if_allowed(&client, DEPLOYMENT).await.map_err(unreachable)?;
    let fences = fences_of(controllers, deployment.as_ref())?;
    let facts = PreflightFacts::read(&client, &fences).await.map_err(unreachable)?;
    Ok(judge(&facts, &fences))
}

fn text_of(answers: &[Preflight]) -> String {
    let one = |answer: &Preflight| {
        let title = answer.context.as_ref().filter(|_| answers.len() > 1);
        let title = title.map(|context| clean(context) + "\n").unwrap_or_default();
        title + &clean_lines(&text(&answer.lines))
    };
    answers.iter().map(one).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_deployment_says_which_loops_are_fenced_off() {
        let fences = |asked: Option<&str>, list: Option<&[&str]>| {
            let deployment = list.map(
                |list| json!({ "spec": { "template": { "spec": { "containers": [{ "args": list }] } } } }),
            );
            let fences = fences_of(asked, deployment.as_ref());
            fences.map(|fences| fences.len()).map_err(|QueryStop(code, _)| code)
        };
        let three: &[&str] = &["run", "--fence", "--controllers=*,pv-protection"];
        // What is asked for, what the Deployment runs, how many fences, or the exit code.
        let cases = [
            (None, None, Ok(2)),
            (Some("storage"), None, Ok(7)),
            (Some("nonsense"), None, Err(USAGE)),
            (None, Some(&["run", "--fence"] as &[&str]), Ok(2)),
            (None, Some(three), Ok(3)),
            (Some("*,persistentvolume-protection-controller"), Some(three), Ok(3)),
            (Some("*"), Some(three), Err(2)),
            (None, Some(&["run", "--controllers=$(LIST)"]), Err(2)),
        ];
        for (asked, list, expected) in cases {
            assert_eq!(fences(asked, list), expected, "{asked:?} {list:?}");
        }
    }
}
