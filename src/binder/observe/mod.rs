//! What a change of an object or the answer to a request means: indexes, proofs and waits brought up to it, and
//! the few keys that are looked at again.

pub(crate) mod changes;
pub(crate) mod outcomes;
pub(crate) mod unreadable;
