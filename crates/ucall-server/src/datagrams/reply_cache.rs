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
//! pauses between two retransmissions of a client, so it ends after the client has given up. One
//! address may use half of the memory, and so may all addresses without a valid cookie together:
//! a sender that forges addresses cannot shut out the others.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use hashbrown::HashMap;

/// What an entry takes beside its reply, in the tables.
const ENTRY_BYTES: usize = 160;

/// Names a request: the address that it came from, and a hash of it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RequestKey {
    pub(crate) source: SocketAddr,
    pub(crate) hash: u64,
}

/// What to do with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Found<'a> {
    /// Run it, then call [`ReplyCache::finish`].
    New,
    UnderWay,
    Replied(&'a [u8]),
    /// There is no room.
    Full,
    /// There is no room for senders without a cookie.
    FullWithoutCookie,
}

#[derive(Debug)]
struct Entry {
    /// `None` while the calls run.
    reply: Option<Box<[u8]>>,
    has_cookie: bool,
    expires_at: Instant,
}

/// The replies of one worker.
#[derive(Debug)]
pub(crate) struct ReplyCache {
    entries: HashMap<RequestKey, Entry>,
    /// Each entry once, with a time at which it may have expired.
    expirations: VecDeque<(Instant, RequestKey)>,
    bytes: usize,
    bytes_without_cookie: usize,
    bytes_by_address: HashMap<IpAddr, usize>,
    bytes_max: usize,
    reply_bytes_max: usize,
    lifetime: Duration,
}

impl ReplyCache {
    pub(crate) fn new(bytes_max: usize, reply_bytes_max: usize, lifetime: Duration) -> Self {
        Self {
            entries: HashMap::new(),
            expirations: VecDeque::new(),
            bytes: 0,
            bytes_without_cookie: 0,
            bytes_by_address: HashMap::new(),
            bytes_max,
            reply_bytes_max,
            lifetime,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether a request is a repeat.
    pub(crate) fn contains(&self, key: &RequestKey) -> bool {
        self.entries.contains_key(key)
    }

    /// Looks a request up. A new one takes room for the longest reply until it is answered.
    pub(crate) fn begin(&mut self, key: RequestKey, has_cookie: bool, now: Instant) -> Found<'_> {
        self.expire(now);
        let expires_at = now + self.lifetime;
        let needed = ENTRY_BYTES + self.reply_bytes_max;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.expires_at = expires_at;
        } else if self.bytes + needed > self.bytes_max || self.is_past_quota(key, needed) {
            return Found::Full;
        } else if !has_cookie && self.bytes_without_cookie + needed > self.bytes_max / 2 {
            return Found::FullWithoutCookie;
        } else {
            self.entries.insert(key, Entry { reply: None, has_cookie, expires_at });
            self.expirations.push_back((expires_at, key));
            self.count(key, has_cookie, needed as isize);
            return Found::New;
        }
        match self.entries.get(&key).and_then(|entry| entry.reply.as_deref()) {
            Some(reply) => Found::Replied(reply),
            None => Found::UnderWay,
        }
    }

    fn is_past_quota(&self, key: RequestKey, needed: usize) -> bool {
        let used = self.bytes_by_address.get(&key.source.ip()).copied().unwrap_or(0);
        used + needed > self.bytes_max / 2
    }

    /// Stores the reply to a request that was new. It may be empty, and is at most as long as the
    /// longest.
    pub(crate) fn finish(&mut self, key: RequestKey, reply: &[u8], now: Instant) {
        let expires_at = now + self.lifetime;
        let Some(entry) = self.entries.get_mut(&key) else { return };
        if entry.reply.is_none() {
            (entry.reply, entry.expires_at) = (Some(reply.into()), expires_at);
            let has_cookie = entry.has_cookie;
            self.count(key, has_cookie, reply.len() as isize - self.reply_bytes_max as isize);
        }
    }

    /// Removes expired entries.
    pub(crate) fn expire(&mut self, now: Instant) {
        while let Some(&(at, key)) = self.expirations.front()
            && at <= now
        {
            self.expirations.pop_front();
            let Some(entry) = self.entries.get(&key) else { continue };
            let Some(reply) = entry.reply.as_ref().filter(|_| entry.expires_at <= now) else {
                let later = entry.expires_at.max(now + self.lifetime / 2);
                self.expirations.push_back((later, key));
                continue;
            };
            let bytes = (ENTRY_BYTES + reply.len()) as isize;
            let has_cookie = entry.has_cookie;
            self.entries.remove(&key);
            self.count(key, has_cookie, -bytes);
        }
        if self.is_empty() {
            // Memory returns to the system after a flood.
            self.entries.shrink_to(0);
            self.bytes_by_address.shrink_to(0);
            self.expirations.shrink_to(1024);
        }
    }

