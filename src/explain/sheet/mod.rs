//! An answer as lines and tables: what a terminal and a page print, each in its own form.
//!
//! In: words, objects, times and verdicts. Out: a [`Sheet`]. Each answer makes its sheet once ([`Printed`]); [`text`] prints it
//! for a terminal or a ticket, and the page prints it as HTML.

mod explanation;
mod model;
pub mod text;
mod words;

pub(super) use self::{
    model::{Item, Section, Table, Word, next_condition},
    text::print,
    words::{called, is_deceiving},
};
pub use self::{
    model::{Printed, Sheet},
    words::{clean, command},
};
