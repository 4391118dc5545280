//! Removal of values that were found before.

use crate::json::Json;

/// A child that is removed, or something below it is. Siblings are in document order.
#[derive(Debug)]
pub(super) struct Removal {
    pub(super) position: RemovalPosition,
    /// What is removed below; `None`: the child itself.
    pub(super) below: Option<Vec<Removal>>,
}

#[derive(Debug)]
pub(super) enum RemovalPosition {
    Key(String),
    Item(usize),
}

pub(super) fn apply(value: &mut Json<'_>, removals: Vec<Removal>) {
    match value {
        Json::Map(map) => {
            let mut removed_keys = Vec::new();
            for Removal { position, below } in removals {
                match (position, below) {
                    (RemovalPosition::Key(key), None) => removed_keys.push(key),
                    (RemovalPosition::Key(key), Some(below)) => {
                        if let Some(child) = map.get_mut(&key) {
                            apply(child, below);
                        }
                    }
                    (RemovalPosition::Item(_), _) => {}
                }
            }
            if !removed_keys.is_empty() {
                map.retain(|key| removed_keys.binary_search_by(|known| known.as_str().cmp(key)).is_err());
            }
        }
        Json::List(items) => {
            let mut removals = removals.into_iter().peekable();
            let mut index = 0;
            // One pass: taking items out one by one would move the rest of the list each time.
            items.retain_mut(|item| {
                let removal = removals
                    .next_if(|removal| matches!(removal.position, RemovalPosition::Item(at) if at == index));
                index += 1;
                match removal {
                    None => true,
                    Some(Removal { below: None, .. }) => false,
                    Some(Removal { below: Some(below), .. }) => {
                        apply(item, below);
                        true
                    }
                }
            });
        }
        _ => {}
    }
}
