//! Cookies prove that a sender of datagrams receives at the address that it sends from.
//!
//! A cookie is a message authentication code over the address and the time (RFC 7873, RFC 9018), so
//! the server stores nothing, and all workers with the same secret accept it. In hexadecimal it is
//!
//! | bytes | content |
//! |---|---|
//! | 4 | the second in which it was made, modulo 2^32 |
//! | 12 | the first bytes of the HMAC-SHA256 of that and the IP address |

use std::fmt;
use std::net::IpAddr;

use aws_lc_rs::{constant_time, hmac, rand};

const TIME_BYTES: usize = 4;
const CODE_BYTES: usize = 12;
/// How long a cookie is valid (RFC 9018, 4.3).
const LIFETIME_S: i32 = 3600;
/// How far the clocks of servers with one secret may differ.
const CLOCK_SKEW_S: i32 = 300;

/// What cookies are made with.
#[derive(Clone)]
pub struct CookieKey(hmac::Key);

impl CookieKey {
    /// The length of a secret.
    pub const SECRET_BYTES: usize = 32;
    /// The length of a cookie.
    pub const COOKIE_BYTES: usize = 2 * (TIME_BYTES + CODE_BYTES);

    /// A key that is derived from a secret, which may have other uses.
    pub fn new(secret: &[u8; Self::SECRET_BYTES]) -> Self {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let derived = hmac::sign(&secret, b"ucall cookie");
        Self(hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref()))
    }

    /// A random key. `None` if the system provides no randomness.
    pub fn random() -> Option<Self> {
        let mut secret = [0; Self::SECRET_BYTES];
        rand::fill(&mut secret).ok()?;
        Some(Self::new(&secret))
    }

    /// The cookie of an address, made at this Unix time.
    pub fn cookie(&self, address: IpAddr, now_s: u64) -> String {
        let time = (now_s as u32).to_be_bytes();
        let bytes = [time.as_slice(), &self.code(address, time)].concat();
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether it is a cookie of this address that has not expired.
    pub fn is_valid(&self, cookie: &[u8], address: IpAddr, now_s: u64) -> bool {
        let Some(bytes) = from_hex(cookie) else { return false };
        let Some((time, code)) = bytes.split_first_chunk::<TIME_BYTES>() else { return false };
        // The difference of sequence numbers (RFC 1982).
        let age = (now_s as u32).wrapping_sub(u32::from_be_bytes(*time)) as i32;
        (-CLOCK_SKEW_S..=LIFETIME_S).contains(&age)
            && constant_time::verify_slices_are_equal(code, &self.code(address, *time)).is_ok()
    }

    fn code(&self, address: IpAddr, time: [u8; TIME_BYTES]) -> [u8; CODE_BYTES] {
        let mut context = hmac::Context::with_key(&self.0);
        context.update(&time);
        match address.to_canonical() {
            IpAddr::V4(address) => context.update(&address.octets()),
            IpAddr::V6(address) => context.update(&address.octets()),
        }
        let mut code = [0; CODE_BYTES];
        code.iter_mut().zip(context.sign().as_ref()).for_each(|(to, from)| *to = *from);
        code
    }
}

impl fmt::Debug for CookieKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("CookieKey")
    }
}

fn from_hex(text: &[u8]) -> Option<[u8; TIME_BYTES + CODE_BYTES]> {
    if text.len() != CookieKey::COOKIE_BYTES {
        return None;
    }
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; TIME_BYTES + CODE_BYTES];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    const NOW_S: u64 = 1_800_000_000;
    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

    fn key() -> CookieKey {
        CookieKey::new(&[7; CookieKey::SECRET_BYTES])
    }

    #[test]
    fn a_cookie_is_valid_for_its_address_for_an_hour() {
        let cookie = key().cookie(ADDRESS, NOW_S);
        let is_valid = |address, now_s| key().is_valid(cookie.as_bytes(), address, now_s);
        for (now_s, expected) in [
            (NOW_S, true),
            (NOW_S + 3600, true),
            (NOW_S + 3601, false),
            (NOW_S - 300, true),
            (NOW_S - 301, false),
        ] {
            assert_eq!(is_valid(ADDRESS, now_s), expected, "{now_s}");
        }
        assert!(!is_valid(Ipv4Addr::new(192, 0, 2, 2).into(), NOW_S));
        assert!(is_valid(Ipv4Addr::new(192, 0, 2, 1).to_ipv6_mapped().into(), NOW_S));
        assert!(!is_valid(Ipv6Addr::LOCALHOST.into(), NOW_S));
        let other = CookieKey::new(&[8; CookieKey::SECRET_BYTES]);
        assert!(!other.is_valid(cookie.as_bytes(), ADDRESS, NOW_S));
        assert_ne!(
            CookieKey::random().unwrap().cookie(ADDRESS, NOW_S),
            CookieKey::random().unwrap().cookie(ADDRESS, NOW_S)
        );
    }

    #[test]
    fn the_time_wraps_around() {
        let end = u64::from(u32::MAX);
        let cookie = key().cookie(ADDRESS, end);
        assert!(key().is_valid(cookie.as_bytes(), ADDRESS, end + 60));
        assert!(!key().is_valid(cookie.as_bytes(), ADDRESS, end + 3700));
    }

    #[test]
    fn a_cookie_with_any_other_byte_is_invalid() {
        let cookie = key().cookie(ADDRESS, NOW_S).into_bytes();
        for index in 0..cookie.len() {
            for byte in [b'0', b'1', b'f', b'F', b'g', b'"', 0, 0xff] {
                let mut other = cookie.clone();
                other[index] = byte;
                assert_eq!(key().is_valid(&other, ADDRESS, NOW_S), other == cookie);
            }
        }
        for len in 0..cookie.len() {
            assert!(!key().is_valid(&cookie[..len], ADDRESS, NOW_S), "{len} bytes");
        }
    }

    proptest! {
        #[test]
        fn no_guess_is_valid(guess in prop::collection::vec(any::<u8>(), 0..40)) {
            prop_assert!(!key().is_valid(&guess, ADDRESS, NOW_S));
        }

        #[test]
        fn no_hexadecimal_guess_is_valid(guess in "[0-9a-f]{32}") {
            prop_assert!(!key().is_valid(guess.as_bytes(), ADDRESS, NOW_S));
        }
    }
}
