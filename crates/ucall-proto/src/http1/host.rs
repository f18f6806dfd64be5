//! `host [":" port]`, the shape of a `Host` header and of the authority in an address
//! (RFC 3986, section 3.2; user information is never allowed, RFC 9110, section 4.2.4).

use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::bytes::{decimal, is_host, is_plain_host};

/// An authority cut in two. Neither part is checked before [`Authority::is_valid`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Authority<'a> {
    /// A name or an address; IPv6 with its brackets.
    pub host: &'a [u8],
    /// What follows the colon, when there is one.
    pub port: Option<&'a [u8]>,
}

/// Whether `text` is a valid [`Authority`]; quick for a plain name or IPv4 address and a port.
#[inline]
pub(super) fn is_authority(text: &[u8]) -> bool {
    let name_length = text.iter().position(|&byte| !is_plain_host(byte)).unwrap_or(text.len());
    let is_plain = match text.get(name_length..) {
        Some([]) => true,
        // A port of at most four digits is below 65,536.
        Some([b':', port @ ..]) => port.len() < 5 && port.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    (is_plain && name_length > 0) || is_authority_general(text)
}

#[cold]
fn is_authority_general(text: &[u8]) -> bool {
    Authority::split(text).is_valid()
}

impl<'a> Authority<'a> {
    pub(super) fn split(text: &'a [u8]) -> Self {
        // Shorter than what a vector search is for.
        let position = |byte, text: &[u8]| text.iter().position(|&it| it == byte);
        let from = if text.starts_with(b"[") { position(b']', text).unwrap_or(0) } else { 0 };
        let colon = position(b':', text.get(from..).unwrap_or_default()).map(|at| from + at);
        match colon.and_then(|at| text.split_at_checked(at)) {
            Some((host, port)) => Self { host, port: port.get(1..) },
            None => Self { host: text, port: None },
        }
    }

    /// Whether both parts are in the grammar.
    pub(super) fn is_valid(&self) -> bool {
        self.has_valid_port() && (is_name(self.host) || is_ipv6(self.host))
    }

    /// The port, or the default port of the scheme.
    pub(super) fn port_or_default(&self, is_tls: bool) -> Option<u64> {
        match self.port {
            None | Some(b"") => Some(if is_tls { 443 } else { 80 }),
            Some(port) => decimal(port),
        }
    }

    /// Whether the host is an address, which no name service can point elsewhere.
    pub(super) fn is_ip_literal(&self) -> bool {
        is_ipv6(self.host) || parses::<Ipv4Addr>(self.host)
    }

    /// Whether there is no port, an empty one, or a number of 16 bits.
    pub(super) fn has_valid_port(&self) -> bool {
        match self.port {
            // An empty port is in the grammar: port = *DIGIT.
            None | Some(b"") => true,
            Some(port) => decimal(port).is_some_and(|port| port <= u64::from(u16::MAX)),
        }
    }
}

#[inline]
fn is_name(host: &[u8]) -> bool {
    !host.is_empty() && host.iter().all(|&byte| is_host(byte)) && is_percent_encoded(host)
}

fn is_percent_encoded(host: &[u8]) -> bool {
    // The piece before the first percent sign is free; each later one starts with two digits.
    host.split(|&byte| byte == b'%')
        .skip(1)
        .all(|piece| matches!(piece, [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit()))
}

fn is_ipv6(host: &[u8]) -> bool {
    let inside = host.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]"));
    inside.is_some_and(parses::<Ipv6Addr>)
}

fn parses<T: FromStr>(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<T>().is_ok())
}
