//! The client's address behind trusted proxies, by `Forwarded` (RFC 7239) and `X-Forwarded-For`.
//!
//! Each proxy appends the address of its own peer, so only the end of a list is proven: the client
//! is the last entry that is no trusted proxy. What precedes it was sent by the client itself.
//!
//! | the last entry that is no trusted proxy | client |
//! |---|---|
//! | an address, with or without a port | this address |
//! | `unknown`, an obfuscated identifier, anything else | unknown |
//! | in a `Forwarded` that does not parse | unknown |
//! | none, because all entries are trusted | the first entry |
//! | different addresses in the two headers | unknown |

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::bytes::{decimal, list, trim_start};
use super::head::Head;

/// The addresses of proxies whose headers are believed.
#[derive(Clone, Debug)]
pub struct TrustedProxies {
    networks: Vec<Network>,
    has_unix: bool,
}

/// The client that the headers of a request name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForwardedClient {
    /// There is no such header.
    Absent,
    /// The headers name none, or contradict one another.
    Unknown,
    /// Its address; port 0 if it is not named.
    Address(SocketAddr),
}

/// An entry that is no address, no network and not `unix:`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InvalidProxy(String);

impl fmt::Display for InvalidProxy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(entry) = self;
        write!(formatter, "trusted_proxies: {entry:?} is not like 10.0.0.1, 10.0.0.0/8 or unix:")
    }
}

impl std::error::Error for InvalidProxy {}

impl TrustedProxies {
    /// The entry for all processes that connect to a Unix socket.
    const UNIX: &str = "unix:";

    /// Reads addresses, networks such as `10.0.0.0/8`, and `unix:`. `None` if there are none.
    ///
    /// # Errors
    /// [`InvalidProxy`] with the first other entry. A network has no bits beyond its prefix.
    pub fn new(entries: &[String]) -> Result<Option<Self>, InvalidProxy> {
        let networks = entries.iter().filter(|entry| *entry != Self::UNIX);
        let networks = networks
            .map(|entry| Network::parse(entry).ok_or_else(|| InvalidProxy(entry.clone())))
            .collect::<Result<Vec<_>, _>>()?;
        let has_unix = networks.len() < entries.len();
        Ok((!entries.is_empty()).then_some(Self { networks, has_unix }))
    }

    /// Whether the proxy with this address is trusted.
    #[must_use]
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(address))
    }

    /// Whether the processes that connect to a Unix socket are trusted.
    #[must_use]
    pub fn trusts_unix(&self) -> bool {
        self.has_unix
    }

    /// The client that a trusted proxy names.
    #[must_use]
    pub fn client(&self, head: &Head<'_>) -> ForwardedClient {
        let (mut standard, mut common) = (Chain::default(), Chain::default());
        for (name, value) in head.headers() {
            if name.eq_ignore_ascii_case(b"Forwarded") {
                if standard.push_forwarded(value, self).is_none() {
                    standard.push(None, self);
                }
            } else if name.eq_ignore_ascii_case(b"X-Forwarded-For") {
                for entry in list(value).filter(|entry| !entry.is_empty()) {
                    common.push(parse_node(entry), self);
                }
            }
        }
        match (standard.client(), common.client()) {
            (client, ForwardedClient::Absent) | (ForwardedClient::Absent, client) => client,
            (ForwardedClient::Address(one), ForwardedClient::Address(other))
                if one.ip() == other.ip() =>
            {
                ForwardedClient::Address(if one.port() == 0 { other } else { one })
            }
            _ => ForwardedClient::Unknown,
        }
    }
}

/// The scheme and the host of an address, where a proxy names them.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct ForwardedOrigin<'a> {
    pub(super) scheme: Option<&'a [u8]>,
    pub(super) host: Option<&'a [u8]>,
}

impl TrustedProxies {
    /// The scheme and the host by which the client of a trusted proxy has addressed the server: of
    /// `Forwarded` in the entry that names the client, else the last ones of `X-Forwarded-Proto`
    /// and `X-Forwarded-Host`.
    pub(super) fn origin<'a>(&self, head: &Head<'a>) -> ForwardedOrigin<'a> {
        let (mut first, mut last) = (None, None);
        for value in head.headers().named("forwarded") {
            let is_read = read_elements(value, |element| {
                first.get_or_insert(element);
                let node = element.node.and_then(parse_node);
                if !node.is_some_and(|address| self.trusts(address.ip())) {
                    last = Some(element);
                }
            });
            if is_read.is_none() {
                last = Some(Element::default());
            }
        }
        let Element { scheme, host, .. } = last.or(first).unwrap_or_default();
        let common = |name| {
            let entries = head.headers().named(name).flat_map(list);
            entries.filter(|entry| !entry.is_empty()).last()
        };
        ForwardedOrigin {
            scheme: scheme.or_else(|| common("x-forwarded-proto")),
            host: host.or_else(|| common("x-forwarded-host")),
        }
    }
}

/// The entries of one header so far.
#[derive(Default)]
struct Chain {
    first: Option<ForwardedClient>,
    /// The last entry that is no trusted proxy.
    last: Option<ForwardedClient>,
}

impl Chain {
    fn client(&self) -> ForwardedClient {
        self.last.or(self.first).unwrap_or(ForwardedClient::Absent)
    }

    /// Adds an entry; `None` names no address.
    fn push(&mut self, node: Option<SocketAddr>, proxies: &TrustedProxies) {
        let client = node.map_or(ForwardedClient::Unknown, ForwardedClient::Address);
        self.first.get_or_insert(client);
        if !node.is_some_and(|address| proxies.trusts(address.ip())) {
            self.last = Some(client);
        }
    }

