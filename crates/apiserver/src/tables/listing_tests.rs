//! Lists taken page by page, the proofs of a restore, and objects that cannot be read.

use super::*;
use crate::{
    ids::{ClassName, NodeName},
    kinds::{Node, StorageClass},
};

fn class(name: &str, uid: &str, revision: u64) -> StorageClass {
    let mut class = StorageClass::default();
    class.metadata.name = name.into();
    class.metadata.uid = uid.into();
    class.metadata.resource_version = ResourceVersion(revision);
    class
}

fn names(table: &Table<StorageClass>) -> Vec<String> {
    table.snapshot().keys().map(ToString::to_string).collect()
}

/// Takes a list as the watch loop does. Returns what went away.
fn take(
    table: &Table<StorageClass>,
    revision: u64,
    items: &[(&str, &str, u64)],
) -> Result<Vec<String>, Regression> {
    let list = table.begin_list(ResourceVersion(revision))?;
    for (name, uid, revision) in items {
        let key = ClassName::from(*name);
        if !table.is_listed_as_known(&list, &key, &(*uid).into(), ResourceVersion(*revision))? {
            table.list(&list, class(name, uid, *revision));
        }
    }
    Ok(table.sweep(&list).iter().map(ToString::to_string).collect())
}

#[test]
fn l8_a_list_sweeps_what_it_lacks() {
    let table = Table::default();
    assert_eq!(take(&table, 20, &[("a", "1", 10), ("b", "2", 12)]).unwrap(), [""; 0]);
    assert_eq!(take(&table, 30, &[("b", "2", 12), ("c", "3", 25)]).unwrap(), ["a"]);
    assert_eq!(names(&table), ["b", "c"]);
    assert_eq!(table.observed(), ResourceVersion(30));
}

#[test]
fn s17_what_is_newer_than_the_list_survives_it() {
    let table = Table::default();
    take(&table, 20, &[("a", "1", 10)]).unwrap();
    let list = table.begin_list(ResourceVersion(30)).unwrap();
    // Our own write, answered while the pages come.
    assert!(table.observe_response(class("b", "2", 31)));
    table.list(&list, class("a", "1", 10));
    assert_eq!(table.sweep(&list), []);
    assert_eq!(names(&table), ["a", "b"]);
    // The next list knows of it, or it is gone.
    assert_eq!(take(&table, 40, &[("a", "1", 10)]).unwrap(), ["b"]);
}

#[test]
fn l8_a_list_that_did_not_reach_its_last_page_sweeps_nothing_and_the_next_one_does() {
    let table = Table::default();
    take(&table, 20, &[("a", "1", 10), ("b", "2", 12)]).unwrap();
    let broken = table.begin_list(ResourceVersion(30)).unwrap();
    table.list(&broken, class("c", "3", 25));
    assert_eq!(names(&table), ["a", "b", "c"]);
    assert_eq!(take(&table, 31, &[("b", "2", 12)]).unwrap().len(), 2);
    assert_eq!(names(&table), ["b"]);
}

#[test]
fn an_object_known_at_the_listed_revision_is_not_taken_again() {
    let table = Table::default();
    take(&table, 20, &[("a", "1", 10)]).unwrap();
    let list = table.begin_list(ResourceVersion(30)).unwrap();
    let known = |name: &str, uid: &str, revision| {
        table.is_listed_as_known(&list, &name.into(), &uid.into(), ResourceVersion(revision))
    };
    assert_eq!(known("a", "1", 10), Ok(true));
    assert_eq!(known("a", "1", 11), Ok(false), "changed");
    assert_eq!(known("a", "2", 10), Ok(false), "another object");
    assert_eq!(known("b", "3", 10), Ok(false), "new");
}

#[test]
fn e11_a_list_older_than_what_was_watched_proves_a_restore() {
    let table = Table::default();
    take(&table, 20, &[("a", "1", 10)]).unwrap();
    table.apply(class("a", "1", 25));
    let proof = table.begin_list(ResourceVersion(24)).unwrap_err();
    assert_eq!(
        proof.to_string(),
        "storageclasses are listed at revision 24, after the watch had told of revision 25"
    );
    assert!(table.begin_list(ResourceVersion(25)).is_ok());
    table.advance(ResourceVersion(40));
    assert!(table.begin_list(ResourceVersion(39)).is_err(), "a bookmark was told of, too");
}

#[test]
fn e11_an_object_older_than_it_was_proves_a_restore_also_where_revisions_rise() {
    let table = Table::default();
    take(&table, 20, &[("a", "1", 10)]).unwrap();
    table.apply(class("a", "1", 25));
    assert_eq!(
        take(&table, 1_000_000_030, &[("a", "1", 10)]).unwrap_err().to_string(),
        "storageclasses a is at revision 10, after it had been at revision 25"
    );
    assert!(take(&table, 40, &[("a", "2", 10)]).is_ok(), "another object of that name proves nothing");
}

