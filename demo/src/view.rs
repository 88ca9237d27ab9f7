//! The live view: a pure function of a [`Snapshot`].
//!
//! ```text
//!  mooring demo   0:42                                       seed 7, q ends it
//!
//!  Volumes            Claims            Pods              Rates      per s  total
//!  …                  …                 …                 …
//!
//!  Nodes                     Waiting
//!  …                         …
//!
//!  Events
//!  …
//!
//!  what to try
//! ```
//!
//! State is told in words, colours only help to find it. What does not fit is left out from below.

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::{Line as Text, Span},
    widgets::{Paragraph, Wrap},
};

use super::{
    lines::{Line, Verb},
    snapshot::{Count, NodeRow, Snapshot},
    words::commands,
};

/// Title and rows of the counts.
const COUNTS_HEIGHT: u16 = 6;
/// Fewest rows of events, and of nodes and waits, titles included.
const EVENTS_HEIGHT: u16 = 5;
const MIDDLE_HEIGHT: u16 = 4;
/// Most lines for a reason.
const WAIT_LINES: usize = 2;
/// Empty rows between parts.
const GAP: u16 = 1;
/// Rows of a screen on which what to try may take more of them.
const TALL: u16 = 30;
/// Volumes on a node that fill its bar.
const BAR: usize = 8;

const BOLD: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().add_modifier(Modifier::DIM);

/// Draws everything.
pub fn render(frame: &mut Frame<'_>, snapshot: &Snapshot) {
    let area = frame.area();
    let area = Rect { x: area.x + 1.min(area.width), width: area.width.saturating_sub(2), ..area };
    let footer = if area.height < TALL { 3 } else { 5 };
    let rows = snapshot.nodes.len().max(2 * snapshot.waiting.len());
    let rows = u16::try_from(rows.saturating_add(1)).unwrap_or(u16::MAX);
    let others = 1 + COUNTS_HEIGHT + EVENTS_HEIGHT + footer + 4 * GAP;
    let middle = rows.min(area.height.saturating_sub(others)).max(MIDDLE_HEIGHT);
    let [header, counts, middle, events, footer] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(COUNTS_HEIGHT),
        Constraint::Length(middle),
        Constraint::Fill(1),
        Constraint::Length(footer),
    ])
    .spacing(GAP)
    .areas(area);
    render_header(frame, header, snapshot);
    render_counts(frame, counts, snapshot);
    let [nodes, waiting] = Layout::horizontal([Constraint::Length(36), Constraint::Fill(1)]).areas(middle);
    render_nodes(frame, nodes, &snapshot.nodes);
    render_waiting(frame, waiting, snapshot);
    render_events(frame, events, &snapshot.lines);
    render_footer(frame, footer, snapshot);
}

/// What to try, below each other where there is room.
fn render_footer(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let [get, describe, delete] = commands();
    let export = format!("export KUBECONFIG={}", snapshot.kubeconfig);
    let page = snapshot.page.clone();
    let lines = match area.height {
        5.. => vec![page, export, get, describe, delete],
        _ => vec![page, format!("{export}   {delete}"), format!("{get}   {describe}")],
    };
    let lines: Vec<Text<'_>> = lines.into_iter().map(Text::from).collect();
    frame.render_widget(Paragraph::new(lines).style(DIM), area);
}

fn render_header(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let seconds = snapshot.elapsed.as_secs();
    let left = Text::from(vec![
        Span::styled("mooring demo", BOLD),
        Span::raw(format!("   {}:{:02}", seconds / 60, seconds % 60)),
    ]);
    frame.render_widget(Paragraph::new(left), area);
    let right = Text::from(format!("seed {}, q ends it", snapshot.seed)).style(DIM).right_aligned();
    let width = area.width.saturating_sub(24);
    let area = Rect { x: area.x + area.width - width, width, ..area };
    frame.render_widget(Paragraph::new(right), area);
}

