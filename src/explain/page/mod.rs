//! The page: explanations for a browser. *Waiting now*, *Object*, *Node*.
//!
//! ```text
//! path and query ─▶ routes ─▶ PageSource (a reader with the user's rights) ─▶ views: a sheet each ─▶ HTML
//! ```
//!
//! In: the answers of explain, doctor and drain. Out: whole pages that need no script, no cookie and nothing from
//! elsewhere; the script only counts down and copies. What stands in a value was written by strangers, and goes through
//! [`text::Text`] into the page, where it can be read and nothing else.

pub mod guard;
mod html;
mod layout;
pub(super) mod links;
mod reason;
pub mod routes;
pub mod serve;
pub mod source;
#[cfg(test)]
mod tests;
mod text;
mod views;