#[test]
fn e11_an_answer_after_the_revision_of_the_list_proves_nothing() {
    let table = Table::default();
    take(&table, 20, &[("a", "1", 10)]).unwrap();
    let list = table.begin_list(ResourceVersion(30)).unwrap();
    table.observe_response(class("a", "1", 31));
    let known = table.is_listed_as_known(&list, &"a".into(), &"1".into(), ResourceVersion(10));
    assert_eq!(known, Ok(true));
    assert_eq!(table.sweep(&list), []);
}

#[test]
fn s42_an_object_that_cannot_be_read_keeps_what_was_known_and_says_so_until_it_can() {
    let table = Table::default();
    let (a, new) = (ClassName::from("a"), ClassName::from("new"));
    take(&table, 20, &[("a", "1", 10)]).unwrap();
    let note = |key: &ClassName, uid: &str, revision| {
        let known = (Some(uid.into()), Some(ResourceVersion(revision)), AttachmentNames::default());
        table.note_unreadable(None, key, known, "spec: bad".to_owned())
    };
    assert!(note(&a, "1", 30));
    assert!(!note(&a, "1", 31), "the same reason is no news");
    assert!(note(&new, "2", 32));
    let another = ClassName::from("another");
    table.apply(class("another", "3", 26));
    assert!(note(&another, "3", 27) && note(&another, "4", 28), "the one that was known is gone");
    assert!(table.get(&another).is_none() && table.delete_unreadable(&another, ResourceVersion(29)));
    assert_eq!(table.get(&a).unwrap().metadata.resource_version, ResourceVersion(10));
    assert_eq!(table.unreadable(&a).unwrap().error, "spec: bad");
    assert_eq!((table.get(&new), table.unreadable_count()), (None, 2));
    assert!(!table.apply(class("a", "1", 29)) && table.unreadable(&a).is_some(), "a late echo cures nothing");
    assert!(table.apply(class("a", "1", 33)), "that it can be read is news");
    assert_eq!(table.unreadable(&a), None);
    assert!(table.delete_unreadable(&new, ResourceVersion(34)));
    assert_eq!(table.unreadable_count(), 0);
}

#[test]
fn s38_s42_an_answer_that_is_history_takes_no_mark_off_and_one_that_is_ahead_does() {
    let (table, key) = (Table::default(), ClassName::from("a"));
    take(&table, 20, &[]).unwrap();
    table.advance(ResourceVersion(25));
    let known = (Some("1".into()), Some(ResourceVersion(25)), AttachmentNames::default());
    table.note_unreadable(None, &key, known, "spec: bad".to_owned());
    assert!(!table.observe_response(class("a", "1", 25)));
    let mark = table.unreadable(&key);
    assert!(mark.is_some());
    assert!(table.observe_response(class("a", "1", 26)) && table.unreadable(&key).is_none());

    // The mark of an older revision, which another thread put in meanwhile: when it goes, whoever waits for it has to hear.
    let mark = Unreadable { revision: ResourceVersion(20), ..mark.unwrap() };
    table.unreadable.write().insert(key.clone(), mark);
    assert!(table.apply(class("a", "1", 26)) && table.unreadable(&key).is_none());
}

#[test]
fn s42_an_unreadable_object_that_is_listed_stays_and_one_that_is_not_goes() {
    let table = Table::default();
    take(&table, 20, &[("a", "1", 10), ("b", "2", 11)]).unwrap();
    let list = table.begin_list(ResourceVersion(30)).unwrap();
    for (name, uid) in [("a", "1"), ("c", "3")] {
        let known = (Some(uid.into()), Some(ResourceVersion(25)), AttachmentNames::default());
        table.note_unreadable(Some(&list), &name.into(), known, "spec: bad".to_owned());
    }
    assert_eq!(table.sweep(&list), [ClassName::from("b")]);
    assert_eq!((names(&table), table.unreadable_count()), (vec!["a".to_owned()], 2));
    let mut gone = take(&table, 40, &[]).unwrap();
    gone.sort();
    gone.dedup();
    assert_eq!((gone, table.unreadable_count()), (vec!["a".to_owned(), "c".to_owned()], 0));
}

#[test]
fn s3_a_node_of_another_uid_leaves_last_words_that_nobody_knows() {
    let node = |uid: &str, revision| {
        let mut node = Node::default();
        node.metadata.name = "n1".into();
        node.metadata.uid = uid.into();
        node.metadata.resource_version = ResourceVersion(revision);
        node
    };
    let name = NodeName::from("n1");
    for answered in [false, true] {
        let table = Table::default();
        table.keep_final_states();
        table.apply(node("1", 10));
        assert_eq!(table.take_final_state(&name), None);
        let taken = if answered { table.observe_response(node("2", 12)) } else { table.apply(node("2", 12)) };
        assert!(taken);
        assert_eq!(table.take_final_state(&name), Some(FinalState::Unknown));
    }
}
