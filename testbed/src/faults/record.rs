//! The writes in the order of their arrival, and their numbers.

use http::{Method, StatusCode};
use serde_json::Value;

/// A write as it was sent, and what was answered.
#[derive(Clone, Debug)]
pub struct Write {
    /// 1 for the first write to an object. Events and leases are not counted: they are sent beside
    /// the work and their place in its order says nothing.
    pub number: Option<usize>,
    /// HTTP method.
    pub method: Method,
    /// Path without query.
    pub path: String,
    /// Body; null when it is no JSON.
    pub body: Value,
    /// HTTP status, once answered by the server or in its place.
    pub status: Option<StatusCode>,
}

impl Write {
    /// Whether it is of this method and to a path that contains this text.
    pub fn is(&self, method: &Method, path: &str) -> bool {
        self.method == *method && self.path.contains(path)
    }

    fn is_counted(&self) -> bool {
        !self.path.contains("/events") && !self.path.contains("/leases")
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub writes: Vec<Write>,
    pub counted: usize,
}

impl Record {
    /// Gives a write its number.
    pub fn number(&mut self, mut write: Write) -> Write {
        if write.is_counted() {
            self.counted += 1;
            write.number = Some(self.counted);
        }
        write
    }

    /// Keeps a write and returns its place.
    pub fn add(&mut self, write: Write) -> usize {
        self.writes.push(write);
        self.writes.len() - 1
    }
}