    fn count(&mut self, key: RequestKey, has_cookie: bool, change: isize) {
        self.bytes = self.bytes.saturating_add_signed(change);
        if !has_cookie {
            self.bytes_without_cookie = self.bytes_without_cookie.saturating_add_signed(change);
        }
        let of_address = self.bytes_by_address.entry(key.source.ip()).or_insert(0);
        *of_address = of_address.saturating_add_signed(change);
        if *of_address == 0 {
            self.bytes_by_address.remove(&key.source.ip());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: Duration = Duration::from_secs(10);
    const REPLY_BYTES_MAX: usize = 1_000;

    fn cache(bytes_max: usize) -> ReplyCache {
        ReplyCache::new(bytes_max, REPLY_BYTES_MAX, LIFETIME)
    }

    fn key(address: u8, hash: u64) -> RequestKey {
        RequestKey { source: ([192, 0, 2, address], 5_000).into(), hash }
    }

    #[test]
    fn a_repeat_gets_the_reply_of_the_first_copy() {
        let (mut cache, now) = (cache(100_000), Instant::now());
        assert_eq!(cache.begin(key(1, 1), false, now), Found::New);
        assert_eq!(cache.begin(key(1, 1), false, now), Found::UnderWay);
        assert_eq!(cache.begin(key(2, 1), false, now), Found::New, "another address");
        let other_port = RequestKey { source: ([192, 0, 2, 1], 5_001).into(), hash: 1 };
        assert_eq!(cache.begin(other_port, false, now), Found::New);
        cache.finish(key(1, 1), b"reply", now);
        assert_eq!(cache.begin(key(1, 1), false, now), Found::Replied(b"reply"));
        assert_eq!(cache.begin(key(1, 2), false, now), Found::New, "another request");
        // A second reply does not replace the first.
        cache.finish(key(1, 1), b"other", now);
        assert_eq!(cache.begin(key(1, 1), false, now), Found::Replied(b"reply"));
    }

    #[test]
    fn an_entry_lives_until_no_copy_has_come_for_its_lifetime() {
        let (mut cache, start) = (cache(100_000), Instant::now());
        assert_eq!(cache.begin(key(1, 1), false, start), Found::New);
        // A call that runs does not expire.
        assert_eq!(cache.begin(key(1, 1), false, start + LIFETIME * 5), Found::UnderWay);
        cache.finish(key(1, 1), b"reply", start + LIFETIME * 5);
        for copies in 1..30 {
            let now = start + LIFETIME * 5 + (LIFETIME - Duration::from_millis(1)) * copies;
            assert_eq!(cache.begin(key(1, 1), false, now), Found::Replied(b"reply"), "{copies}");
        }
        let later = start + LIFETIME * 60;
        cache.expire(later);
        cache.expire(later + LIFETIME);
        assert!(cache.is_empty() && cache.expirations.is_empty());
        assert_eq!((cache.bytes, cache.bytes_without_cookie), (0, 0));
        assert!(cache.bytes_by_address.is_empty());
    }

    #[test]
    fn a_full_cache_refuses_and_forgets_nothing() {
        let needed = ENTRY_BYTES + REPLY_BYTES_MAX;
        let (mut cache, now) = (cache(8 * needed), Instant::now());
        for number in 0..4 {
            assert_eq!(cache.begin(key(1, number), true, now), Found::New);
        }
        assert_eq!(cache.begin(key(1, 9), true, now), Found::Full, "the quota of an address");
        for number in 0..4 {
            assert_eq!(cache.begin(key(2, number), true, now), Found::New);
        }
        assert_eq!(cache.begin(key(3, 0), true, now), Found::Full);
        assert_eq!(cache.begin(key(1, 0), true, now), Found::UnderWay);
        // Short replies make room.
        (0..4).for_each(|number| cache.finish(key(1, number), b"", now));
        assert_eq!(cache.begin(key(3, 0), true, now), Found::New);
    }

    #[test]
    fn senders_without_a_cookie_share_half() {
        let needed = ENTRY_BYTES + REPLY_BYTES_MAX;
        let (mut cache, now) = (cache(8 * needed), Instant::now());
        for address in 0..4 {
            assert_eq!(cache.begin(key(address, 0), false, now), Found::New);
        }
        assert_eq!(cache.begin(key(9, 0), false, now), Found::FullWithoutCookie);
        assert_eq!(cache.begin(key(9, 0), true, now), Found::New);
    }
}
