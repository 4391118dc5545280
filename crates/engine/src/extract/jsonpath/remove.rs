//! Removal of values that were found before, all at once: the index of an item is that in the whole list.

use std::collections::BTreeMap;

use crate::json::Json;

/// What happens to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Removal {
    /// Whether it is removed depends on a redacted value.
    Redact,
    Remove,
}

/// What is removed of a value.
#[derive(Debug, Default)]
pub(crate) struct RemovalTree {
    own: Option<Removal>,
    keys: BTreeMap<String, RemovalTree>,
    items: BTreeMap<usize, RemovalTree>,
}

impl RemovalTree {
    /// What is removed of the value of a key.
    pub(crate) fn key(&mut self, key: &str) -> &mut Self {
        self.keys.entry(key.to_owned()).or_default()
    }

    /// What is removed of an item.
    pub(crate) fn item(&mut self, index: usize) -> &mut Self {
        self.items.entry(index).or_default()
    }

    /// Sets what happens to the value itself; if it is removed anyway, it is.
    pub(crate) fn set(&mut self, removal: Removal) {
        self.own = self.own.max(Some(removal));
    }

    /// Removes the value at a pointer of keys and indices in `object`, if there is one.
    pub(crate) fn add_pointer<S: AsRef<str>>(&mut self, object: &Json<'_>, pointer: &[S]) {
        let Some((first, rest)) = pointer.split_first() else { return self.set(Removal::Remove) };
        let first = first.as_ref();
        match object {
            Json::Map(map) => {
                if let Some(child) = map.get(first) {
                    self.key(first).add_pointer(child, rest);
                }
            }
            Json::List(items) => {
                let index = first.parse::<usize>().ok();
                if let Some((index, item)) = index.and_then(|index| Some((index, items.get(index)?))) {
                    self.item(index).add_pointer(item, rest);
                }
            }
            _ => {}
        }
    }

    /// Removes everything from the value, which itself stays. Passes over a map or a list once: taking values out one by one would
    /// move the rest each time.
    pub(crate) fn apply(&self, value: &mut Json<'_>) {
        match value {
            Json::Map(map) if !self.keys.is_empty() => {
                map.retain_mut(|key, value| self.keys.get(key).is_none_or(|below| below.apply_below(value)));
            }
            Json::List(items) if !self.items.is_empty() => {
                let mut index = 0;
                items.retain_mut(|item| {
                    let below = self.items.get(&index);
                    index += 1;
                    below.is_none_or(|below| below.apply_below(item))
                });
            }
            _ => {}
        }
    }

    /// Removes everything from a value in a map or a list. Returns whether the value stays there.
    fn apply_below(&self, value: &mut Json<'_>) -> bool {
        match self.own {
            None => self.apply(value),
            Some(Removal::Redact) => *value = Json::Redacted,
            Some(Removal::Remove) => return false,
        }
        true
    }
}
