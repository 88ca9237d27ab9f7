//! A log event in, one line out: as text, as logfmt, or as a JSON object.
//!
//! A value is quoted where the form needs it, with control characters escaped, so that what an API server
//! answers stays one line and cannot steer a terminal.

use std::{
    fmt::{self, Write as _},
    io::Write as _,
};

use clap::ValueEnum;
use jiff::Timestamp;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, fmt::MakeWriter, layer::Context};

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LoggingFormat {
    /// One line of text each.
    Text,
    /// One line of `name=value` each.
    Logfmt,
    /// One JSON object each.
    Json,
}

/// A value, as it is printed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Text(String),
    /// A number or a boolean, which JSON does not quote.
    Bare(String),
}

impl Value {
    fn as_str(&self) -> &str {
        match self {
            Self::Text(text) | Self::Bare(text) => text,
        }
    }
}

/// The fields of an event.
#[derive(Debug, Default)]
struct Fields {
    message: String,
    /// Where a line comes from that another library logged, by the crate `log`.
    origin: Option<String>,
    rest: Vec<(&'static str, Value)>,
}

impl Fields {
    fn push(&mut self, field: &Field, value: Value) {
        match field.name() {
            "message" => value.as_str().clone_into(&mut self.message),
            "log.target" => self.origin = Some(value.as_str().to_owned()),
            name if name.starts_with("log.") => {}
            name => self.rest.push((name, value)),
        }
    }
}

macro_rules! bare {
    ($($record:ident: $type:ty),+) => {
        $(fn $record(&mut self, field: &Field, value: $type) {
            self.push(field, Value::Bare(value.to_string()));
        })+
    };
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.push(field, Value::Text(format!("{value:?}")));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push(field, Value::Text(value.to_owned()));
    }

    bare!(record_i64: i64, record_u64: u64, record_i128: i128, record_u128: u128, record_bool: bool);

    fn record_f64(&mut self, field: &Field, value: f64) {
        let text = value.to_string();
        self.push(field, if value.is_finite() { Value::Bare(text) } else { Value::Text(text) });
    }
}

/// Writes a line for each event.
#[derive(Debug)]
pub struct Lines<W> {
    format: LoggingFormat,
    colours: bool,
    writer: W,
}

impl<W> Lines<W> {
    /// Lines of this form, to this writer.
    pub fn new(format: LoggingFormat, colours: bool, writer: W) -> Self {
        Self { format, colours, writer }
    }
}

impl<S, W> Layer<S> for Lines<W>
where
    S: Subscriber,
    W: for<'a> MakeWriter<'a> + 'static,
{
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let metadata = event.metadata();
        let head = Head {
            time: format!("{:.6}", Timestamp::now()),
            level: *metadata.level(),
            target: fields.origin.as_deref().unwrap_or(metadata.target()),
        };
        let line = match self.format {
            LoggingFormat::Text => text(&head, &fields, self.colours),
            LoggingFormat::Logfmt => logfmt(&head, &fields),
            LoggingFormat::Json => json(&head, &fields),
        };
        // There is no place to say that the log cannot be written.
        let _ = self.writer.make_writer_for(metadata).write_all(line.as_bytes());
    }
}

/// What every line has.
struct Head<'a> {
    time: String,
    level: Level,
    target: &'a str,
}

fn text(head: &Head<'_>, fields: &Fields, colours: bool) -> String {
    let Head { time, level, target } = head;
    let (on, off) = match (colours, *level) {
        (false, _) => ("", ""),
        (true, Level::ERROR) => ("\x1b[31m", "\x1b[0m"),
        (true, Level::WARN) => ("\x1b[33m", "\x1b[0m"),
        (true, Level::INFO) => ("\x1b[32m", "\x1b[0m"),
        (true, _) => ("\x1b[34m", "\x1b[0m"),
    };
    let mut line = format!("{time} {on}{level:>5}{off} {target}: ");
    let message = &fields.message;
    line.push_str(&if message.contains(char::is_control) { quoted(message) } else { message.clone() });
    append(&mut line, fields);
    line
}

