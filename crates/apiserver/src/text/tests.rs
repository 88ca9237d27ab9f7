//! One copy of what repeats, and the small collections of it.

use super::*;

#[test]
fn equal_texts_are_one() {
    let [one, other] = ["a namespace", "a namespace"].map(share);
    assert!(ArcStr::ptr_eq(&one, &other));
    let read: Text = serde_json::from_str(r#""a namespace""#).unwrap();
    assert!(ArcStr::ptr_eq(&one, &read.0));
    assert!(ArcStr::ptr_eq(&Text::default().0, &share("")), "nothing is allocated for nothing");
}

fn keep(store: &Store<ArcStr>, text: &str) -> ArcStr {
    store.share(text, |text| text.into())
}

fn count<P>(store: &Store<P>) -> usize {
    store.parts.iter().map(|part| part.lock().len()).sum()
}

#[test]
fn what_nobody_holds_is_let_go_and_the_rest_is_not() {
    const MANY: usize = 40 * PARTS;
    let store = Store::<ArcStr>::default();
    let held: Vec<ArcStr> = (0..10).map(|number| keep(&store, &format!("held {number}"))).collect();
    for number in 0..MANY {
        let _ = keep(&store, &format!("passing {number}"));
        assert!(count(&store) <= 4 * (PARTS + held.len()));
    }
    for (number, text) in held.iter().enumerate() {
        assert!(ArcStr::ptr_eq(text, &keep(&store, &format!("held {number}"))));
    }
    let held: Vec<_> = (0..MANY).map(|number| keep(&store, &format!("kept {number}"))).collect();
    assert!(count(&store) >= held.len());
}

/// A value that notes how often it is looked at by who clears its store.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Watched(usize);

thread_local! {
    static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Shared for Watched {
    fn holders(&self) -> usize {
        LOOKS.set(LOOKS.get() + 1);
        usize::MAX
    }
}

/// Whoever reads objects waits for it.
#[test]
fn l14_few_values_that_are_added_have_few_others_looked_at() {
    const MANY: usize = 100_000;
    const FEW: usize = 1_000;
    let store = Store::<Watched>::default();
    let mut most = 0;
    for number in 1..=MANY {
        if number % FEW == 0 {
            most = most.max(LOOKS.take());
        }
        store.share(&Watched(number), Watched::clone);
    }
    assert_eq!(count(&store), MANY);
    // How many parts grow at one time is up to the hasher: 2 464 to 4 032 looks in 150 runs.
    assert!(most > 0 && most < MANY / 16, "{most}");
}

#[test]
fn a_map_is_sorted_and_the_last_value_counts() {
    let map: TextMap = [("b", "1"), ("a", "2"), ("b", "3"), ("b", "4")].into();
    assert_eq!(serde_json::to_string(&map).unwrap(), r#"{"a":"2","b":"4"}"#);
    assert_eq!(serde_json::from_str::<TextMap>(r#"{"b": "0", "a": "2", "b": "4"}"#).unwrap(), map);
    assert_eq!((map.get("a").unwrap().as_str(), map.get("c")), ("2", None));
    assert!(map.contains_key("b") && !map.contains_key(""));
    let mut map = map;
    map.insert("aa", "5");
    map.insert("a", "6");
    let entries: Vec<String> = map.iter().map(|(key, value)| format!("{key}{value}")).collect();
    assert_eq!(entries, ["a6", "aa5", "b4"]);
}

#[test]
fn equal_lists_and_maps_are_one() {
    let [one, other] = [(); 2].map(|()| TextList::from(["ReadWriteOnce", "ReadOnlyMany"]));
    assert!(Arc::ptr_eq(&one.0, &other.0));
    let [one, other] = [(); 2].map(|()| TextMap::from([("storage", "1Gi")]));
    assert!(Arc::ptr_eq(&one.0, &other.0));
    assert!(Arc::ptr_eq(&TextMap::from([("", ""); 0]).0, &TextMap::default().0));
    assert!(Arc::ptr_eq(&TextList::from([""; 0]).0, &TextList::default().0));
    let mut list: TextList = serde_json::from_str(r#"["b", "a", "b"]"#).unwrap();
    assert_eq!(serde_json::to_string(&list).unwrap(), r#"["b","a","b"]"#);
    list.clear();
    assert!(list.is_empty());
}

#[test]
fn a_set_is_sorted_and_has_each_text_once() {
    let mut set: TextSet = serde_json::from_str(r#"["b", "a", "b"]"#).unwrap();
    assert_eq!(serde_json::to_string(&set).unwrap(), r#"["a","b"]"#);
    assert!(set.contains("a") && !set.contains("c"));
    set.insert("aa".into());
    set.insert("b".into());
    assert_eq!(set.iter().map(Text::as_str).collect::<Vec<_>>(), ["a", "aa", "b"]);
    set.clear();
    assert!(set.is_empty());
}
