//! Objects that the last list lacked, known from answers to our own requests alone.
//!
//! In: objects as they change. Out: a live read of each, before anything is decided about it. Such an object
//! may have gone between our answer and the list, and then nobody tells of it any more: a volume would
//! stay Bound to a claim that is gone. One that is there after all is told of by the watch, which is about
//! to pass our answer.

use super::{
    act::{
        op::{Call, Purpose},
        write::{Object, Target},
    },
    decide::view::Plugins,
    planner::{Plan, Planner},
};
use crate::kube_api::kinds::ObjectRef;

impl Planner {
    /// Notes an object to ask for, if it is such a one.
    pub(super) fn note_unconfirmed(&mut self, object: &ObjectRef) {
        let objects = &self.known.objects;
        let object = match object {
            ObjectRef::Claim(key) if objects.claims.is_missing(key) => Object::Claim(key.clone()),
            ObjectRef::Volume(name) if objects.volumes.is_missing(name) => Object::Volume(name.clone()),
            ObjectRef::Pod(key) if objects.pods.is_missing(key) => Object::Pod(key.clone()),
            _ => return,
        };
        self.unconfirmed.insert(object);
    }

    /// Asks once more for all that nobody has told of since.
    pub(super) fn note_all_unconfirmed(&mut self) {
        let claims = self.known.objects.claims.unconfirmed().into_iter().map(Object::Claim);
        let volumes = self.known.objects.volumes.unconfirmed().into_iter().map(Object::Volume);
        let pods = self.known.objects.pods.unconfirmed().into_iter().map(Object::Pod);
        self.unconfirmed.extend(claims.chain(volumes).chain(pods));
    }

    /// Reads what was noted. What is busy or waits is left for the plan after that.
    pub(super) fn confirm(&mut self, plan: &mut Plan) {
        for object in std::mem::take(&mut self.unconfirmed) {
            // A pod is asked for on behalf of the volume it empties.
            let subject = match &object {
                Object::Pod(key) => self.known.plugins.volume_of(key).map(Target::Volume),
                object => object.subject(),
            };
            let Some(target) = subject else { continue };
            if self.is_asleep(&target) {
                self.unconfirmed.insert(object);
            } else {
                self.start(target, None, Call::Read { target: object, purpose: Purpose::Refresh }, plan);
            }
        }
    }
}
