//! What the watches told, revision by revision, for one reader that follows the history of the cluster.
//!
//! In: objects as watches and lists bring them. Out: a [`ToldOf`] for each, before the table has it, which can be played on
//! other tables later. Each holds a copy of its object; without a reader nothing is copied.

use std::sync::OnceLock;

use tokio::{sync::mpsc, time::Instant};

use crate::{
    ids::ResourceVersion,
    kinds::{Narrow, ObjectRef},
};

/// How one came to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The first list, which shows how it was before.
    FirstList,
    /// A watch, which tells of each revision.
    Watch,
    /// A list after a gap, or a read, which show the newest revision alone.
    List,
    /// A list after a gap that lacks the object: at its revision or before, it went.
    Absence,
}

/// One revision of one object, or its end, in tables of that type.
#[derive(derive_more::Debug)]
#[debug("{object} at {revision} by {way:?}")]
pub struct ToldOf<World> {
    /// The object.
    pub object: ObjectRef,
    /// The revision at which it became so.
    pub revision: ResourceVersion,
    /// How one came to know.
    pub way: Way,
    /// When.
    pub at: Instant,
    play: Play<World>,
}

type Play<World> = Box<dyn Fn(&World) + Send>;

impl<World> ToldOf<World> {
    /// Makes other tables show it.
    pub fn play(&self, world: &World) {
        (self.play)(world);
    }
}

/// To whom it is told, if to anyone.
#[derive(Debug, educe::Educe)]
#[educe(Default(bound(false)))]
pub(super) struct Teller<World>(OnceLock<mpsc::UnboundedSender<ToldOf<World>>>);

impl<World> Teller<World> {
    /// There is a reader from now on. There is one at most.
    pub(super) fn begin(&self) -> mpsc::UnboundedReceiver<ToldOf<World>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let _ = self.0.set(sender);
        receiver
    }

    pub(super) fn tell<T: Narrow>(
        &self,
        (key, revision): (T::Key, ResourceVersion),
        way: Way,
        play: impl FnOnce() -> Play<World>,
    ) {
        let Some(reader) = self.0.get() else { return };
        let told = ToldOf { object: T::object_ref(key), revision, way, at: Instant::now(), play: play() };
        // Who does not read any more needs nothing.
        let _ = reader.send(told);
    }
}
