use std::{collections::BTreeSet, time::Duration};

use kollect_engine::watch::Resolution;
use kollect_model::crd::shapes::Gvk;
use tokio::time::Instant;

use super::{DiscoveryAnswer, FORGET_AFTER, ServedKinds};

const ABSENT_AFTER: Duration = Duration::from_secs(30);

fn gvk(kind: &str) -> Gvk {
    Gvk { group: "shop.test".into(), version: "v1".into(), kind: kind.into() }
}

fn receive_empty_answer(answer: &mut DiscoveryAnswer, now: Instant) {
    answer.replace(ServedKinds::new(), BTreeSet::new(), now);
}

#[test]
fn a_missing_kind_is_forgotten_when_it_is_not_looked_up_any_more() {
    let (mut answer, start) = (DiscoveryAnswer::default(), Instant::now());
    receive_empty_answer(&mut answer, start);
    for kind in ["Wharf", "Pier"] {
        let found = answer.find_or_record_missing(&gvk(kind), ABSENT_AFTER, start);
        assert!(matches!(found, Err(Resolution::Blind(_))), "one answer proves nothing: {found:?}");
    }
    let mut now = start;
    while now < start + FORGET_AFTER * 2 {
        now += ABSENT_AFTER;
        receive_empty_answer(&mut answer, now);
        let found = answer.find_or_record_missing(&gvk("Wharf"), ABSENT_AFTER, now);
        assert_eq!(found, Err(Resolution::Absent));
    }
    assert_eq!(answer.missing.len(), 1, "the other one is not looked up any more");
    let found = answer.find_or_record_missing(&gvk("Pier"), ABSENT_AFTER, now);
    assert!(matches!(found, Err(Resolution::Blind(_))), "it counts from the beginning: {found:?}");
}
