//! What the daemon knows of the cluster: one table per watched kind, and who has to be told when
//! an object changes.
//!
//! In: watch events and the answers to our own writes ([`Table::apply`], [`Table::observe_response`]).
//! Out: `Arc` snapshots of single objects, and per subscriber a [`ChangeSet`] of what to look at
//! again. Per key the newer revision wins, atomically, so it does not matter which of both
//! sources delivers a revision first.

mod change_set;
mod counters;
mod listing;
mod objects;
mod regression;
mod relation;
mod room;
mod table;
mod templates;
mod told;
mod unreadable;
pub mod watch;

pub use change_set::ChangeSet;
pub use listing::Listing;
pub use objects::{ALWAYS, KindStatus, Objects, Stored, Told};
pub use regression::Regression;
pub use relation::Relation;
pub use room::give_back_room;
pub(crate) use room::has_much_room;
pub use table::{FinalState, Table};
pub use templates::Templates;
pub use told::{ToldOf, Way};
pub use unreadable::Unreadable;