fn logfmt(head: &Head<'_>, fields: &Fields) -> String {
    let Head { time, level, target } = head;
    let level = level.as_str().to_ascii_lowercase();
    let mut line = format!("ts={time} level={level} target={target} msg={}", quoted(&fields.message));
    append(&mut line, fields);
    line
}

/// The fields as `name=value`, and the end of the line.
fn append(line: &mut String, fields: &Fields) {
    for (name, value) in &fields.rest {
        let text = value.as_str();
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '=' | '\\');
        let is_plain = !text.is_empty() && text.chars().all(is_plain);
        // Writing to a string cannot fail.
        let _ =
            if is_plain { write!(line, " {name}={text}") } else { write!(line, " {name}={}", quoted(text)) };
    }
    line.push('\n');
}

fn json(head: &Head<'_>, fields: &Fields) -> String {
    let Head { time, level, target } = head;
    let mut line = format!("{{\"ts\":\"{time}\",\"level\":\"{level}\",\"msg\":{}", quoted(&fields.message));
    for (name, value) in &fields.rest {
        let _ = match value {
            Value::Text(text) => write!(line, ",\"{name}\":{}", quoted(text)),
            Value::Bare(text) => write!(line, ",\"{name}\":{text}"),
        };
    }
    let _ = writeln!(line, ",\"target\":{}}}", quoted(target));
    line
}

/// As a JSON string, which is also how logfmt quotes. JSON itself lets control characters above the first 32 through, of which one
/// begins what steers some terminals.
fn quoted(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    if !quoted.contains(char::is_control) {
        return quoted;
    }
    quoted
        .chars()
        .map(|c| if c.is_control() { format!("\\u{:04x}", u32::from(c)) } else { c.to_string() })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{io, sync::Arc};

    use parking_lot::Mutex;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Where lines of a test go.
    #[derive(Clone, Debug, Default)]
    struct Page(Arc<Mutex<String>>);

    impl io::Write for Page {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().push_str(std::str::from_utf8(bytes).unwrap());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged meanwhile.
    fn logged(format: LoggingFormat, act: impl FnOnce()) -> String {
        let page = Page::default();
        let writer = page.clone();
        let lines = Lines::new(format, false, move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(lines), act);
        page.0.lock().clone()
    }

    /// The same without the time.
    fn untimed(format: LoggingFormat, act: impl FnOnce()) -> String {
        let text = logged(format, act);
        let lines = text.lines().map(|line| match format {
            LoggingFormat::Text => line.split_once(' ').unwrap().1.to_owned(),
            LoggingFormat::Logfmt => line.strip_prefix("ts=").unwrap().split_once(' ').unwrap().1.to_owned(),
            LoggingFormat::Json => {
                let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
                let time = line.as_object_mut().unwrap().remove("ts").unwrap();
                assert!(time.as_str().unwrap().parse::<Timestamp>().is_ok(), "{time}");
                line.to_string()
            }
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    fn say() {
        let error = "line 1\nline \"2\" \u{1b}[31m\u{9b}31m\u{7f}";
        tracing::warn!(target: "mooring::x", object = "Pod/a", count = 3, took = 0.25, ok = true, empty = "", %error, "went wrong");
    }

    #[test]
    fn a_line_is_one_line_whatever_is_in_it() {
        let escaped = r#"error="line 1\nline \"2\" \u001b[31m\u009b31m\u007f""#;
        assert_eq!(
            untimed(LoggingFormat::Text, say),
            format!(
                " WARN mooring::x: went wrong object=Pod/a count=3 took=0.25 ok=true empty=\"\" {escaped}"
            )
        );
        assert_eq!(
            untimed(LoggingFormat::Logfmt, say),
            format!(
                "level=warn target=mooring::x msg=\"went wrong\" object=Pod/a count=3 took=0.25 ok=true empty=\"\" {escaped}"
            )
        );
        let line: serde_json::Value = serde_json::from_str(&untimed(LoggingFormat::Json, say)).unwrap();
        assert_eq!(
            line,
            serde_json::json!({
                "level": "WARN", "msg": "went wrong", "target": "mooring::x", "object": "Pod/a", "count": 3,
                "took": 0.25, "ok": true, "empty": "", "error": "line 1\nline \"2\" \u{1b}[31m\u{9b}31m\u{7f}",
            })
        );
    }
}
