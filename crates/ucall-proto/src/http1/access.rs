//! Access rules for browsers: which `Host` and `Origin` a request may have.
//!
//! A web page must not call a server on the user's machine, neither from its own origin nor by DNS
//! rebinding, where the attacker's name resolves to 127.0.0.1 and the page becomes "same origin".
//! The `Host` header reveals rebinding, because it has the attacker's name. The `Origin` header
//! reveals a foreign page.
//!
//! | bound to  | `Origin` | `Host` must be                                    |
//! |-----------|----------|---------------------------------------------------|
//! | loopback  | any      | localhost, 127.0.0.1, [::1], or in `allowed_hosts` |
//! | elsewhere | none     | anything                                          |
//! | elsewhere | some     | an IP literal, or in `allowed_hosts`              |
//!
//! A Unix socket counts as elsewhere: browsers do not reach it, but a proxy may forward their
//! requests.
//!
//! The `Origin` must also be the server's own (scheme, host and port), or be in `allow_origins`.

use std::fmt;

use super::bytes::{decimal, starts_with_ignoring_case};
use super::error::HttpError;
use super::host::Authority;

/// The access rules of one server.
#[derive(Clone, Debug, Default)]
pub struct AccessRules {
    is_loopback: bool,
    /// Lower case, without ports, IPv6 in brackets.
    allowed_hosts: Vec<String>,
    allow_origins: Vec<String>,
    allows_any_origin: bool,
}

/// An allowed `Origin` other than the server's own, which the reply names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllowedOrigin<'a>(&'a [u8]);

impl<'a> AllowedOrigin<'a> {
    /// An origin that [`AccessRules::check`] has allowed, stored until its reply is written.
    pub(crate) fn new(origin: &'a [u8]) -> Self {
        Self(origin)
    }

    /// The value of the `Origin` header.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }
}

/// An entry of `allowed_hosts` or `allow_origins` that can never match. Reported when the server
/// starts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidAccessRule {
    /// Not a host name or address.
    Host(String),
    /// Neither `scheme://host` with an optional port, nor `null`, nor `*`.
    Origin(String),
}

impl fmt::Display for InvalidAccessRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(entry) => {
                write!(formatter, "allowed_hosts: {entry:?} is not a host name or address")
            }
            Self::Origin(entry) => {
                write!(formatter, "allow_origins: {entry:?} is not like https://example.com")
            }
        }
    }
}

impl std::error::Error for InvalidAccessRule {}

impl AccessRules {
    /// Rules for a server that is bound to a loopback address, or not.
    ///
    /// `allowed_hosts` are names or addresses; a port is ignored. `allow_origins` are origins as
    /// browsers write them, `https://example.com`, or `null`, or `*` for all.
    ///
    /// # Errors
    /// [`InvalidAccessRule`] with the first entry that could never match.
    pub fn new(
        is_loopback: bool,
        allowed_hosts: &[String],
        allow_origins: &[String],
    ) -> Result<Self, InvalidAccessRule> {
        Ok(Self {
            is_loopback,
            allowed_hosts: allowed_hosts
                .iter()
                .map(|it| normal_host(it))
                .collect::<Result<_, _>>()?,
            allow_origins: allow_origins
                .iter()
                .map(|it| normal_origin(it))
                .collect::<Result<_, _>>()?,
            allows_any_origin: allow_origins.iter().any(|it| it == "*"),
        })
    }

    /// Sets whether the server was bound to a loopback address.
    pub fn bind(&mut self, is_loopback: bool) {
        self.is_loopback = is_loopback;
    }

    /// Whether a request without an `Origin` may be served, given whether its host is a common name
    /// of this machine. On `false`, call [`AccessRules::check`].
    #[must_use]
    #[inline]
    pub fn allows_unchecked(&self, names_loopback: bool) -> bool {
        names_loopback || !self.is_loopback
    }

