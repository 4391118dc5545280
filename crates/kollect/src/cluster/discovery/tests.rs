use std::{collections::BTreeSet, time::Duration};

use kollect_engine::watch::Resolution;
use kollect_model::crd::shapes::Gvk;
use tokio::time::Instant;

use super::{Answer, FORGET, Kinds};

const CERTAIN: Duration = Duration::from_secs(30);

fn gvk(kind: &str) -> Gvk {
    Gvk { group: "shop.test".into(), version: "v1".into(), kind: kind.into() }
}

fn ask(answer: &mut Answer, now: Instant) {
    answer.replace(Kinds::new(), BTreeSet::new(), now);
}

#[test]
fn a_missing_kind_is_remembered_while_something_asks_for_it_and_no_longer() {
    let (mut answer, start) = (Answer::default(), Instant::now());
    ask(&mut answer, start);
    for kind in ["Wharf", "Pier"] {
        let found = answer.find_or_miss(&gvk(kind), CERTAIN, start);
        assert!(matches!(found, Err(Resolution::Blind(_))), "one answer proves nothing: {found:?}");
    }
    let mut now = start;
    while now < start + FORGET * 2 {
        now += CERTAIN;
        ask(&mut answer, now);
        let found = answer.find_or_miss(&gvk("Wharf"), CERTAIN, now);
        assert_eq!(found, Err(Resolution::Absent));
    }
    assert_eq!(answer.missing.len(), 1, "nothing asks for the other one any more");
    let found = answer.find_or_miss(&gvk("Pier"), CERTAIN, now);
    assert!(matches!(found, Err(Resolution::Blind(_))), "it counts from the beginning: {found:?}");
}
