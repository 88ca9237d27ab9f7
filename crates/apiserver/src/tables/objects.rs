//! All tables together, the state of their watches, and the subscribers.

use std::sync::Arc;

use bytes::Bytes;
use educe::Educe;
use parking_lot::Mutex;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    ChangeSet, Listing, Table, Templates,
    told::{Teller, ToldOf, Way},
};
use crate::{
    ids::{ResourceVersion, Uid},
    kinds::{
        CsiDriver, Narrow, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, StorageClass,
        VolumeAttachment, VolumeAttributesClass,
    },
    restore::RestoreGrace,
    unfenced::Unfenced,
    wire::{AttachmentNames, Encoding},
};

/// How the watch of one kind is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindStatus {
    /// Whether a complete list has arrived since start.
    pub synced: bool,
    /// What went wrong last, until the next success.
    pub error: Option<String>,
    /// Since when nothing is heard of the kind: its watch ended or fell silent, and could not be opened anew.
    pub blind_since: Option<Instant>,
}

/// One revision of one object, or its end, as a watch or a list has told.
pub type Told = ToldOf<Objects>;

/// A watched kind together with its place in [`Objects`].
pub trait Stored: Narrow {
    /// The kind's table.
    fn table(objects: &Objects) -> &Table<Self>;
    /// Index of the kind in [`Objects::statuses`].
    const INDEX: usize;
    /// Name of the kind's watch.
    const WATCH: &'static str;
    /// Whether it is watched only where it is asked for ([`Objects::with_attributes_classes`]): nothing waits for it, and
    /// a server may lack it.
    const IS_OPTIONAL: bool = Self::INDEX >= ALWAYS;
}

/// So many kinds are watched always. Those behind them are optional.
pub const ALWAYS: usize = 7;