    /// Whether a request with this `Host` and `Origin` may be served, on whatever path.
    /// `Some` is an origin that the reply must name in its CORS headers.
    ///
    /// # Errors
    /// [`HttpError::HostForbidden`] and [`HttpError::OriginForbidden`], both 403.
    pub fn check<'a>(
        &self,
        host: Option<&[u8]>,
        origin: Option<&'a [u8]>,
        is_tls: bool,
    ) -> Result<Option<AllowedOrigin<'a>>, HttpError> {
        if !self.is_loopback && origin.is_none() {
            return Ok(None);
        }
        // Without a Host (HTTP/1.0) a rebound name cannot be detected. All browsers and clients in
        // use send one, so such a request is refused.
        let named = host.ok_or(HttpError::HostForbidden)?;
        let own_origin = |origin: &[u8]| origin.strip_prefix(scheme(is_tls)) == Some(named);
        if self.is_loopback && names_loopback(named) && origin.is_some_and(own_origin) {
            return Ok(None);
        }
        let host = Authority::split(named);
        if !host.has_valid_port() || !self.allows_host(&host) {
            return Err(HttpError::HostForbidden);
        }
        match origin {
            Some(origin) if !is_own_origin(origin, &host, is_tls) => {
                if !self.allows_origin(origin) {
                    return Err(HttpError::OriginForbidden);
                }
                Ok(Some(AllowedOrigin(origin)))
            }
            _ => Ok(None),
        }
    }

    fn allows_host(&self, host: &Authority<'_>) -> bool {
        let is_known =
            if self.is_loopback { is_loopback_name(host.host) } else { host.is_ip_literal() };
        is_known || contains_ignoring_case(&self.allowed_hosts, host.host)
    }

    fn allows_origin(&self, origin: &[u8]) -> bool {
        self.allows_any_origin || contains_ignoring_case(&self.allow_origins, origin)
    }
}

/// Whether this is a host that nearly every local call names, with a port or without.
pub(super) fn names_loopback(host: &[u8]) -> bool {
    let port = host.strip_prefix(b"127.0.0.1").or_else(|| host.strip_prefix(b"localhost"));
    match port {
        Some([]) => true,
        Some([b':', digits @ ..]) => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

fn is_loopback_name(host: &[u8]) -> bool {
    host == b"127.0.0.1" || host == b"[::1]" || host.eq_ignore_ascii_case(b"localhost")
}

fn scheme(is_tls: bool) -> &'static [u8] {
    if is_tls { b"https://" } else { b"http://" }
}

/// Whether `origin` is the scheme, host and port of the request itself. `null` is not.
fn is_own_origin(origin: &[u8], host: &Authority<'_>, is_tls: bool) -> bool {
    let scheme = scheme(is_tls);
    if !starts_with_ignoring_case(origin, scheme) {
        return false;
    }
    let origin_authority = Authority::split(origin.get(scheme.len()..).unwrap_or_default());
    let origin_port = origin_authority.port_or_default(is_tls);
    origin_authority.host.eq_ignore_ascii_case(host.host)
        && origin_port.is_some()
        && origin_port == host.port_or_default(is_tls)
}

fn contains_ignoring_case(entries: &[String], text: &[u8]) -> bool {
    entries.iter().any(|entry| entry.as_bytes().eq_ignore_ascii_case(text))
}

fn normal_host(entry: &str) -> Result<String, InvalidAccessRule> {
    let text = entry.to_ascii_lowercase();
    // An IPv6 address without brackets has colons of its own.
    let text = if text.matches(':').count() > 1 && !text.starts_with('[') {
        format!("[{text}]")
    } else {
        text
    };
    let authority = Authority::split(text.as_bytes());
    // Wildcards are in the grammar of a name, and would match nothing.
    let is_valid = authority.is_valid() && !text.contains('*');
    let host = std::str::from_utf8(authority.host).ok().filter(|_| is_valid);
    host.map(str::to_owned).ok_or_else(|| InvalidAccessRule::Host(entry.to_owned()))
}

fn normal_origin(entry: &str) -> Result<String, InvalidAccessRule> {
    if matches!(entry, "*" | "null") {
        return Ok(entry.to_owned());
    }
    let invalid = || InvalidAccessRule::Origin(entry.to_owned());
    let text = entry.to_ascii_lowercase();
    let (scheme, rest) = text.split_once("://").ok_or_else(invalid)?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let authority = Authority::split(rest.as_bytes());
    if scheme.is_empty() || text.contains('*') || !authority.is_valid() {
        return Err(invalid());
    }
    // Browsers leave out the port that the scheme implies.
    let implied = [("http", 80), ("https", 443)].iter().find(|(name, _)| *name == scheme);
    let port = authority.port.and_then(decimal);
    let host = std::str::from_utf8(authority.host).map_err(|_| invalid())?;
    Ok(match port {
        Some(port) if implied.is_none_or(|(_, default)| *default != port) => {
            format!("{scheme}://{host}:{port}")
        }
        _ => format!("{scheme}://{host}"),
    })
}
