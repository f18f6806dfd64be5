//! The replies to calls over UDP, so that a request that is sent again does not run again.
//!
//! | a request | gets |
//! |---|---|
//! | that is new | run |
//! | whose first copy still runs | nothing: the reply of the first copy comes |
//! | whose first copy is answered | the same reply again |
//! | that is new while there is no room | refused: entries are never forgotten early |
//!
//! An entry lives for a time without a copy of its request. That time is several of the longest
//! pauses between two retransmissions of a client, so it ends after the client has given up.
//!
//! A source may use as much memory as is free beside what it uses, and so may all senders without a
//! cookie together (the dynamic thresholds of Choudhury and Hahne, 1998). One alone gets half. None
//! can shut out the others, and all of them together leave a share to the next.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashTable};

use super::source::Source;

/// What an entry takes beside its reply at most: in the queue, in the index and among the sources,
/// also while these grow, and in the allocator. A test measures it.
const ENTRY_BYTES: usize = 304;

/// Names a request: the address that it came from, and a hash of both with a secret key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestKey {
    pub(crate) source: SocketAddr,
    pub(crate) hash: u64,
}

/// What to do with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found<'a> {
    /// [`ReplyCache::begin`], run it, then [`ReplyCache::finish`].
    New,
    UnderWay,
    Replied(&'a [u8]),
}

#[derive(Debug)]
struct Entry {
    key: RequestKey,
    /// `None` while the calls run.
    reply: Option<Box<[u8]>>,
    has_cookie: bool,
    expires_at_ms: u64,
    /// When it is inspected next, so that one which is used all the time keeps no other.
    due_at_ms: u64,
}

impl Entry {
    fn source(&self) -> Source {
        Source::new(self.key.source.ip(), self.has_cookie)
    }

    fn is_expired(&self, now_ms: u64) -> bool {
        self.reply.is_some() && self.expires_at_ms <= now_ms
    }
}

/// The replies of one worker.
#[derive(Debug)]
pub(crate) struct ReplyCache {
    /// In the order in which they are due. One that has not expired then goes to the back.
    entries: VecDeque<Entry>,
    /// How many entries were before the first one.
    removed: u64,
    /// The numbers of the entries, counted from the very first.
    index: HashTable<u64>,
    bytes: usize,
    bytes_without_cookie: usize,
    /// Of the sources with a cookie.
    bytes_by_source: HashMap<Source, usize>,
    bytes_max: usize,
    reply_bytes_max: usize,
    lifetime: Duration,
    /// Times are milliseconds from here.
    start: Instant,
}

impl ReplyCache {
    pub(crate) fn new(
        bytes_max: usize,
        reply_bytes_max: usize,
        lifetime: Duration,
        now: Instant,
    ) -> Self {
        Self {
            entries: VecDeque::new(),
            removed: 0,
            index: HashTable::new(),
            bytes: 0,
            bytes_without_cookie: 0,
            bytes_by_source: HashMap::new(),
            bytes_max,
            reply_bytes_max,
            lifetime,
            start: now,
        }
    }

    fn millis(&self, time: Instant) -> u64 {
        time.saturating_duration_since(self.start).as_millis() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Finds the reply to a request.
    pub(crate) fn find(&mut self, key: &RequestKey, now: Instant) -> Found<'_> {
        self.expire(now);
        let expires_at_ms = self.millis(now + self.lifetime);
        let Some(entry) = self.entry_mut(key) else { return Found::New };
        entry.expires_at_ms = expires_at_ms;
        match entry.reply.as_deref() {
            Some(reply) => Found::Replied(reply),
            None => Found::UnderWay,
        }
    }

    fn entry_mut(&mut self, key: &RequestKey) -> Option<&mut Entry> {
        let place = |number: u64| (number - self.removed) as usize;
        let is_it =
            |number: &u64| self.entries.get(place(*number)).is_some_and(|it| it.key == *key);
        let number = *self.index.find(key.hash, is_it)?;
        self.entries.get_mut(place(number))
    }

    /// Inserts a request that is new; returns whether there is room. It takes that of the longest
    /// reply until it is answered.
    pub(crate) fn begin(&mut self, key: RequestKey, has_cookie: bool, now: Instant) -> bool {
        let expires_at_ms = self.millis(now + self.lifetime);
        let entry = Entry { key, reply: None, has_cookie, expires_at_ms, due_at_ms: expires_at_ms };
        let needed = ENTRY_BYTES + self.reply_bytes_max;
        let used = match has_cookie {
            true => self.bytes_by_source.get(&entry.source()).copied().unwrap_or(0),
            false => self.bytes_without_cookie,
        };
        if used + needed > self.bytes_max.saturating_sub(self.bytes) {
            return false;
        }
        self.count(entry.source(), needed as isize);
        self.push(entry);
        true
    }