fn render_counts(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let [volumes, claims, pods, rates] = Layout::horizontal([
        Constraint::Length(19),
        Constraint::Length(18),
        Constraint::Length(18),
        Constraint::Fill(1),
    ])
    .areas(area);
    render_column(frame, volumes, "Volumes", &snapshot.volumes);
    render_column(frame, claims, "Claims", &snapshot.claims);
    render_column(frame, pods, "Pods", &snapshot.pods);
    let mut lines = vec![Text::styled("Rates      per s  total", BOLD)];
    lines.extend(
        snapshot
            .rates
            .iter()
            .map(|rate| Text::from(format!("{:9}{:6.1}{:7}", rate.name, rate.per_second, rate.total))),
    );
    frame.render_widget(Paragraph::new(lines), rates);
}

fn render_column(frame: &mut Frame<'_>, area: Rect, title: &'static str, counts: &[Count]) {
    let mut lines = vec![Text::styled(title, BOLD)];
    lines.extend(counts.iter().map(|(name, number)| {
        let style = if *number == 0 { DIM } else { Style::new() };
        Text::styled(format!("{name:9}{number:6}"), style)
    }));
    frame.render_widget(Paragraph::new(lines), area);
}

fn render_nodes(frame: &mut Frame<'_>, area: Rect, nodes: &[NodeRow]) {
    let rows = nodes.iter().map(|node| {
        let style = match node.state {
            "ready" => Style::new(),
            "maintenance" => Style::new().fg(Color::Yellow),
            _ => Style::new().fg(Color::Red),
        };
        let bar = "■".repeat(node.attached.min(BAR));
        Text::styled(format!("{:8}{:15}{:2} {bar}", node.name, node.state, node.attached), style)
    });
    render_list(frame, area, "Nodes", rows.collect());
}

fn render_waiting(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let room = WAIT_LINES * usize::from(area.width);
    let rows = snapshot.waiting.iter().map(|row| {
        let subject = format!("{}: ", row.subject);
        let reason = cut(&row.reason, room.saturating_sub(subject.chars().count()));
        Text::from(vec![Span::raw(subject), Span::styled(reason, Style::new().fg(Color::Yellow))])
    });
    render_list(frame, area, "Waiting", rows.collect());
}

/// The beginning of a text, if it is too long; wrapping at words takes some room, too.
fn cut(text: &str, room: usize) -> String {
    const LOSS: usize = 12;
    if text.chars().count() + LOSS <= room {
        return text.to_owned();
    }
    text.chars().take(room.saturating_sub(LOSS)).chain(['…']).collect()
}

/// A title and as many rows as fit, long ones on several lines; if not all do, the last line says
/// how many more there are.
fn render_list(frame: &mut Frame<'_>, area: Rect, title: &'static str, rows: Vec<Text<'_>>) {
    let height = |row: &Text<'_>| row.width().div_ceil(usize::from(area.width.max(1)));
    let mut room = usize::from(area.height.saturating_sub(1));
    let count = rows.len();
    let mut lines = vec![Text::styled(title, BOLD)];
    for (index, row) in rows.into_iter().enumerate() {
        let is_last = index + 1 == count;
        // The last line is kept for the number of those that are left out.
        if height(&row) + usize::from(!is_last) > room {
            lines.push(Text::styled(format!("and {} more", count - index), DIM));
            break;
        }
        room -= height(&row);
        lines.push(row);
    }
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), area);
}

fn render_events(frame: &mut Frame<'_>, area: Rect, lines: &[Line]) {
    let room = usize::from(area.height.saturating_sub(1));
    let newest = lines.iter().skip(lines.len().saturating_sub(room));
    let mut text = vec![Text::styled("Events", BOLD)];
    text.extend(newest.map(|line| {
        let seconds = line.at.as_secs();
        Text::from(vec![
            Span::styled(format!("{:>2}:{:02} ", seconds / 60, seconds % 60), DIM),
            Span::styled(format!("{:7}", line.verb.word()), verb_style(line.verb)),
            Span::raw(format!("{}{}", line.subject, line.text)),
        ])
    }));
    frame.render_widget(Paragraph::new(text), area);
}