macro_rules! objects {
    ($($(#[$doc:meta])* $field:ident: $kind:ty = $index:literal, $watch:literal;)*) => {
        /// The daemon's view of the cluster.
        #[derive(Debug, Educe)]
        #[educe(Default)]
        pub struct Objects {
            $($(#[$doc])* pub $field: Table<$kind>,)*
            #[educe(Default = watch::Sender::new(
                [$((<$kind>::PLURAL, KindStatus::default()),)*].into_iter().take(ALWAYS).collect(),
            ))]
            statuses: watch::Sender<Vec<(&'static str, KindStatus)>>,
            subscribers: Mutex<Vec<Arc<ChangeSet>>>,
            grace: RestoreGrace,
            unfenced: Unfenced,
            templates: Templates,
            teller: Teller<Self>,
        }

        /// A copy as of now, which goes its own way. Its changes go to those who subscribe to it.
        impl Clone for Objects {
            fn clone(&self) -> Self {
                Self {
                    $($field: self.$field.clone(),)*
                    statuses: watch::Sender::new(self.statuses()),
                    subscribers: Mutex::default(),
                    grace: self.grace.clone(),
                    unfenced: self.unfenced.clone(),
                    templates: Templates::default(),
                    teller: Teller::default(),
                }
            }
        }

        /// Per kind, what of it cannot be read.
        const UNREADABLE: &[fn(&Objects) -> Vec<(ObjectRef, String)>] = &[$(
            |objects| {
                let all = objects.$field.all_unreadable();
                all.into_iter().map(|(key, marker)| (<$kind>::object_ref(key), marker.error)).collect()
            },
        )*];

        /// Per kind, gives back the room of what is gone.
        const GIVE_BACK_ROOM: &[fn(&Objects)] = &[$(|objects| objects.$field.give_back_room(),)*];

        $(impl Stored for $kind {
            const INDEX: usize = $index;
            const WATCH: &'static str = $watch;
            fn table(objects: &Objects) -> &Table<Self> {
                &objects.$field
            }
        })*
    };
}

objects! {
    /// Nodes.
    nodes: Node = 0, "watch-nodes";
    /// Pods.
    pods: Pod = 1, "watch-pods";
    /// PersistentVolumes.
    volumes: PersistentVolume = 2, "watch-persistentvolumes";
    /// PersistentVolumeClaims.
    claims: PersistentVolumeClaim = 3, "watch-persistentvolumeclaims";
    /// VolumeAttachments.
    attachments: VolumeAttachment = 4, "watch-volumeattachments";
    /// StorageClasses.
    classes: StorageClass = 5, "watch-storageclasses";
    /// CSIDrivers.
    drivers: CsiDriver = 6, "watch-csidrivers";
    /// VolumeAttributesClasses.
    attributes_classes: VolumeAttributesClass = 7, "watch-volumeattributesclasses";
}

impl Objects {
    /// All objects whose newest revision cannot be read, each with what is wrong with it.
    pub fn all_unreadable(&self) -> Vec<(ObjectRef, String)> {
        UNREADABLE.iter().flat_map(|of| of(self)).collect()
    }

    /// Empty tables, in a process that may have seen a restore of etcd before.
    pub fn within(grace: RestoreGrace) -> Self {
        Self { grace, ..Self::default() }
    }

    /// The same, with VolumeAttributesClasses watched, too.
    #[must_use]
    pub fn with_attributes_classes(self) -> Self {
        let watched = (VolumeAttributesClass::PLURAL, KindStatus::default());
        self.statuses.send_modify(|kinds| kinds.push(watched));
        self
    }

    /// What is left of the time after a restore in which nothing destructive is done (E11).
    pub fn restore_grace(&self) -> &RestoreGrace {
        &self.grace
    }

    /// Whether another writer may be free to write, as a fence is gone (S14).
    pub fn unfenced(&self) -> &Unfenced {
        &self.unfenced
    }

    /// Gives back the room of objects that are gone, where most of it is theirs.
    pub fn give_back_room(&self) {
        for give_back in GIVE_BACK_ROOM {
            give_back(self);
        }
    }

    /// Has every revision told from now on that a watch or a list brings, one by one, to one reader. Who only asks what has
    /// changed ([`Self::subscribe`]) sees the newest alone.
    pub fn tell(&self) -> mpsc::UnboundedReceiver<Told> {
        self.teller.begin()
    }

    fn tell_of<T: Stored>(&self, object: &T, way: Way, play: fn(&Self, T)) {
        self.teller.tell::<T>((object.key(), object.metadata().resource_version), way, || {
            let object = object.clone();
            Box::new(move |world: &Self| play(world, object.clone()))
        });
    }

    fn tell_gone<T: Stored>(&self, key: &T::Key, revision: ResourceVersion, way: Way) {
        self.teller.tell::<T>((key.clone(), revision), way, || {
            let key = key.clone();
            Box::new(move |world: &Self| world.prove_gone::<T>(&key, revision))
        });
    }

    /// Adds a reader that is told of every change from now on.
    pub fn subscribe(&self) -> Arc<ChangeSet> {
        let changes = Arc::new(ChangeSet::default());
        self.subscribers.lock().push(Arc::clone(&changes));
        changes
    }

    /// An object as last seen.
    pub fn get<T: Stored>(&self, key: &T::Key) -> Option<Arc<T>> {
        T::table(self).get(key)
    }

    /// Templates of claims that are still to be made.
    pub fn templates(&self) -> &Templates {
        &self.templates
    }

    /// Takes an object that is new to the watch, with what the API server wrote of it.
    pub fn add<T: Stored>(&self, object: T, raw: (Encoding, &Bytes)) {
        let (key, uid) = (object.key(), &object.metadata().uid);
        // Of a known one nobody is told, and so nobody would take its templates.
        if object.has_templates()
            && self.get::<T>(&key).is_none_or(|known| known.metadata().uid != *uid)
            && let ObjectRef::Pod(pod) = T::object_ref(key)
        {
            self.templates.offer(&pod, uid, raw);
        }
        self.apply(object);
    }

    /// Takes an object from the watch.
    pub fn apply<T: Stored>(&self, object: T) {
        self.tell_of(&object, Way::Watch, Self::apply);
        let key = object.key();
        self.announce_if::<T>(T::table(self).apply(object), key);
    }

    /// Takes a deletion from the watch, with the object as it was.
    pub fn delete<T: Stored>(&self, last: T) {
        self.tell_of(&last, Way::Watch, Self::delete);
        let key = last.key();
        self.announce_if::<T>(T::table(self).delete(last), key);
    }

    /// Takes a deletion from the watch of which only name and revision can be read.
    pub(crate) fn delete_unreadable<T: Stored>(&self, key: &T::Key, revision: ResourceVersion) {
        self.tell_gone::<T>(key, revision, Way::Watch);
        self.announce_if::<T>(T::table(self).delete_unreadable(key, revision), key.clone());
    }

    /// Notes that a revision of an object cannot be read. Returns whether that is news.
    pub fn note_unreadable<T: Stored>(
        &self,
        list: Option<&Listing>,
        key: &T::Key,
        known: (Option<Uid>, Option<ResourceVersion>, AttachmentNames),
        error: String,
    ) -> bool {
        self.announce_if::<T>(T::table(self).note_unreadable(list, key, known, error), key.clone())
    }

    /// Takes an object from a list that is being taken. Of the first list of a kind that is watched always no subscriber
    /// is told: who reads the tables begins when all of those have been listed, and reads them whole.
    pub fn list<T: Stored>(&self, list: &Listing, object: T) {
        let way = if self.is_listed::<T>() { Way::List } else { Way::FirstList };
        self.tell_of(&object, way, Self::apply);
        let key = object.key();
        let is_news = T::table(self).list(list, object);
        self.announce_if::<T>(is_news && (T::IS_OPTIONAL || self.is_listed::<T>()), key);
    }

    /// Ends a list that reached its last page.
    pub fn sweep<T: Stored>(&self, list: &Listing) {
        let gone = T::table(self).sweep(list);
        for key in &gone {
            self.tell_gone::<T>(key, list.revision(), Way::Absence);
        }
        self.listed::<T>(gone);
    }

    /// Takes a complete list at once.
    pub fn reset<T: Stored>(&self, list: Vec<T>) {
        self.listed::<T>(T::table(self).reset(list));
    }

    fn listed<T: Stored>(&self, changed: Vec<T::Key>) {
        for key in changed {
            self.announce_if::<T>(true, key);
        }
        self.set_status::<T>(|status| *status = KindStatus { synced: true, ..KindStatus::default() });
    }

    /// Takes the answer to a read or write of our own. Returns whether it said anything new.
    pub fn observe_response<T: Stored>(&self, object: T) -> bool {
        let key = object.key();
        self.announce_if::<T>(T::table(self).observe_response(object), key)
    }

    /// Takes the proof that an object we knew at this revision is gone.
    pub fn prove_gone<T: Stored>(&self, key: &T::Key, known: ResourceVersion) {
        self.announce_if::<T>(T::table(self).prove_gone(key, known), key.clone());
    }

    /// Notes that the server does not have an optional kind.
    pub(crate) fn not_served<T: Stored>(&self, error: String) {
        let status = KindStatus { synced: true, error: Some(error), blind_since: None };
        self.set_status::<T>(|known| *known = status);
    }

    /// Notes that a kind's watch failed, or (with `None`) that it is well again.
    pub fn set_error<T: Stored>(&self, error: Option<String>) {
        self.set_status::<T>(|status| status.error = error);
    }

    /// Notes that nothing is heard of a kind from now on, if that is not known.
    pub(crate) fn blind_from<T: Stored>(&self, since: Instant) {
        self.set_status::<T>(|status| {
            status.blind_since.get_or_insert(since);
        });
    }

    /// Notes since when nothing is heard of a kind, or (with `None`) that it is watched again.
    pub(crate) fn set_blind_since<T: Stored>(&self, since: Option<Instant>) {
        self.set_status::<T>(|status| status.blind_since = since);
    }

    /// Whether the newest revision of an object cannot be read, and what is wrong with it.
    pub fn unreadable<T: Stored>(&self, key: &T::Key) -> Option<String> {
        T::table(self).unreadable(key).map(|marker| marker.error)
    }

    /// State of every kind's watch, by resource name; those that are optional come last.
    pub fn statuses(&self) -> Vec<(&'static str, KindStatus)> {
        self.statuses.borrow().clone()
    }

    /// Tells of every change of a watch's state.
    pub fn status_changes(&self) -> watch::Receiver<Vec<(&'static str, KindStatus)>> {
        self.statuses.subscribe()
    }

    /// Whether a kind has been listed since start.
    pub fn is_listed<T: Stored>(&self) -> bool {
        self.statuses.borrow().get(T::INDEX).is_some_and(|(_, status)| status.synced)
    }

    /// Whether every kind that is watched always has been listed since start.
    pub fn is_synced(&self) -> bool {
        self.statuses.borrow().iter().take(ALWAYS).all(|(_, status)| status.synced)
    }

    /// Waits until every kind that is watched always has been listed. No decision is made before: an absent object would
    /// be taken for a deleted one.
    pub async fn synced(&self) {
        let mut statuses = self.statuses.subscribe();
        // The sender lives in `self`, so waiting cannot fail.
        let _ = statuses.wait_for(|kinds| kinds.iter().take(ALWAYS).all(|(_, status)| status.synced)).await;
    }

    fn set_status<T: Stored>(&self, change: impl FnOnce(&mut KindStatus)) {
        self.statuses.send_if_modified(|kinds| {
            let Some((_, status)) = kinds.get_mut(T::INDEX) else { return false };
            let before = status.clone();
            change(status);
            *status != before
        });
    }

    /// Has every subscriber look at an object, if there is news of it.
    fn announce_if<T: Stored>(&self, is_news: bool, key: T::Key) -> bool {
        if is_news {
            let object = T::object_ref(key);
            for subscriber in self.subscribers.lock().iter() {
                subscriber.insert(object.clone());
            }
        }
        is_news
    }
}
