//! A kind that is watched only where it is asked for, and that a server may lack.

use super::*;
use crate::{
    kinds::{
        CsiDriver, Node, ObjectRef, PersistentVolume, PersistentVolumeClaim, Pod, VolumeAttachment,
        VolumeAttributesClass,
    },
    tables::ALWAYS,
};

#[tokio::test(start_paused = true)]
async fn a_kind_that_the_server_lacks_is_asked_for_every_five_minutes_and_holds_nothing_up() {
    let page = |items| Answer::Page(7, "", items);
    let absent = Answer::Error(404, "NotFound", 0);
    let lists = vec![absent.clone(), absent.clone(), page(vec![class("gold", 7)]), absent];
    let watches = vec![Answer::Error(404, "NotFound", 0)];
    let stage = stage_of::<VolumeAttributesClass>(lists, watches);
    let changes = stage.objects.subscribe();
    stage.pass(4 * MINUTE).await;
    let begun = stage.lists();
    assert_eq!(begun.len(), 1);
    let status = |stage: &Stage| stage.objects.statuses().pop().unwrap();
    let (kind, known) = status(&stage);
    assert_eq!((kind, known.synced, known.blind_since), ("volumeattributesclasses", true, None));
    assert!(known.error.unwrap().contains("404"));
    assert!(stage.shows("mooring_watch_synced{resource=\"volumeattributesclasses\"} 1"));
    stage.pass(7 * MINUTE).await;
    let pauses: Vec<_> = stage.lists().windows(2).map(|two| two[1] - two[0]).collect();
    assert!(pauses.iter().take(2).all(|pause| *pause >= 5 * MINUTE), "{pauses:?}");
    // It is served now, for a moment: also the first list is told of, as nobody waits for it.
    assert_eq!(stage.objects.attributes_classes.len(), 1);
    let told = changes.take();
    assert!(told.contains(&ObjectRef::AttributesClass("gold".into())), "{told:?}");
    stage.pass(20 * MINUTE).await;
    assert!(stage.lists().len() <= 8, "{}", stage.lists().len());
    assert_eq!(status(&stage).1.blind_since, None);
}

#[test]
fn an_optional_kind_keeps_nothing_waiting() {
    let objects = Objects::default().with_attributes_classes();
    objects.reset::<Node>(vec![]);
    objects.reset::<Pod>(vec![]);
    objects.reset::<PersistentVolume>(vec![]);
    objects.reset::<PersistentVolumeClaim>(vec![]);
    objects.reset::<VolumeAttachment>(vec![]);
    objects.reset::<StorageClass>(vec![]);
    assert!(!objects.is_synced());
    objects.reset::<CsiDriver>(vec![]);
    assert!(objects.is_synced() && !objects.is_listed::<VolumeAttributesClass>());
    assert_eq!(Objects::default().statuses().len(), ALWAYS);
}
