//! How many objects of a table there are, by what a page shows of them, counted as they come and go: a scrape looks at as
//! many rows as the page has, and not at the cluster.

use std::{collections::HashMap, hash::Hash, sync::Arc};

use apiserver::{kinds::Narrow, tables::Table};
use parking_lot::Mutex;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Tally<Row>(Arc<Mutex<HashMap<Row, usize>>>);

impl<Row: Clone + Eq + Hash + Send + 'static> Tally<Row> {
    /// Counts the objects of a table that have a row.
    pub(crate) fn of<T: Narrow>(table: &Table<T>, row: fn(&T) -> Option<Row>) -> Self {
        let rows: Arc<Mutex<HashMap<Row, usize>>> = Arc::default();
        let counted = Arc::clone(&rows);
        table.count(move |object, is_there| {
            let Some(row) = row(object) else { return };
            let mut rows = counted.lock();
            let before = rows.get(&row).copied().unwrap_or_default();
            match if is_there { before + 1 } else { before.saturating_sub(1) } {
                0 => rows.remove(&row),
                count => rows.insert(row, count),
            };
        });
        Self(rows)
    }

    /// How many there are now.
    pub(crate) fn rows(&self) -> HashMap<Row, usize> {
        self.0.lock().clone()
    }
}