    /// Appends an entry.
    fn push(&mut self, entry: Entry) {
        if self.entries.len() == self.entries.capacity() {
            // A quarter more: as much again would be unused memory.
            self.entries.reserve_exact(self.entries.len() / 4 + 16);
        }
        let number = self.removed + self.entries.len() as u64;
        let hash = entry.key.hash;
        self.entries.push_back(entry);
        let (entries, removed) = (&self.entries, self.removed);
        let hash_of = |number: &u64| entries.get((number - removed) as usize).map(|it| it.key.hash);
        self.index.insert_unique(hash, number, |number| hash_of(number).unwrap_or_default());
    }

    /// Takes the first entry.
    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        if let Ok(place) = self.index.find_entry(entry.key.hash, |it| *it == self.removed) {
            place.remove();
        }
        self.removed += 1;
        Some(entry)
    }

    /// Stores the reply to a request that was new. It may be empty, and is at most as long as the
    /// longest.
    pub(crate) fn finish(&mut self, key: RequestKey, reply: &[u8], now: Instant) {
        let expires_at_ms = self.millis(now + self.lifetime);
        let reply_bytes_max = self.reply_bytes_max;
        let Some(entry) = self.entry_mut(&key).filter(|entry| entry.reply.is_none()) else {
            return;
        };
        (entry.reply, entry.expires_at_ms) = (Some(reply.into()), expires_at_ms);
        let source = entry.source();
        self.count(source, reply.len() as isize - reply_bytes_max as isize);
    }

    /// Answers no repeat of a request that was new: the next copy is new, too. The memory of the
    /// entry is released when it expires.
    pub(crate) fn forget(&mut self, key: RequestKey, now: Instant) {
        self.finish(key, b"", now);
        let place = |number: u64| (number - self.removed) as usize;
        let is_it = |number: &u64| self.entries.get(place(*number)).is_some_and(|it| it.key == key);
        if let Ok(found) = self.index.find_entry(key.hash, is_it) {
            found.remove();
        }
    }

    /// Removes expired entries.
    pub(crate) fn expire(&mut self, now: Instant) {
        if self.is_empty() {
            return;
        }
        let now_ms = self.millis(now);
        while self.entries.front().is_some_and(|entry| entry.due_at_ms <= now_ms)
            && let Some(mut entry) = self.pop()
        {
            if entry.is_expired(now_ms) {
                let reply_bytes = entry.reply.as_ref().map_or(0, |reply| reply.len());
                self.count(entry.source(), -((ENTRY_BYTES + reply_bytes) as isize));
            } else {
                entry.due_at_ms = self.millis(now + self.lifetime);
                self.push(entry);
            }
        }
        if self.is_empty() {
            // Memory returns to the system after a flood.
            self.entries.shrink_to(0);
            self.index.shrink_to(0, |_| 0);
            self.bytes_by_source.shrink_to(0);
        }
    }

    fn count(&mut self, source: Source, change: isize) {
        self.bytes = self.bytes.saturating_add_signed(change);
        if !source.has_cookie {
            self.bytes_without_cookie = self.bytes_without_cookie.saturating_add_signed(change);
            return;
        }
        let of_source = self.bytes_by_source.entry(source).or_insert(0);
        *of_source = of_source.saturating_add_signed(change);
        if *of_source == 0 {
            self.bytes_by_source.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(10);
    const REPLY_BYTES_MAX: usize = 1_000;

    fn cache(bytes_max: usize) -> ReplyCache {
        ReplyCache::new(bytes_max, REPLY_BYTES_MAX, LIFETIME, Instant::now())
    }

    fn key(address: u8, hash: u64) -> RequestKey {
        RequestKey { source: ([192, 0, 2, address], 5_000).into(), hash }
    }

    /// A cache with room for this many running requests.
    fn cache_of(requests: usize) -> ReplyCache {
        cache(requests * (ENTRY_BYTES + REPLY_BYTES_MAX))
    }

    /// How many new requests of an address there is room for.
    fn fill(cache: &mut ReplyCache, address: u8, has_cookie: bool) -> u64 {
        let now = Instant::now();
        (0..).take_while(|hash| cache.begin(key(address, *hash), has_cookie, now)).count() as u64
    }

    #[test]
    fn a_repeat_gets_the_reply_of_the_first_copy() {
        let (mut cache, now) = (cache(100_000), Instant::now());
        assert_eq!(cache.find(&key(1, 1), now), Found::New);
        assert!(cache.begin(key(1, 1), false, now));
        assert_eq!(cache.find(&key(1, 1), now), Found::UnderWay);
        cache.finish(key(1, 1), b"reply", now);
        assert_eq!(cache.find(&key(1, 1), now), Found::Replied(b"reply"));
        assert_eq!(cache.find(&key(2, 1), now), Found::New, "another address");
        let other_port = RequestKey { source: ([192, 0, 2, 1], 5_001).into(), hash: 1 };
        assert_eq!(cache.find(&other_port, now), Found::New);
        assert_eq!(cache.find(&key(1, 2), now), Found::New, "another request");
        // A second reply does not replace the first.
        cache.finish(key(1, 1), b"other", now);
        assert_eq!(cache.find(&key(1, 1), now), Found::Replied(b"reply"));
    }

    #[test]
    fn a_request_that_is_forgotten_is_new_and_its_entry_expires() {
        let (mut cache, now) = (cache(100_000), Instant::now());
        for reply in [&b""[..], b"reply"] {
            assert!(cache.begin(key(1, 1), true, now));
            match reply {
                b"" => cache.forget(key(1, 1), now),
                _ => cache.finish(key(1, 1), reply, now),
            }
        }
        assert_eq!(cache.find(&key(1, 1), now), Found::Replied(b"reply"));
        assert_eq!(cache.bytes, 2 * ENTRY_BYTES + 5);
        (1..=3).for_each(|times| cache.expire(now + LIFETIME * 2 * times));
        assert_eq!((cache.bytes, cache.index.len(), cache.entries.len()), (0, 0, 0));
    }

    #[test]
    fn an_entry_lives_until_no_copy_has_come_for_its_lifetime() {
        let (mut cache, start) = (cache(100_000), Instant::now());
        assert!(cache.begin(key(1, 1), true, start));
        // A call that runs does not expire.
        assert_eq!(cache.find(&key(1, 1), start + LIFETIME * 5), Found::UnderWay);
        cache.finish(key(1, 1), b"reply", start + LIFETIME * 5);
        for copies in 1..30 {
            let now = start + LIFETIME * 5 + (LIFETIME - Duration::from_millis(1)) * copies;
            assert_eq!(cache.find(&key(1, 1), now), Found::Replied(b"reply"), "{copies}");
        }
        let later = start + LIFETIME * 60;
        cache.expire(later);
        cache.expire(later + LIFETIME);
        assert!(cache.is_empty() && cache.index.is_empty());
        assert_eq!((cache.bytes, cache.bytes_without_cookie), (0, 0));
        assert!(cache.bytes_by_source.is_empty());
    }

    #[test]
    fn a_full_cache_refuses_and_forgets_nothing() {
        let (mut cache, now) = (cache_of(8), Instant::now());
        assert_eq!(fill(&mut cache, 1, true), 4, "half for the first");
        assert_eq!(fill(&mut cache, 2, true), 2, "half of what is left for the next");
        assert_eq!(fill(&mut cache, 3, true), 1);
        assert!((0..4).all(|hash| cache.find(&key(1, hash), now) == Found::UnderWay));
        // Short replies make room.
        (0..4).for_each(|hash| cache.finish(key(1, hash), b"", now));
        assert!(cache.begin(key(3, 9), true, now));
    }

    /// Also while a table grows, when it exists twice.
    #[test]
    fn the_tables_take_no_more_memory_than_is_counted() {
        let bytes = |cache: &ReplyCache| {
            let of_entries = cache.entries.capacity() * size_of::<Entry>();
            [of_entries, cache.index.allocation_size(), cache.bytes_by_source.allocation_size()]
        };
        // The head and the alignment of an allocation.
        const ALLOCATOR_BYTES: usize = 24;
        let (mut cache, now) = (cache(1 << 30), Instant::now());
        let keys = (0..100_000u32).map(|number| RequestKey {
            source: (number.to_be_bytes(), 5_000).into(),
            hash: number.into(),
        });
        let peaks = keys.enumerate().map(|(number, key)| {
            let before = bytes(&cache);
            assert!(cache.begin(key, true, now));
            cache.finish(key, b"", now);
            let pairs = before.into_iter().zip(bytes(&cache));
            let peak: usize =
                pairs.map(|(old, new)| if old == new { new } else { old + new }).sum();
            peak / (number + 1)
        });
        let worst = peaks.skip(1_000).max().unwrap();
        let room = worst + ALLOCATOR_BYTES..=worst + 2 * ALLOCATOR_BYTES;
        assert!(room.contains(&ENTRY_BYTES), "{worst} bytes an entry");
    }

    #[test]
    fn senders_without_a_cookie_share_half() {
        let mut cache = cache_of(8);
        let now = Instant::now();
        assert!((0..4).all(|address| cache.begin(key(address, 0), false, now)));
        assert!(!cache.begin(key(9, 0), false, now));
        // What they use under an address is not counted for the same address with a cookie.
        assert_eq!(fill(&mut cache, 1, true), 2);
    }

    #[test]
    fn a_network_of_ipv6_has_the_share_of_one_source() {
        let (mut cache, now) = (cache_of(8), Instant::now());
        let key = |address: u128| RequestKey {
            source: (std::net::Ipv6Addr::from_bits(0x2001_0db8 << 96 | address), 5_000).into(),
            hash: 0,
        };
        assert!((0..4).all(|address| cache.begin(key(address), true, now)));
        assert!(!cache.begin(key(4), true, now));
        assert!(cache.begin(key(1 << 64), true, now), "another network");
    }
}
