//! Cells of tables: at most two sentences each. What needs a third stands below the table.

use crate::{
    files::{self, File},
    pages,
};

const SENTENCES: usize = 2;

pub fn that_are_too_long() -> Vec<String> {
    files::all().iter().filter(|file| file.is("md")).flat_map(too_long).collect()
}

fn too_long(file: &File) -> Vec<String> {
    let rows = pages::prose(&file.text).filter(|line| line.starts_with('|'));
    // A piece of code is one word, whatever is in it.
    let rows = rows.map(|row| row.split('`').step_by(2).collect::<Vec<_>>().join("X"));
    let cells = rows.flat_map(|row| row.split(" | ").map(str::to_owned).collect::<Vec<_>>());
    cells.filter(|cell| sentences(cell) > SENTENCES).map(|cell| format!("{}: {cell}", file.path)).collect()
}

fn sentences(cell: &str) -> usize {
    let letters: Vec<char> = cell.chars().collect();
    let is_end = |three: &&[char]| matches!(three, ['.' | '?' | '!', ' ', next] if next.is_uppercase() || matches!(next, '[' | '(' | '*'));
    1 + letters.windows(3).filter(is_end).count()
}
