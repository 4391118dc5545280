use std::sync::LazyLock;

use super::{
    EventDecision::{Ignore, Read, Reselect},
    *,
};

fn query(namespace: Option<&str>, field_selector: Option<&str>) -> Query {
    Query {
        namespace: namespace.map(Into::into),
        field_selector: field_selector.map(Into::into),
        ..Query::all(kollect_model::crd::shapes::Gvk::default())
    }
}

fn object(uid: &str, version: u64) -> Metadata {
    Metadata { uid: uid.into(), namespace: "a".into(), version, ..Metadata::default() }
}

/// The definitions that feeds serve here.
fn serves() -> &'static Arc<BTreeSet<u32>> {
    static SERVES: LazyLock<Arc<BTreeSet<u32>>> = LazyLock::new(|| Arc::new([1, 2].into()));
    &SERVES
}

/// An event of a watch.
fn watched<'a>(query: &'a Query, object: &'a Metadata) -> ObjectEvent<'a> {
    ObjectEvent { object, query, serves: serves(), listing: false, renewal: false }
}

fn listed(query: Query, version: u64) -> ListedQuery {
    ListedQuery { query, serves: serves().clone(), version }
}

fn row(namespace: &str) -> RowKey {
    let target = kollect_model::row::TargetId { namespace: None, name: "t".into() };
    RowKey { target, group: "".into(), kind: "Pod".into(), namespace: namespace.into(), uid: "u".into() }
}

/// An order in which feeds overlap.
fn overlapping() -> EventOrder {
    EventOrder { overlap: true, ..EventOrder::default() }
}

#[test]
fn a_row_takes_newer_versions_of_its_object_only() {
    let (cluster, own) = (query(None, None), object("u", 5));
    let steps = |renewal, is_old: bool, is_listed: bool| {
        let event = ObjectEvent { renewal, ..watched(&cluster, &own) };
        [None, Some(4), Some(5), Some(6)].map(|known| step(event, known, || is_old, || is_listed))
    };
    assert_eq!(steps(false, false, false), [Read, Read, Reselect, Ignore]);
    assert_eq!(
        steps(false, false, true),
        [Ignore, Read, Reselect, Ignore],
        "a list knew that there is no row"
    );
    assert_eq!(steps(false, true, false), [Ignore; 4], "another feed was faster");
    assert_eq!(
        steps(true, false, false),
        [Read, Read, Read, Ignore],
        "the namespace has changed, not the object"
    );
    let unversioned = object("u", 0);
    assert_eq!(step(watched(&cluster, &unversioned), Some(6), || false, || false), Read, "there is no order");
}

#[test]
fn a_deletion_does_not_remove_a_newer_row() {
    let deleted = [None, Some(4), Some(5), Some(6)].map(|known| deletes(5, known));
    assert_eq!(deleted, [true, true, true, false]);
    assert!(deletes(0, Some(6)), "there is no order");
}

#[test]
fn a_deleted_object_does_not_come_back_from_a_slower_feed() {
    let (cluster, node) = (query(None, None), query(None, Some("node=1")));
    let mut order = overlapping();
    order.record_deletion(watched(&cluster, &object("u", 7)));
    order.record_deletion(watched(&node, &object("u", 6)));
    let is_old = |order: &EventOrder, query: &Query, uid: &str, version, definition| {
        order.is_old(watched(query, &object(uid, version)), definition)
    };
    assert!(is_old(&order, &cluster, "u", 6, 1));
    assert!(is_old(&order, &node, "u", 6, 1), "of whatever query");
    assert!(!is_old(&order, &cluster, "u", 0, 1), "there is no order");
    assert!(!is_old(&order, &cluster, "v", 6, 1), "another object");
    assert!(!is_old(&order, &cluster, "u", 7, 1));
    order.record_object(watched(&cluster, &object("u", 8)));
    assert!(is_old(&order, &cluster, "u", 7, 1), "it came back");
    // Feeds of other targets have reported nothing to this one.
    assert!(!is_old(&order, &cluster, "u", 6, 3));
    let others = Arc::new([3].into());
    let newest = object("u", 9);
    order.record_object(ObjectEvent { serves: &others, ..watched(&cluster, &newest) });
    assert!(is_old(&order, &cluster, "u", 8, 3) && !is_old(&order, &cluster, "u", 8, 1));
}

#[test]
fn versions_are_recorded_only_while_feeds_overlap() {
    let cluster = query(None, None);
    let (old, new) = (object("u", 6), object("u", 7));
    let mut alone = EventOrder::default();
    alone.record_deletion(watched(&cluster, &new));
    alone.record_object(watched(&cluster, &new));
    assert!(alone.newest.is_empty());
    // A list sends objects in no order: only versions of objects without a row are recorded.
    let mut order = overlapping();
    let listing = ObjectEvent { listing: true, ..watched(&cluster, &new) };
    order.record_object(listing);
    order.keep_version(listing, || true);
    assert!(order.newest.is_empty(), "its row keeps the version");
    order.keep_version(listing, || false);
    assert!(order.is_old(watched(&cluster, &old), 1));
    // A streamed list reports deletions.
    let other = object("v", 7);
    order.record_deletion(ObjectEvent { listing: true, ..watched(&cluster, &other) });
    assert!(order.is_old(watched(&cluster, &object("v", 6)), 1));
}

