//! One controller of volumes, from its reports to the log, the metrics and the page.

use std::time::Duration;

use apiserver::{
    ids::VolumeName,
    kinds::{Narrow, PersistentVolume},
};
use serde_json::json;

use super::{reporter::Reporter, *};
use crate::{controller::asked::Asked, metrics::Metrics, telemetry::history::History};

/// State, code, and whether it waits.
#[derive(Clone, Debug, PartialEq)]
struct Why(&'static str, &'static str, bool);

const AVAILABLE: Why = Why("Available", "Available", false);
const BOUND: Why = Why("Bound", "Bound", false);
const LEFT: Why = Why("Released", "LeftToProvisioner", true);

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is {}", self.0)
    }
}

impl Reason for Why {
    fn code(&self) -> &'static str {
        self.1
    }

    fn state(&self) -> &'static str {
        self.0
    }

    fn is_settled(&self) -> bool {
        !self.2
    }

    fn is_shown_settled(&self) -> bool {
        *self == BOUND
    }

    fn until(&self, _: &WallClock) -> Option<Timestamp> {
        (self.1 == "RestoreGrace").then_some(Timestamp::UNIX_EPOCH)
    }

    fn names(&self) -> Names {
        vec![("node", "n1".to_owned())]
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key(&'static str);

impl ReportKey for Key {
    const KINDS: &'static [&'static str] = &["volume"];

    fn kind(&self) -> &'static str {
        "volume"
    }

    fn names(&self) -> Names {
        vec![("volume", self.0.to_owned())]
    }

    fn named(&self) -> Named {
        Named::by(PersistentVolume::KIND, &VolumeName::from(self.0))
    }
}