    /// Adds the elements of a `Forwarded`. `None` if it does not parse.
    fn push_forwarded(&mut self, value: &[u8], proxies: &TrustedProxies) -> Option<()> {
        read_elements(value, |element| self.push(element.node.and_then(parse_node), proxies))
    }
}

/// Reads the elements of a `Forwarded` (RFC 7239, section 4). `None` if it does not parse.
fn read_elements<'a>(value: &'a [u8], mut take: impl FnMut(Element<'a>)) -> Option<()> {
    let mut rest = value;
    loop {
        let (element, after) = read_element(rest)?;
        element.into_iter().for_each(&mut take);
        match after {
            [] => return Some(()),
            [_comma, next @ ..] => rest = next,
        }
    }
}

/// An element of a `Forwarded` header: the texts of its `for`, `proto` and `host`, without quotes.
#[derive(Clone, Copy, Default)]
struct Element<'a> {
    node: Option<&'a [u8]>,
    scheme: Option<&'a [u8]>,
    host: Option<&'a [u8]>,
}

/// Reads `name=value;name=value` up to a comma or the end, which `rest` then starts with. `None`
/// for an empty element. Clients also write white space around semicolons, and addresses with a
/// port without quotes.
fn read_element(text: &[u8]) -> Option<(Option<Element<'_>>, &[u8])> {
    let mut element = Element::default();
    let mut rest = trim_start(text);
    if matches!(rest, [] | [b',', ..]) {
        return Some((None, rest));
    }
    loop {
        let equals = rest.iter().position(|byte| matches!(byte, b'=' | b',' | b';' | b'"'))?;
        let (name, after) = rest.split_at(equals);
        let (value, after) = read_value(after.strip_prefix(b"=")?)?;
        let Element { node, scheme, host } = &mut element;
        let known = [(&b"for"[..], node), (b"proto", scheme), (b"host", host)];
        let field = known.into_iter().find(|(known, _)| name.eq_ignore_ascii_case(known));
        if field.is_some_and(|(_, field)| field.replace(value).is_some()) {
            return None;
        }
        rest = trim_start(after);
        match rest {
            [b';', next @ ..] => rest = trim_start(next),
            [] | [b',', ..] => return Some((Some(element), rest)),
            _ => return None,
        }
    }
}

/// Reads a token or a quoted string, whose escapes stay: no address has any.
fn read_value(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let Some(quoted) = text.strip_prefix(b"\"") else {
        let is_end = |byte: &u8| matches!(byte, b',' | b';' | b'"' | b' ' | b'\t');
        return text.split_at_checked(text.iter().position(is_end).unwrap_or(text.len()));
    };
    let mut is_escaped = false;
    let end = quoted.iter().position(|byte| {
        let is_end = *byte == b'"' && !is_escaped;
        is_escaped = *byte == b'\\' && !is_escaped;
        is_end
    })?;
    Some((quoted.get(..end)?, quoted.get(end + 1..)?))
}

/// Reads `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1`, `[2001:db8::1]` or `[2001:db8::1]:80`. An
/// obfuscated port is none (RFC 7239, section 6).
fn parse_node(text: &[u8]) -> Option<SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(SocketAddr::new(address.to_canonical(), 0));
    }
    let (address, port) = match text.strip_prefix('[') {
        Some(bracketed) => {
            let (address, after) = bracketed.split_once(']')?;
            let port = if after.is_empty() { None } else { Some(after.strip_prefix(':')?) };
            (IpAddr::V6(address.parse::<Ipv6Addr>().ok()?), port)
        }
        None => {
            let (address, port) = text.split_once(':')?;
            (IpAddr::V4(address.parse::<Ipv4Addr>().ok()?), Some(port))
        }
    };
    let port = match port {
        None => 0,
        Some(obfuscated) if obfuscated.starts_with('_') => 0,
        Some(digits) => u16::try_from(decimal(digits.as_bytes())?).ok()?,
    };
    Some(SocketAddr::new(address.to_canonical(), port))
}

/// The addresses that share the first bits of one.
#[derive(Clone, Copy, Debug)]
struct Network {
    address: IpAddr,
    prefix_bits: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(decimal(bits.as_bytes())?)),
            None => (text, None),
        };
        let address = address.parse::<IpAddr>().ok()?;
        let width = if address.is_ipv4() { 32 } else { 128 };
        let prefix_bits = bits.map_or(Some(width), |bits| u32::try_from(bits).ok())?;
        let network = Self { address, prefix_bits };
        let has_no_more = || suffix(address, prefix_bits) == 0;
        (prefix_bits <= width && has_no_more()).then_some(network)
    }

    fn contains(&self, address: IpAddr) -> bool {
        address.is_ipv4() == self.address.is_ipv4()
            && prefix(address, self.prefix_bits) == prefix(self.address, self.prefix_bits)
    }
}

/// The first bits of an address.
fn prefix(address: IpAddr, bits: u32) -> u128 {
    aligned(address) & !u128::MAX.checked_shr(bits).unwrap_or(0)
}

/// The bits of an address after the first ones.
fn suffix(address: IpAddr, bits: u32) -> u128 {
    aligned(address) & u128::MAX.checked_shr(bits).unwrap_or(0)
}

/// The bits of an address, the first one highest.
fn aligned(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u128::from(address.to_bits()) << 96,
        IpAddr::V6(address) => address.to_bits(),
    }
}
