//! A small cache whose entries expire. When it is full, the least recently used entry is removed.

use std::collections::HashMap;

use tokio::time::Instant;

type CacheKey = [u8; 32];

pub(super) struct ExpiringCache<T> {
    entries: HashMap<CacheKey, CacheEntry<T>>,
    capacity: usize,
}

struct CacheEntry<T> {
    value: T,
    expires: Instant,
    used: Instant,
}

impl<T: Copy> ExpiringCache<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { entries: HashMap::new(), capacity }
    }

    pub(super) fn get(&mut self, key: &CacheKey, now: Instant) -> Option<T> {
        let entry = self.entries.get_mut(key).filter(|entry| now < entry.expires)?;
        entry.used = now;
        Some(entry.value)
    }

    /// Scans all entries when the cache is full; a review costs more.
    pub(super) fn put(&mut self, key: CacheKey, value: T, now: Instant, expires: Instant) {
        if self.entries.len() >= self.capacity {
            self.entries.retain(|_, entry| now < entry.expires);
        }
        if self.entries.len() >= self.capacity
            && let Some(oldest) = self.entries.iter().min_by_key(|(_, entry)| entry.used)
        {
            let oldest = *oldest.0;
            self.entries.remove(&oldest);
        }
        self.entries.insert(key, CacheEntry { value, expires, used: now });
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