fn verb_style(verb: Verb) -> Style {
    match verb {
        Verb::Node => Style::new().fg(Color::Cyan),
        Verb::Bind | Verb::Attach | Verb::Move => Style::new().fg(Color::Green),
        Verb::Detach | Verb::Remove => DIM,
        Verb::Force => Style::new().fg(Color::Red),
        Verb::Wait => Style::new().fg(Color::Yellow),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ratatui::{Terminal, backend::TestBackend};

    use super::*;
    use crate::snapshot::{Rate, WaitingRow};

    fn snapshot() -> Snapshot {
        let line = |second: u64, verb, subject: &str, text: &str| Line {
            at: Duration::from_secs(second),
            verb,
            subject: subject.to_owned(),
            text: text.to_owned(),
        };
        let waiting = |subject: &str, reason: &str| WaitingRow {
            subject: subject.to_owned(),
            reason: reason.to_owned(),
        };
        let node = |name: &str, state, attached| NodeRow { name: name.to_owned(), state, attached };
        let rate = |name, per_second, total| Rate { name, per_second, total };
        Snapshot {
            elapsed: Duration::from_secs(75),
            seed: 7,
            kubeconfig: "/tmp/mooring-demo-4711/kubeconfig".to_owned(),
            page: "http://127.0.0.1:40123/t/0123456789abcdef0123456789abcdef/explain/".to_owned(),
            volumes: vec![
                ("attached", 21),
                ("attaching", 1),
                ("detaching", 1),
                ("detached", 1),
                ("not bound", 0),
            ],
            claims: vec![("Bound", 24), ("Pending", 1), ("Lost", 0)],
            pods: vec![("Running", 21), ("Pending", 2), ("Ending", 1)],
            rates: vec![
                rate("binds", 0.1, 26),
                rate("attaches", 1.5, 63),
                rate("detaches", 1.25, 42),
                rate("by force", 0.0, 3),
                rate("moves", 0.9, 39),
            ],
            nodes: vec![
                node("node-1", "ready", 6),
                node("node-2", "maintenance", 0),
                node("node-3", "not ready", 14),
            ],
            waiting: vec![
                waiting("needs-gold", "storageclass.storage.k8s.io \"gold\" not found"),
                waiting("data-web-1 on node-1", "HeldByNode: node-3"),
            ],
            lines: vec![
                line(59, Verb::Node, "node-2", " is tainted for maintenance: its pods have to leave"),
                line(60, Verb::Detach, "data-db-0", " from node-2"),
                line(61, Verb::Attach, "data-db-0", " to node-1"),
                line(61, Verb::Move, "db-0", " runs on node-1, with its volume from node-2"),
                line(72, Verb::Force, "data-db-2", " is detached from node-3, whose kubelet cannot be asked"),
                line(
                    74,
                    Verb::Wait,
                    "web-1-2",
                    ": FailedAttachVolume: Multi-Attach error for volume \"pvc-0a1b2c3d\"",
                ),
            ],
        }
    }

    fn drawn(width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| render(frame, &snapshot())).unwrap();
        let cells = terminal.backend().buffer().content.chunks(usize::from(width.max(1)));
        let rows = cells.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>());
        rows.map(|row| row.trim_end().to_owned() + "\n").collect()
    }

    #[test]
    fn everything_fits_an_ordinary_terminal() {
        let expected = include_str!("../tests/view_80x24.txt");
        let drawn = drawn(80, 24);
        assert_eq!(drawn, expected, "\n{drawn}");
    }

    #[test]
    fn a_larger_one_shows_more() {
        let drawn = drawn(120, 40);
        for text in [
            "node-3  not ready      14 ■■■■■■■■",
            "HeldByNode: node-3",
            " 0:59 ",
            "kubectl delete pod",
            "cdef/explain/",
        ] {
            assert!(drawn.contains(text), "{text}:\n{drawn}");
        }
    }

    #[test]
    fn no_size_is_too_small() {
        let sizes = [0, 1, 2, 3, 5, 8, 12, 20, 30, 37, 55, 79, 130];
        for width in sizes {
            for height in sizes {
                drawn(width, height);
            }
        }
    }
}
