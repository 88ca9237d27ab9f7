//! The kinds the server knows, as data.
//!
//! One static descriptor per kind has its generic properties ([`kind`]). Its defaults, admission and validation are an
//! implementation of [`kind::Rules`]. To add a kind, add its Go type to the schema, a file here and a line in
//! [`KINDS`].

pub mod attachment;
pub mod attributes_class;
pub mod claim;
pub mod class;
pub mod columns;
pub mod config_map;
pub mod csi_driver;
pub mod csi_node;
pub mod event;
pub mod kind;
pub mod lease;
pub mod namespace;
pub mod node;
pub mod pod;
pub mod pod_spec;
pub mod volume;

use self::kind::Kind;

/// All kinds, in the order of discovery.
pub static KINDS: [&Kind; 13] = [
    &config_map::KIND,
    &event::KIND,
    &namespace::KIND,
    &node::KIND,
    &claim::KIND,
    &volume::KIND,
    &pod::KIND,
    &lease::KIND,
    &csi_driver::KIND,
    &csi_node::KIND,
    &class::KIND,
    &attachment::KIND,
    &attributes_class::KIND,
];

/// A kind by group and resource name.
pub fn find(group: &str, plural: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.group == group && kind.plural == plural).copied()
}
