//! Where each value of a YAML text is, to the byte: what is needed to change one of them and nothing else.
//!
//! In: the text of a file. Out: a tree of its values with their places, and the places of its comments.

use std::{borrow::Cow, collections::BTreeMap, ops::Range};

use granit_parser::{Event, Parser, ScalarStyle, Span, StrInput, StructureStyle};
use serde_json::{Map, Value};

/// A file.
pub struct Outline {
    pub root: Node,
    pub comments: Vec<Range<usize>>,
}

/// A value and where it is.
#[derive(Clone)]
pub struct Node {
    /// Without an anchor before it, and without what follows on its last line.
    pub place: Range<usize>,
    pub value: Value,
    /// Other places of the file may refer to it.
    pub is_anchored: bool,
    pub kind: Kind,
}

/// How a value is written.
#[derive(Clone)]
pub enum Kind {
    /// A reference to another place.
    Alias,
    Scalar(Quote),
    /// Between brackets, or one item a line.
    Sequence {
        is_flow: bool,
        items: Vec<Node>,
    },
    /// Between braces, or one key a line.
    Mapping {
        is_flow: bool,
        entries: Vec<Entry>,
    },
}

#[derive(Clone)]
pub struct Entry {
    pub key: Node,
    pub value: Node,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Quote {
    None,
    Single,
    Double,
    /// A text block (`|` or `>`).
    Block,
}

impl Outline {
    /// # Errors
    /// If the text is not YAML.
    pub fn of(text: &str) -> Result<Self, String> {
        let mut reader = Reader {
            text,
            events: Parser::new_from_str(text),
            anchors: BTreeMap::new(),
            comments: Vec::new(),
        };
        loop {
            match reader.next()? {
                (Event::StreamStart | Event::DocumentStart(..), _) => {}
                (event, span) => {
                    let root = reader.node(event, &span)?;
                    // What follows the last value may be comments.
                    while let Some(next) = reader.events.next() {
                        let (event, span) = next.map_err(|error| error.to_string())?;
                        if matches!(event, Event::Comment(..)) {
                            reader.comments.push(reader.place(&span)?);
                        }
                    }
                    return Ok(Self { root, comments: reader.comments });
                }
            }
        }
    }
}

impl Node {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&Node> {
        let Kind::Mapping { entries, .. } = &self.kind else { return None };
        entries.iter().find(|entry| entry.key.value == key).map(|entry| &entry.value)
    }

    /// The values in it.
    pub fn children(&self) -> Vec<&Node> {
        match &self.kind {
            Kind::Alias | Kind::Scalar(_) => Vec::new(),
            Kind::Sequence { items, .. } => items.iter().collect(),
            Kind::Mapping { entries, .. } => entries.iter().map(|entry| &entry.value).collect(),
        }
    }

    pub fn is_block(&self) -> bool {
        matches!(self.kind, Kind::Sequence { is_flow: false, .. } | Kind::Mapping { is_flow: false, .. })
    }
}

struct Reader<'t> {
    text: &'t str,
    events: Parser<'t, StrInput<'t>>,
    anchors: BTreeMap<usize, Value>,
    comments: Vec<Range<usize>>,
}

impl<'t> Reader<'t> {
    /// The next event that is not a comment.
    fn next(&mut self) -> Result<(Event<'t>, Span), String> {
        loop {
            let next = self.events.next().ok_or("the text ends too early")?;
            let (event, span) = next.map_err(|error| error.to_string())?;
            match event {
                Event::Comment(..) => {
                    let place = self.place(&span)?;
                    self.comments.push(place);
                }
                event => return Ok((event, span)),
            }
        }
    }

    fn place(&self, span: &Span) -> Result<Range<usize>, String> {
        span.byte_range()
            .filter(|range| self.text.get(range.clone()).is_some())
            .ok_or_else(|| "a place that is not in the text".to_owned())
    }

    /// Where the dash of an item is.
    fn dash(&self, item: usize) -> Result<usize, String> {
        let before = self.text.get(..item).unwrap_or_default();
        before.rfind("- ").max(before.rfind("-\n")).ok_or_else(|| "an item without its dash".to_owned())
    }

    fn node(&mut self, event: Event<'t>, span: &Span) -> Result<Node, String> {
        let mut place = self.place(span)?;
        let (value, anchor, kind) = match event {
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned().ok_or("an unknown anchor")?;
                return Ok(Node { place, value, is_anchored: false, kind: Kind::Alias });
            }
            Event::Scalar(text, style, anchor, _) => {
                let (value, quote) = scalar(text, style);
                (value, anchor, Kind::Scalar(quote))
            }
            Event::SequenceStart(style, anchor, _) => {
                let mut items = Vec::new();
                let end = loop {
                    match self.next()? {
                        (Event::SequenceEnd, span) => break self.place(&span)?,
                        (event, span) => items.push(self.node(event, &span)?),
                    }
                };
                let is_flow = style == StructureStyle::Flow;
                if let (false, Some(first), Some(last)) = (is_flow, items.first(), items.last()) {
                    place = self.dash(first.place.start)?..last.place.end;
                } else {
                    place.end = end.end;
                }
                let value = items.iter().map(|item| item.value.clone()).collect();
                (value, anchor, Kind::Sequence { is_flow, items })
            }
            Event::MappingStart(style, anchor, _) => {
                let mut entries: Vec<Entry> = Vec::new();
                let end = loop {
                    match self.next()? {
                        (Event::MappingEnd, span) => break self.place(&span)?,
                        (event, span) => {
                            let mut key = self.node(event, &span)?;
                            // `on` is a word here, and no boolean.
                            if let (Kind::Scalar(Quote::None), Some(word)) =
                                (&key.kind, self.text.get(key.place.clone()))
                            {
                                key.value = Value::String(word.to_owned());
                            }
                            let (event, span) = self.next()?;
                            entries.push(Entry { key, value: self.node(event, &span)? });
                        }
                    }
                };
                let is_flow = style == StructureStyle::Flow;
                if let (false, Some(first), Some(last)) = (is_flow, entries.first(), entries.last()) {
                    place = first.key.place.start..last.value.place.end.max(last.key.place.end);
                } else {
                    place.end = end.end;
                }
                let mut value = Map::new();
                for entry in &entries {
                    let key = entry.key.value.as_str().ok_or("a key that is no text")?;
                    value.insert(key.to_owned(), entry.value.value.clone());
                }
                (Value::Object(value), anchor, Kind::Mapping { is_flow, entries })
            }
            event => return Err(format!("unexpected {event:?}")),
        };
        if anchor > 0 {
            self.anchors.insert(anchor, value.clone());
        }
        Ok(Node { place, value, is_anchored: anchor > 0, kind })
    }
}

fn scalar(text: Cow<str>, style: ScalarStyle) -> (Value, Quote) {
    let quote = match style {
        ScalarStyle::Plain => {
            // No word of that length is a boolean, a number or null; most texts are found out so, and soon.
            let is_word = text.len() > "false".len() && text.starts_with(char::is_alphabetic);
            let read = if is_word { None } else { serde_saphyr::from_str::<Value>(&text).ok() };
            let read = read.filter(|value| !value.is_array() && !value.is_object());
            return (read.unwrap_or_else(|| Value::String(text.into_owned())), Quote::None);
        }
        ScalarStyle::SingleQuoted => Quote::Single,
        ScalarStyle::DoubleQuoted => Quote::Double,
        ScalarStyle::Literal | ScalarStyle::Folded => Quote::Block,
    };
    (Value::String(text.into_owned()), quote)
}
