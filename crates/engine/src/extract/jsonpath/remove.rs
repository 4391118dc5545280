//! Removal of places that were found before.

use crate::json::Json;

/// A child that is removed, or something below it is. Siblings are in document order.
#[derive(Debug)]
pub(super) struct Cut {
    pub(super) spot: Spot,
    /// What is removed below; `None`: the child itself.
    pub(super) below: Option<Vec<Cut>>,
}

#[derive(Debug)]
pub(super) enum Spot {
    Key(String),
    Item(usize),
}

pub(super) fn apply(value: &mut Json<'_>, cuts: Vec<Cut>) {
    match value {
        Json::Map(map) => {
            let mut gone = Vec::new();
            for Cut { spot, below } in cuts {
                match (spot, below) {
                    (Spot::Key(key), None) => gone.push(key),
                    (Spot::Key(key), Some(below)) => {
                        if let Some(child) = map.get_mut(&key) {
                            apply(child, below);
                        }
                    }
                    (Spot::Item(_), _) => {}
                }
            }
            if !gone.is_empty() {
                map.retain(|key| gone.binary_search_by(|known| known.as_str().cmp(key)).is_err());
            }
        }
        Json::List(items) => {
            let mut cuts = cuts.into_iter().peekable();
            let mut index = 0;
            // One pass: taking items out one by one would move the rest of the list each time.
            items.retain_mut(|item| {
                let cut = cuts.next_if(|cut| matches!(cut.spot, Spot::Item(at) if at == index));
                index += 1;
                match cut {
                    None => true,
                    Some(Cut { below: None, .. }) => false,
                    Some(Cut { below: Some(below), .. }) => {
                        apply(item, below);
                        true
                    }
                }
            });
        }
        _ => {}
    }
}
