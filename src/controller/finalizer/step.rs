//! What to do about the finalizer of an object, and the patch that does it. Pure.

use apiserver::{call::Request, kinds::Meta, text::Text};
use serde_json::json;

/// What to do about the finalizer of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalizerStep {
    /// It is as it should be.
    Nothing,
    /// Put it on. Admission does so when the object is made; this is for one that was made without.
    Add,
    /// Take it off, unless the object is in use.
    Remove,
}

impl FinalizerStep {
    // KCM: pkg/util/slice and protectionutil, IsDeletionCandidate and NeedToAddFinalizer.
    pub(super) fn of(meta: &Meta, finalizer: &str) -> Self {
        let has = meta.finalizers.iter().any(|known| known.as_str() == finalizer);
        match (meta.is_terminating(), has) {
            (true, true) => Self::Remove,
            (false, false) => Self::Add,
            (true, false) | (false, true) => Self::Nothing,
        }
    }
}

/// The patch that puts the finalizer on, or takes it off. It replaces the list as a whole, which the revision guards.
pub(super) fn patch(path: String, meta: &Meta, finalizer: &str, step: FinalizerStep) -> Request {
    let others = meta.finalizers.iter().map(Text::as_str).filter(|known| *known != finalizer);
    let added = (step == FinalizerStep::Add).then_some(finalizer);
    let finalizers: Vec<&str> = others.chain(added).collect();
    Request::patch(path, meta, json!({ "metadata": { "finalizers": finalizers } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "kubernetes.io/pvc-protection";

    #[test]
    fn s34_s35_the_finalizer_goes_on_what_lives_and_off_what_goes_and_no_other_is_touched() {
        // finalizers, whether it is being deleted, what to do, the list that is written
        type Case = (&'static [&'static str], bool, FinalizerStep, &'static [&'static str]);
        let cases: [Case; 5] = [
            (&["a", OURS], false, FinalizerStep::Nothing, &["a"]),
            (&["a", OURS, "b"], true, FinalizerStep::Remove, &["a", "b"]),
            (&[OURS], true, FinalizerStep::Remove, &[]),
            (&["a"], false, FinalizerStep::Add, &["a", OURS]),
            (&["a"], true, FinalizerStep::Nothing, &["a"]),
        ];
        for (finalizers, is_going, step, written) in cases {
            let meta = Meta {
                uid: "u".into(),
                resource_version: apiserver::ids::ResourceVersion(7),
                finalizers: finalizers.iter().copied().collect(),
                deletion_timestamp: is_going.then(Box::default),
                ..Meta::default()
            };
            assert_eq!(FinalizerStep::of(&meta, OURS), step, "{finalizers:?}");
            let request = patch("/p".to_owned(), &meta, OURS, step);
            let body = json!({"metadata": {"uid": "u", "resourceVersion": "7", "finalizers": written}});
            assert_eq!(request.body, Some(body));
        }
    }
}