/// What the log says of reports of a volume, one a second, each with its state before a write of ours if there was one;
/// `None` for its end.
fn changes(reports: &[Option<(Option<&'static str>, Why)>]) -> Vec<String> {
    let (start, history) = (Instant::now(), History::default());
    let mut reporter = Reporter::default();
    reporter.remember(history.clone());
    for (second, report) in (0..).zip(reports) {
        let now = start + Duration::from_secs(second);
        let report = match report {
            Some((from, why)) => Report { from: *from, ..Report::of(Key("v"), why.clone()) },
            None => Report::gone(Key("v")),
        };
        reporter.take(report, now, |_, _| ());
    }
    let changes = history.of(&Key("v").named()).into_iter();
    changes.map(|change| format!("{} {} {}", change.from, change.to, change.reason)).collect()
}

#[test]
fn there_is_a_line_for_each_change_of_state_or_reason_and_none_for_a_look() {
    let said = |why: Why| Some((None, why));
    let (binds, waits) = (Why("Available", "ClaimBindsNext", true), Why("Available", "Reserved", true));
    let seen = changes(&[&waits, &waits, &binds, &binds, &BOUND, &BOUND].map(|why| said(why.clone())));
    let expected =
        ["Available Available Reserved", "Available Available ClaimBindsNext", "Available Bound Bound"];
    assert_eq!(seen, expected);
    assert_eq!(changes(&[said(AVAILABLE), said(AVAILABLE)]), [""; 0], "what was settled before");
    let written = [said(AVAILABLE), Some((Some("Available"), BOUND)), Some((Some("Bound"), BOUND))];
    assert_eq!(changes(&written), ["Available Bound Bound"], "a write of ours changed it between two looks");
    let gone = [said(LEFT), None, None];
    assert_eq!(changes(&gone), ["Released Released LeftToProvisioner", "Released Gone Gone"]);
    assert_eq!(changes(&[said(AVAILABLE), None]), [""; 0], "nothing was waited for, nor shown");
    assert_eq!(changes(&[said(BOUND), None]), ["Bound Gone Gone"]);
}

#[tokio::test(start_paused = true)]
async fn l18_a_wait_lasts_as_long_as_its_code_stays_the_same() {
    let start = Instant::now();
    let at = |seconds| start + Duration::from_secs(seconds);
    let reporter = Reporter::default();
    let board = reporter.board();
    board.lead(start);
    let since = |why: &Why, second| {
        reporter.take(Report::of(Key("v"), why.clone()), at(second), |_, _| ());
        board.waits().values().map(|wait| wait.since).next()
    };
    assert_eq!(since(&LEFT, 1), Some(at(1)));
    assert_eq!(since(&Why("Failed", "LeftToProvisioner", true), 2), Some(at(1)));
    assert_eq!(since(&Why("Failed", "DeleteFailed", true), 3), Some(at(3)));
    let copy = reporter.clone().board();
    assert_eq!((since(&AVAILABLE, 4), copy.waits().len()), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn l18_the_page_says_what_waits_for_what_since_when_and_until_when() {
    let reporter = Reporter::default();
    let (board, now) = (reporter.board(), Instant::now());
    board.lead(now);
    let next = Some(now + Duration::from_secs(5));
    let waits = Report { next, ..Report::of(Key("a"), Why("Bound", "RestoreGrace", true)) };
    for report in [waits, Report::of(Key("b"), BOUND), Report::of(Key("c"), AVAILABLE)] {
        reporter.take(report, now, |_, _| ());
    }
    board.set_second_writers((Some("another".to_owned()), vec![json!("wrote")]));
    let shown = |query: &str| json!(board.page(&Asked::parse(Some(query))));
    let all = shown("");
    let row = &all["waiting"][0];
    let time = |field: &str| row[field].as_str().unwrap().parse::<Timestamp>().unwrap().as_second();
    assert!((4..=6).contains(&(time("next") - time("since"))), "{row}");
    let expected = json!({
        "volume": "a", "node": "n1", "kind": "volume", "state": "Bound", "reason": "RestoreGrace",
        "message": "it is Bound", "facts": {}, "until": "1970-01-01T00:00:00Z",
        "since": row["since"], "next": row["next"],
    });
    assert_eq!((row, &all["waiting"][1]), (&expected, &Value::Null));
    let settled =
        json!([{ "volume": "b", "node": "n1", "state": "Bound", "since": all["settled"][0]["since"] }]);
    assert_eq!(all["settled"], settled);
    let written = (&all["alarm"], &all["secondWriters"], &all["leads"]);
    assert_eq!(written, (&json!("another"), &json!(["wrote"]), &json!(true)));
    let part = shown("volume=b");
    assert_eq!((&part["waiting"], &part["settled"]), (&json!([]), &settled));
    assert_eq!(shown("node=n1")["waiting"], all["waiting"], "a row is found by the names in its reason, too");
}

/// A reader holds up the controller for a portion only.
#[test]
fn l18_the_page_has_every_row_in_order_and_once() {
    let names: Vec<&'static str> = (0..2_500).map(|number| &*format!("{number:04}").leak()).collect();
    let reporter = Reporter::default();
    for name in &names {
        reporter.take(Report::of(Key(name), LEFT), Instant::now(), |_, _| ());
    }
    let page = json!(reporter.board().page(&Asked::parse(None)));
    let shown: Vec<&str> =
        page["waiting"].as_array().unwrap().iter().map(|row| row["volume"].as_str().unwrap()).collect();
    assert_eq!(shown, names);
}

#[tokio::test(start_paused = true)]
async fn l18_the_metrics_tell_how_many_wait_and_how_long_the_first_has() {
    let metrics = Metrics::default();
    let reporter = Reporter::new(&metrics).unwrap();
    let decided = |name, why: Why| {
        reporter.take(Report { is_decision: true, ..Report::of(Key(name), why) }, Instant::now(), |_, _| ());
    };
    decided("a", LEFT);
    assert!(!metrics.text().unwrap().contains("mooring_waiting"), "a standby counts nothing");
    tokio::time::advance(Duration::from_hours(1)).await;
    reporter.board().lead(Instant::now());
    tokio::time::advance(Duration::from_secs(7)).await;
    decided("b", LEFT);
    decided("c", BOUND);
    reporter.take(Report::of(Key("b"), LEFT), Instant::now(), |_, _| ());
    let shown = |line: &str| {
        let text = metrics.text().unwrap();
        assert!(text.lines().any(|shown| shown == line), "{line}\nis missing in\n{text}");
    };
    shown("mooring_waiting{kind=\"volume\",reason=\"LeftToProvisioner\"} 2");
    shown("mooring_waiting_oldest_seconds{kind=\"volume\",reason=\"LeftToProvisioner\"} 7");
    shown("mooring_decisions_total{kind=\"volume\",reason=\"LeftToProvisioner\"} 2");
    shown("mooring_decisions_total{kind=\"volume\",reason=\"Bound\"} 1");
    decided("a", AVAILABLE);
    reporter.take(Report::gone(Key("b")), Instant::now(), |_, _| ());
    shown("mooring_waiting{kind=\"volume\",reason=\"LeftToProvisioner\"} 0");
    shown("mooring_waiting_oldest_seconds{kind=\"volume\",reason=\"LeftToProvisioner\"} 0");
}
