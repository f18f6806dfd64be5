//! The origin by which a client has addressed the server: `https://api.example.com`.
//!
//! It is what the client sends in `Host`, or what a trusted proxy says of its client. Both are the
//! word of the client or of the proxy, so it may only tell them where the server is.

use super::forwarded::TrustedProxies;
use super::head::Head;
use super::host::is_authority;

/// The scheme, host and port of the address that the client has used; `None` without a `Host`.
/// `proxies` are those of the server, if the peer is one of them.
#[must_use]
pub fn request_origin(
    head: &Head<'_>,
    proxies: Option<&TrustedProxies>,
    is_tls: bool,
) -> Option<String> {
    let named = proxies.map(|proxies| proxies.origin(head)).unwrap_or_default();
    let own = if is_tls { "https" } else { "http" };
    let scheme = match named.scheme {
        Some(scheme) if scheme.eq_ignore_ascii_case(b"https") => "https",
        Some(scheme) if scheme.eq_ignore_ascii_case(b"http") => "http",
        _ => own,
    };
    let host = named.host.filter(|host| is_authority(host)).or_else(|| head.host())?;
    Some(format!("{scheme}://{}", std::str::from_utf8(host).ok()?))
}
