//! `docs/logs.md`, printed from the program: the lines in it are lines that it writes.

use std::{
    fmt::Write as _,
    fs, io,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use tracing_subscriber::layer::SubscriberExt;

use super::{
    LoggingFormat,
    filter::of_verbosity,
    lines::Lines,
    transition::{Named, Transition, tests::example},
};

/// Where lines of a test go.
#[derive(Clone, Debug, Default)]
struct Captured(Arc<Mutex<Vec<u8>>>);

impl io::Write for Captured {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What is logged meanwhile.
pub(super) fn logged(format: LoggingFormat, act: impl FnOnce()) -> String {
    let page = Captured::default();
    let writer = page.clone();
    let lines = Lines::new(format, false, move || writer.clone());
    tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), act);
    String::from_utf8(page.0.lock().unwrap().clone()).unwrap()
}

const TIME: &str = "2026-11-22T19:00:00.000000Z";

/// One line of a form, as if it were always the same time.
fn line(format: LoggingFormat, log: impl FnOnce()) -> String {
    let mut line = logged(format, log);
    let before = match format {
        LoggingFormat::Text => "",
        LoggingFormat::Logfmt => "ts=",
        LoggingFormat::Json => "{\"ts\":\"",
    };
    assert!(line.starts_with(before), "{line}");
    line.replace_range(before.len()..before.len() + TIME.len(), TIME);
    line.trim_end().to_owned()
}

fn attachment(from: &'static str, to: &'static str, reason: &'static str) -> Transition {
    Transition {
        object: Named::by("VolumeAttachment", "csi-2f0e…"),
        reason,
        from,
        to,
        attempt: 1,
        revision: Some("4720".to_owned()),
        took: Some(Duration::from_micros(4_250)),
        concerns: vec![
            ("volume", "kubernetes.io/csi/ebs.csi.aws.com^vol-1".to_owned()),
            ("node", "node-7".to_owned()),
        ],
    }
}

fn volume(from: &'static str, to: &'static str, reason: &'static str) -> Transition {
    Transition {
        object: Named::by("PersistentVolume", "pv-local-03"),
        reason,
        from,
        to,
        attempt: 1,
        revision: Some("4730".to_owned()),
        took: Some(Duration::from_millis(31)),
        concerns: vec![("claim", "shop/data-db-0".to_owned())],
    }
}

fn document() -> String {
    let mut text = include_str!("docs/head.md").to_owned();
    let mut block = |heading: &str, lines: &[String]| {
        let _ = write!(text, "\n{heading}\n\n```text\n{}\n```\n", lines.join("\n"));
    };
    let example = || example().log();
    block(
        "## The three forms\n\nText (`--logging-format=text`, the default):",
        &[line(LoggingFormat::Text, example)],
    );
    block("logfmt (`--logging-format=logfmt`):", &[line(LoggingFormat::Logfmt, example)]);
    block("JSON (`--logging-format=json`):", &[line(LoggingFormat::Json, example)]);
    let lines = |all: &[Transition]| {
        all.iter().map(|one| line(LoggingFormat::Text, || one.log())).collect::<Vec<_>>()
    };
    let of_attachments = [
        Transition {
            revision: None,
            took: None,
            ..attachment("Detached", "Attaching", "WaitingForVolumeAttachment")
        },
        attachment("Attaching", "Attaching", "WaitingForAttacher"),
        attachment("Attaching", "Attached", "Publishing"),
        attachment("Attached", "Attached", "Attached"),
        attachment("Attached", "Attached", "DetachWaitingForUnmount"),
        attachment("Attached", "Attached", "DetachWaitingForUnpublish"),
        attachment("Attached", "Detaching", "DetachWaitingForAttacher"),
        Transition { revision: None, ..attachment("Detaching", "Detached", "Detached") },
    ];
    block("## Stable lines\n\nAn attach and a detach:", &lines(&of_attachments));
    let bound = super::transition::tests::example();
    let binding = Transition { to: "Pending", reason: "Binding", ..bound.clone() };
    block(
        "A bind, of the claim and of its volume:",
        &lines(&[binding, bound, volume("Available", "Bound", "Bound")]),
    );
    let released = [
        volume("Bound", "Bound", "ConfirmingClaimGone"),
        volume("Bound", "Bound", "Releasing"),
        volume("Bound", "Released", "Retained"),
    ];
    block("A release:", &lines(&released));
    block("A deletion by the provisioner:", &lines(&[volume("Released", "Gone", "Gone")]));
    text.push_str(
        "\n## What is dropped\n\nIf stderr does not accept a line in time, the daemon drops it instead of waiting: \
         `mooring_log_lines_dropped_total`.\n",
    );
    text.push_str("\n## How much: `-v`\n\n| `-v` | filter |\n|---|---|\n");
    for number in 0..=10 {
        let _ = writeln!(text, "| {number} | `{},kube_client=error` |", of_verbosity(number));
    }
    text.push_str(include_str!("docs/tail.md"));
    text
}

#[test]
fn the_page_about_logs_shows_the_lines_that_are_written() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/logs.md");
    let expected = document();
    if std::env::var_os("MOORING_WRITE_DOCS").is_some() {
        fs::write(&page, &expected).unwrap();
    }
    let found = fs::read_to_string(&page).unwrap_or_default();
    assert!(found == expected, "docs/logs.md is not what is logged: MOORING_WRITE_DOCS=1 writes it again");
}
