//! Explanations: why does it wait, who has to act, what is safe.
//!
//! ```text
//! objects, read with the reader's own rights ─▶ snapshot ─┬▶ dry runs of both controllers ─┐
//!                                                         └▶ evidence ─────────────────────┴▶ report ─▶ text, JSON, page
//!                         pages of the daemon, if it is asked ─────────────────────────────┘
//! ```
//!
//! In: a [`snapshot::Snapshot`] (what was read of a cluster, and what could not be read) and an object ([`subject`]). Out:
//! a [`report::Explanation`]. Everything here but [`read`] is a function of values. What a controller would do
//! next is asked of the controllers themselves ([`crate::attach_detach::dry_run`], [`crate::binder::dry_run`]): a reason
//! is what a decision returned, never worked out anew.
//!
//! | room | what is in it |
//! |---|---|
//! | [`subject`], [`snapshot`], [`read`] | what is asked about, what was read for it, and how it is read |
//! | `view` | what an answer is made from: the snapshot and the dry runs |
//! | `answer`, `links` | the answer about one object, put together from the links of its chain |
//! | `pod`, `claim`, `volume`, `attachment`, `node`, `class`, `attributes_class` | the link of an object of each kind |
//! | `ephemeral`, `candidates`, `provisioner`, `resize` | what a claim waits for: to be made, a volume, its provisioner, growth |
//! | `exclusive`, `foreign`, `topology`, `running` | what a volume or pod waits for: another node, an attachment of others, a node that fits, something else |
//! | `sidecars`, `writes` | whether a driver's side-cars run; the binder's next write |
//! | `evidence`, `said`, `age` | what shows it: who wrote what when, what events say; times and sizes |
//! | `table`, [`reasons`] | each reason's verdict, sentence and what to do; each reason's page |
//! | [`report`], [`sheet`], [`page`] | the answer as values, as text, in a browser |
//! | [`daemon`] | what the daemon adds |
//! | [`doctor`], [`drain`], [`whatif`], [`repair`] | the answers of the other commands |

mod age;
mod answer;
mod attachment;
mod attributes_class;
mod candidates;
mod claim;
mod class;
pub(crate) mod daemon;
pub mod doctor;
pub mod drain;
#[cfg(test)]
mod dry_run_tests;
mod ephemeral;
mod evidence;
mod exclusive;
mod foreign;
mod links;
mod node;
pub mod page;
mod pod;
mod provisioner;
pub mod read;
pub mod reasons;
pub mod repair;
pub mod report;
mod resize;
mod running;
mod said;
pub mod sheet;
mod sidecars;
pub mod snapshot;
pub mod subject;
mod table;
mod topology;
mod view;
mod volume;
pub mod whatif;
mod writes;

pub use answer::explain;
