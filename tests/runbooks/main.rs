//! The runbooks, followed: of each alert what it is about is brought about on an embedded cluster in paused time, the
//! commands of its page are run by a shell, and the alert fires before and no longer does after. In what happens everywhere (a node
//! reboots, mooring is updated, a class does not exist) none fires.
//!
//! What happens is data: `tests/cases/runbooks/scenes.yaml`, whose words are in [`scene`]. The daemon's metrics are taken each
//! simulated minute, and promtool asks the alerts that are committed whether they fire ([`samples`]).

// A failed expectation ends the test, which is what a failed expectation is for.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
// What it says goes to the person who runs the tests.
#![allow(clippy::print_stderr)]

#[path = "../e2e/in_process.rs"]
mod in_process;
mod page;
mod samples;
mod scene;
mod shell;
mod stage;

use std::collections::BTreeSet;

use libtest_mimic::{Arguments, Failed, Trial};
use scene::{Ordinary, Scene, Scenes, Step};
use stage::Stage;
use test_support::assets::Assets;

fn main() {
    let arguments = Arguments::from_args();
    let is_required = std::env::var("MOORING_REQUIRE_PROMETHEUS").is_ok_and(|value| value == "1");
    let lacking = lacking();
    if let Some(reason) = &lacking
        && !arguments.list
        && !is_required
    {
        eprintln!("The runbooks are not run: {reason}");
    }
    let run = |name: String, test: Box<dyn FnOnce() -> Result<(), Failed> + Send>| match lacking.clone() {
        None => Trial::test(name, test),
        Some(reason) => Trial::test(name, move || Err(reason.into())).with_ignored_flag(!is_required),
    };
    let Scenes { outages, ordinary } = Scenes::read();
    let told: BTreeSet<String> = outages.iter().map(|scene| scene.alert.clone()).collect();
    let mut trials = vec![
        Trial::test("each_page_is_followed", move || {
            assert_eq!(told, page::alerts());
            Ok(())
        }),
        run("commands_work_where_nothing_is_wrong".to_owned(), Box::new(|| scene::played(commands_work()))),
    ];
    for scene in outages {
        trials.push(run(scene.name(), Box::new(move || scene::played(follow(scene)))));
    }
    for Ordinary { name, steps } in ordinary {
        trials.push(run(format!("no alert: {name}"), Box::new(move || scene::played(is_ordinary(steps)))));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// What is not installed, and what helps.
fn lacking() -> Option<String> {
    if !shell::is_installed("promtool") {
        return Some(
            "there is no promtool on PATH; apt-get install --no-install-recommends prometheus".to_owned(),
        );
    }
    if shell::is_installed("kubectl") { None } else { Assets::find().err() }
}

/// Of all pages, also of those that no scene is about: what has no word to fill in, and asks for nothing that is not here.
async fn commands_work() -> Result<(), Failed> {
    let mut stage = Stage::start(false).await;
    stage.healthy().await;
    let pages = page::alerts();
    let commands: BTreeSet<String> = pages
        .iter()
        .flat_map(|alert| page::commands(&page::text(alert)))
        .filter(|it| shell::can_run(it))
        .collect();
    let commands: Vec<_> = commands.iter().filter(|command| !command.contains('<')).collect();
    assert!(commands.len() > 10, "{commands:#?}");
    for command in commands {
        stage.run(command).await?;
    }
    let told = page::text("MooringAlarm");
    let metrics = stage.metrics().await;
    let alarms: Vec<&str> =
        metrics.lines().filter_map(|line| line.strip_prefix("mooring_alarm{alarm=\"")).collect();
    assert!(alarms.len() > 3, "{alarms:?}");
    for alarm in alarms {
        let name = alarm.split('"').next().unwrap();
        assert!(
            told.contains(&format!("`{name}`")),
            "the page of MooringAlarm does not say what {name} means"
        );
    }
    Ok(())
}

async fn is_ordinary(steps: Vec<Step>) -> Result<(), Failed> {
    let mut stage = Stage::start(false).await;
    stage.healthy().await;
    stage.act(&steps).await?;
    let fired = stage.samples().fired()?;
    if fired.is_empty() {
        return Ok(());
    }
    let shown: String = fired.iter().map(|alert| stage.samples().shown(alert)).collect();
    Err(format!("{fired:?} fired\n{}{shown}", stage.told()).into())
}

async fn follow(scene: Scene) -> Result<(), Failed> {
    let mut stage = Stage::start(scene.ago).await;
    stage.healthy().await;
    stage.act(&scene.given).await?;
    stage.wait(5).await;
    let quiet = stage.minute();
    stage.act(&scene.harm).await?;
    stage.wait(scene.fires).await;
    let fires = stage.minute();

    let page = page::Page::of(&scene.alert);
    for command in page.see.iter().chain(&page.steps) {
        let command = scene.filled(command);
        if !shell::can_run(&command) {
            continue;
        }
        assert!(!command.contains('<'), "{command}: what is filled in?");
        stage.run(&command).await?;
        // What it would send was printed; the page says how it is sent.
        if command.starts_with("mooring repair ") {
            stage.run(&format!("{command} --yes")).await?;
        }
    }
    for done in &scene.done {
        assert!(page.says(&done.told), "the page does not say {:?}", done.told);
        stage.act(&done.steps).await?;
    }
    stage.wait(scene.over).await;
    for command in page.over.iter().map(|command| scene.filled(command)) {
        if shell::can_run(&command) {
            stage.run(&command).await?;
        }
    }
    let over = stage.minute();
    let found = stage.samples().firing(&[quiet, fires, over])?;
    let expected = [BTreeSet::new(), BTreeSet::from([scene.alert.clone()]), BTreeSet::new()];
    if found.as_slice() == expected {
        return Ok(());
    }
    Err(format!(
        "firing before, in and after it: {found:?}\n{}{}",
        stage.told(),
        stage.samples().shown(&scene.alert)
    )
    .into())
}
