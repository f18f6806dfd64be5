//! The upgrade of an HTTP/1.1 connection to WebSocket (RFC 6455, section 4.2).
//!
//! | a request | reply |
//! |---|---|
//! | without `Upgrade: websocket`, or not GET over HTTP/1.1 | none of an upgrade |
//! | with a version other than 13 | 426 |
//! | with a body, or a key that is not one base64 text of 16 bytes | 400 |
//! | otherwise | 101 |
//!
//! Of the extensions that a request offers, [`Upgrade::accept_deflate`] may accept one.
//!
//! Pages cannot set headers of a WebSocket. So a subprotocol `bearer.` with a token in base64url
//! stands for an `Authorization` header. It is never selected, so it is never sent back, and
//! [`Upgrade::authorized_head`] removes it from the head that the server's code sees.

use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64ct::{Base64, Base64UrlUnpadded, Encoding};

use super::deflate::Deflate;
use crate::http1::{BodyLength, Head, HttpError, Method, Version};

const SUBPROTOCOL: &[u8] = b"jsonrpc";
const TOKEN_PREFIX: &[u8] = b"bearer.";
/// Appended to the key before it is hashed (RFC 6455, section 1.3).
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const KEY_BYTES: usize = 16;
const SHA1_BYTES: usize = 20;

/// A valid request for a WebSocket, whatever its subprotocols mean.
#[derive(Clone, Debug)]
pub struct Handshake<'a> {
    key: &'a [u8],
}

impl<'a> Handshake<'a> {
    /// The handshake that a request asks for, if any.
    ///
    /// # Errors
    /// 426 for a version other than 13, 400 for any other error of the client.
    pub fn parse(head: &Head<'a>) -> Result<Option<Self>, HttpError> {
        let is_upgrade = head.method() == Method::Get
            && head.version() == Version::Http11
            && has_option(head, "Upgrade", b"websocket")
            && has_option(head, "Connection", b"upgrade");
        if !is_upgrade {
            return Ok(None);
        }
        if single(head, "Sec-WebSocket-Version") != Some(b"13") {
            return Err(HttpError::WebSocketVersionUnsupported);
        }
        let key = single(head, "Sec-WebSocket-Key").filter(|key| is_key(key));
        let key = key.ok_or(HttpError::WebSocketKeyMalformed)?;
        if !matches!(head.body(), BodyLength::None | BodyLength::Length(0)) {
            return Err(HttpError::WebSocketBody);
        }
        Ok(Some(Self { key }))
    }

    /// The subprotocols that a client offers, the best first.
    pub fn subprotocols(head: &Head<'a>) -> impl Iterator<Item = &'a [u8]> + Clone {
        options(head, "Sec-WebSocket-Protocol").filter(|offer| !offer.is_empty())
    }

    /// Appends the reply 101, without further headers and the empty line.
    pub fn write_accepted(&self, out: &mut Vec<u8>) {
        let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &[self.key, KEY_SUFFIX].concat());
        let mut accept = [0; SHA1_BYTES.div_ceil(3) * 4];
        let accept = Base64::encode(hash.as_ref(), &mut accept).unwrap_or_default();
        out.extend_from_slice(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Accept: ",
        );
        out.extend_from_slice(accept.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// A valid request for a WebSocket with calls.
#[derive(Clone, Debug)]
pub struct Upgrade<'a> {
    handshake: Handshake<'a>,
    /// Whether the client offers the subprotocol `jsonrpc`.
    offers_jsonrpc: bool,
    token: Option<Vec<u8>>,
    deflate: Option<Deflate>,
}

impl<'a> Upgrade<'a> {
    /// The upgrade that a request asks for, if any.
    ///
    /// # Errors
    /// 426 for a version other than 13, 400 for any other error of the client.
    pub fn parse(head: &Head<'a>) -> Result<Option<Self>, HttpError> {
        let Some(handshake) = Handshake::parse(head)? else { return Ok(None) };
        let mut offers = options(head, "Sec-WebSocket-Protocol");
        let offers_jsonrpc = offers.clone().any(|offer| offer == SUBPROTOCOL);
        let token = match offers.find_map(|offer| offer.strip_prefix(TOKEN_PREFIX)) {
            Some(text) => Some(decode_token(text).ok_or(HttpError::WebSocketTokenMalformed)?),
            None => None,
        };
        if token.is_some() && head.header("Authorization").is_some() {
            return Err(HttpError::WebSocketTokenMalformed);
        }
        Ok(Some(Self { handshake, offers_jsonrpc, token, deflate: None }))
    }

    /// The text of a head with an `Authorization` header in place of all subprotocols; `None` if
    /// the client sends no token among them.
    #[must_use]
    pub fn authorized_head(&self, head: &Head<'_>) -> Option<Vec<u8>> {
        let token = self.token.as_ref()?;
        let mut text = b"GET / HTTP/1.1\r\nAuthorization: Bearer ".to_vec();
        text.extend_from_slice(token);
        text.extend_from_slice(b"\r\n");
        for (name, value) in head.headers() {
            if !name.eq_ignore_ascii_case(b"Sec-WebSocket-Protocol") {
                text.extend([name, b": ", value, b"\r\n"].concat());
            }
        }
        text.extend_from_slice(b"\r\n");
        Some(text)
    }

    /// Accepts the extension permessage-deflate if the client offers it. Returns it.
    pub fn accept_deflate(&mut self, head: &Head<'_>) -> Option<Deflate> {
        self.deflate = Deflate::accepted(options(head, "Sec-WebSocket-Extensions"));
        self.deflate
    }

    /// Appends the reply 101. The client's frames follow its request at once.
    pub fn write_reply(&self, out: &mut Vec<u8>) {
        self.handshake.write_accepted(out);
        if self.offers_jsonrpc {
            out.extend_from_slice(b"Sec-WebSocket-Protocol: ");
            out.extend_from_slice(SUBPROTOCOL);
            out.extend_from_slice(b"\r\n");
        }
        if let Some(deflate) = self.deflate {
            deflate.write(out);
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// The items of all headers called `name`, which are lists separated by commas.
fn options<'a>(head: &Head<'a>, name: &'static str) -> impl Iterator<Item = &'a [u8]> + Clone {
    let named = move |(key, _): &(&[u8], &[u8])| key.eq_ignore_ascii_case(name.as_bytes());
    let values = head.headers().filter(named).map(|(_, value)| value);
    values.flat_map(|value| value.split(|&byte| byte == b',')).map(<[u8]>::trim_ascii)
}

fn has_option(head: &Head<'_>, name: &'static str, option: &[u8]) -> bool {
    options(head, name).any(|it| it.eq_ignore_ascii_case(option))
}

/// The value of a header that must be sent once.
fn single<'a>(head: &Head<'a>, name: &'static str) -> Option<&'a [u8]> {
    let mut options = options(head, name);
    options.next().filter(|_| options.next().is_none())
}

fn is_key(text: &[u8]) -> bool {
    Base64::decode(text, &mut [0; KEY_BYTES + 2]).is_ok_and(|key| key.len() == KEY_BYTES)
}

/// A token whose characters are all visible, so that it fits into a header.
fn decode_token(text: &[u8]) -> Option<Vec<u8>> {
    let mut token = vec![0; text.len()];
    let token = Base64UrlUnpadded::decode(text, &mut token).ok()?;
    (!token.is_empty() && token.iter().all(u8::is_ascii_graphic)).then(|| token.to_vec())
}
