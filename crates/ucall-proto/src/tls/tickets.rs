//! Session tickets, which shorten a client's next handshake.
//!
//! A ticket contains the whole session, encrypted, so the server stores nothing. The key is derived
//! from a secret and the hour: processes with the same secret decrypt each other's tickets without
//! communication, and keys rotate by themselves. A ticket is
//!
//! | bytes | content |
//! |---|---|
//! | 4 | the number of the period in which it was encrypted |
//! | 12 | a nonce |
//! | the rest | the session under AES-256-GCM, and its tag |

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, rand};
use rustls::server::ProducesTickets;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};

/// How long one key seals. What it sealed is opened for as long again.
const PERIOD_SECONDS: u64 = 6 * 60 * 60;
const PERIOD_BYTES: usize = 4;
const KEY_BYTES: usize = 32;

/// What the keys of tickets are derived from.
#[derive(Clone)]
pub struct TicketSecret([u8; TicketSecret::BYTES]);

impl TicketSecret {
    /// How long it is.
    pub const BYTES: usize = 32;

    /// One that others know too.
    pub const fn new(secret: [u8; Self::BYTES]) -> Self {
        Self(secret)
    }

    /// A random secret. `None` if the system provides no randomness.
    pub fn random() -> Option<Self> {
        let mut secret = [0; Self::BYTES];
        rand::fill(&mut secret).ok()?;
        Some(Self(secret))
    }

    /// Seals and opens the tickets of servers that have this secret.
    pub(super) fn ticketer(&self) -> Arc<dyn ProducesTickets> {
        Arc::new(self.ticketer_by(Box::new(DefaultTimeProvider)))
    }

    fn ticketer_by(&self, clock: Box<dyn TimeProvider>) -> Ticketer {
        Ticketer { secret: hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&self.0), clock }
    }
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("TicketSecret")
    }
}

struct Ticketer {
    secret: hkdf::Prk,
    clock: Box<dyn TimeProvider>,
}

impl Ticketer {
    fn period(&self) -> Option<u32> {
        u32::try_from(self.clock.current_time()?.as_secs() / PERIOD_SECONDS).ok()
    }

    fn key(&self, period: u32) -> Option<LessSafeKey> {
        let mut key = [0; KEY_BYTES];
        let info = [b"ucall ticket".as_slice(), &period.to_be_bytes()];
        self.secret.expand(&info, &AES_256_GCM).ok()?.fill(&mut key).ok()?;
        UnboundKey::new(&AES_256_GCM, &key).ok().map(LessSafeKey::new)
    }
}

impl fmt::Debug for Ticketer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Ticketer")
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        2 * PERIOD_SECONDS as u32
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let period = self.period()?;
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).ok()?;
        let mut sealed = plain.to_vec();
        let nonce_used = Nonce::assume_unique_for_key(nonce);
        self.key(period)?.seal_in_place_append_tag(nonce_used, Aad::empty(), &mut sealed).ok()?;
        Some([period.to_be_bytes().as_slice(), &nonce, &sealed].concat())
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        let (sealed_in, rest) = ticket.split_first_chunk::<PERIOD_BYTES>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>()?;
        let (sealed_in, now) = (u32::from_be_bytes(*sealed_in), self.period()?);
        if sealed_in != now && sealed_in.checked_add(1) != Some(now) {
            return None;
        }
        let mut sealed = sealed.to_vec();
        let nonce = Nonce::assume_unique_for_key(*nonce);
        let plain = self.key(sealed_in)?.open_in_place(nonce, Aad::empty(), &mut sealed).ok()?;
        Some(plain.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use rustls::pki_types::UnixTime;

    use super::*;

    #[derive(Debug)]
    struct Clock(Arc<AtomicU64>);

    impl TimeProvider for Clock {
        fn current_time(&self) -> Option<UnixTime> {
            Some(UnixTime::since_unix_epoch(Duration::from_secs(self.0.load(Ordering::Relaxed))))
        }
    }

    fn at(hour: &Arc<AtomicU64>, secret: u8) -> Ticketer {
        TicketSecret::new([secret; 32]).ticketer_by(Box::new(Clock(hour.clone())))
    }

    #[test]
    fn only_servers_with_the_same_secret_open_a_ticket() {
        let time = Arc::new(AtomicU64::new(1_000_000_000));
        let ticket = at(&time, 1).encrypt(b"session").unwrap();
        assert_eq!(at(&time, 1).decrypt(&ticket).as_deref(), Some(b"session".as_slice()));
        assert_eq!(at(&time, 2).decrypt(&ticket), None);
    }

    #[test]
    fn a_ticket_opens_in_its_period_and_in_the_next() {
        let start = 1_000_000_000 / PERIOD_SECONDS * PERIOD_SECONDS;
        let time = Arc::new(AtomicU64::new(start));
        let ticketer = at(&time, 1);
        let ticket = ticketer.encrypt(b"session").unwrap();
        time.store(start + 2 * PERIOD_SECONDS - 1, Ordering::Relaxed);
        assert!(ticketer.decrypt(&ticket).is_some());
        time.store(start + 2 * PERIOD_SECONDS, Ordering::Relaxed);
        assert!(ticketer.decrypt(&ticket).is_none());
        time.store(start - 1, Ordering::Relaxed);
        assert!(ticketer.decrypt(&ticket).is_none());
    }

    #[test]
    fn a_truncated_or_modified_ticket_does_not_open() {
        let time = Arc::new(AtomicU64::new(1_000_000_000));
        let ticketer = at(&time, 1);
        let ticket = ticketer.encrypt(b"session").unwrap();
        for end in 0..ticket.len() {
            assert_eq!(ticketer.decrypt(&ticket[..end]), None, "{end}");
            let mut changed = ticket.clone();
            changed[end] ^= 1;
            assert_eq!(ticketer.decrypt(&changed), None, "{end}");
        }
    }
}