#[test]
fn versions_are_dropped_when_all_feeds_have_received_them() {
    let cluster = query(None, None);
    let (old, last) = (object("u", 6), object("u", 8));
    let mut order = overlapping();
    order.record_deletion(watched(&cluster, &object("u", 7)));
    order.end_list(listed(query(Some("a"), None), 9));
    order.set_overlap(false, || 6);
    assert!(order.is_old(watched(&cluster, &old), 1), "a feed may still be behind");
    order.forget(|| 7);
    assert!(!order.is_old(watched(&cluster, &old), 1));
    assert!(order.is_listed(watched(&cluster, &last), 1, [].iter()));
    order.forget(|| 9);
    assert!(!order.is_listed(watched(&cluster, &last), 1, [].iter()));
    order.forget(|| unreachable!("there is nothing to forget"));
}

#[test]
fn a_complete_list_contains_all_events_before_it() {
    let (cluster, order) = (query(None, None), overlapping());
    let is_listed = |list: ListedQuery, event: ObjectEvent<'_>, definition| {
        order.is_listed(event, definition, [list].iter())
    };
    let own = object("u", 5);
    let event = watched(&cluster, &own);
    assert!(is_listed(listed(query(None, None), 5), event, 1));
    assert!(is_listed(listed(query(Some("a"), None), 5), event, 1));
    assert!(!is_listed(listed(query(None, None), 4), event, 1), "the event is newer");
    assert!(!is_listed(listed(query(None, None), 5), event, 3), "the list was not for this target");
    assert!(!is_listed(listed(query(Some("b"), None), 5), event, 1), "another namespace");
    assert!(!is_listed(listed(query(None, Some("node=1")), 5), event, 1), "another field selector");
    assert!(!is_listed(listed(query(None, None), 5), ObjectEvent { renewal: true, ..event }, 1));
    let unversioned = object("u", 0);
    assert!(!is_listed(listed(query(None, None), 5), watched(&cluster, &unversioned), 1));
    let mut alone = EventOrder::default();
    assert!(!alone.is_listed(event, 1, [listed(query(None, None), 5)].iter()), "one feed is in order");
    alone.end_list(listed(query(Some("a"), None), 5));
    assert!(alone.is_listed(event, 1, [].iter()));
    alone.forget_lists_of("a");
    assert!(!alone.is_listed(event, 1, [].iter()), "the namespace is another one");
}

#[test]
fn a_complete_list_removes_rows_that_it_covers_unless_they_are_newer() {
    let is_gone = |list: Query, version, known| listed(list, version).proves_gone(&row("a"), known, None);
    assert!(is_gone(query(None, None), 5, 5));
    assert!(!is_gone(query(None, None), 5, 6), "an event has reported it since");
    assert!(is_gone(query(None, None), 0, 6), "there is no order");
    assert!(is_gone(query(Some("a"), None), 5, 5));
    assert!(!is_gone(query(Some("b"), None), 5, 5));
}

#[test]
fn a_row_stays_while_one_query_returns_its_object() {
    let (cluster, node) = (query(None, None), query(None, Some("node=1")));
    let mut matches = QueryMatches::default();
    matches.add(&object("u", 5), &cluster);
    let is_gone = |matches: &QueryMatches, list: &Query, version| {
        listed(list.clone(), version).proves_gone(&row("a"), 9, Some(matches))
    };
    assert!(is_gone(&matches, &cluster, 5), "the matches have the version of each query");
    assert!(!is_gone(&matches, &node, 5), "it is not the row of that query");
    matches.add(&object("u", 9), &node);
    assert!(!matches.remove("u", &node, 8), "a deletion from before it came");
    assert!(!matches.remove("u", &node, 9), "the other query returns it");
    assert!(matches.remove("u", &cluster, 0), "there is no order");
    assert!(matches.remove("u", &cluster, 5), "no query ever returned it");
}

#[test]
fn feeds_overlap_if_both_can_return_an_object() {
    let overlap = |keys: &[(Option<&str>, Option<&str>)], several_field_selectors| {
        let queries: Vec<Query> = keys.iter().map(|(namespace, field)| query(*namespace, *field)).collect();
        overlap(queries.iter(), several_field_selectors)
    };
    assert!(!overlap(&[(None, None)], true));
    assert!(!overlap(&[(Some("a"), None), (Some("b"), None)], true));
    assert!(overlap(&[(None, None), (None, None)], false), "one replaces the other");
    assert!(overlap(&[(Some("a"), None), (Some("a"), None)], false));
    assert!(overlap(&[(None, None), (Some("a"), None)], false), "a namespace is listed once more");
    let selectors = [(None, None), (None, Some("node=1"))];
    assert!(!overlap(&selectors, false), "each is for another target");
    assert!(overlap(&selectors, true));
}
