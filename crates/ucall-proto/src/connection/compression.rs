//! Compresses replies over HTTP, after they are written.
//!
//! | the reply | is |
//! |---|---|
//! | of a call, whole body, route or request of MCP, as a whole | compressed in the output |
//! | with binary parts | left as it is |
//! | a stream of a call or a route | compressed item by item |
//!
//! Everything else about a reply is decided before, so none of its writers knows the codings.

use memchr::memmem;

use super::{Environment, MemoryBudget, Reservation};
use crate::Limits;
use crate::coding::{Coding, Encoder, Flush};
use crate::http1::{Head, Headers, Negotiation};

const HEAD_END: &[u8] = b"\r\n\r\n";

/// Which coding the reply to a request has.
pub(super) fn negotiate(head: &Head<'_>, limits: &Limits) -> Negotiation {
    if limits.compression.is_none() {
        return Negotiation::Off;
    }
    match Coding::accepted_by(head.headers().named("Accept-Encoding")) {
        Some(coding) => Negotiation::Coding(coding),
        None => Negotiation::Identity,
    }
}

/// Where the reply to a request begins.
#[derive(Clone, Copy)]
pub(super) struct ReplyStart {
    at: usize,
    attachments: usize,
}

impl ReplyStart {
    #[inline]
    pub(super) fn of<S>(environment: &Environment<'_, S>) -> Self {
        Self { at: environment.out.len(), attachments: environment.scratch.attachments.len() }
    }

    /// Compresses the reply that was written since then, if it is negotiated and worth it.
    #[inline]
    pub(super) fn compress<S>(
        self,
        negotiation: Negotiation,
        environment: &mut Environment<'_, S>,
    ) {
        if negotiation != Negotiation::Off
            && environment.scratch.attachments.len() == self.attachments
        {
            compress(environment.out, self.at, negotiation, environment.limits);
        }
    }
}

#[cold]
fn compress(out: &mut Vec<u8>, start: usize, negotiation: Negotiation, limits: &Limits) {
    let Some(limits) = &limits.compression else { return };
    let response = out.get(start..).unwrap_or_default();
    let Some(response) = Response::read(response) else { return };
    let Some(length) = response.length.filter(|&length| length >= limits.bytes_min) else { return };
    let has_whole_body = response.body.len() == length;
    if !response.may_be_coded() || !(response.body.is_empty() || has_whole_body) {
        return;
    }
    let mut body = None;
    if let Negotiation::Coding(coding) = negotiation
        && has_whole_body
        && length <= limits.bytes_max
        && let Some(mut encoder) = Encoder::new(coding)
    {
        let mut encoded = Vec::with_capacity(length / 4);
        encoder.encode(response.body, Flush::End, &mut encoded);
        body = (encoded.len() < length).then_some((coding, encoded));
    }
    let rewritten = match body {
        Some((coding, body)) => {
            let mut head = response.coded_head(coding);
            head.extend_from_slice(format!("Content-Length: {}\r\n\r\n", body.len()).as_bytes());
            [head, body].concat()
        }
        None => {
            let mut head = response.head.to_vec();
            Negotiation::Identity.write(&mut head);
            [&head[..], b"\r\n", response.body].concat()
        }
    };
    out.truncate(start);
    out.extend_from_slice(&rewritten);
}

/// Compresses the parts of a stream.
#[derive(Debug)]
pub(super) struct StreamEncoder {
    coding: Coding,
    encoder: Encoder,
    /// Its memory, which grows with the first parts.
    reserved: Reservation,
    budget: MemoryBudget,
}

impl StreamEncoder {
    /// One of the negotiated coding; `None` without one, and while other connections hold more than
    /// half of the memory that they may, because a stream may last.
    pub(super) fn new<S>(
        negotiation: Negotiation,
        environment: &Environment<'_, S>,
    ) -> Option<Self> {
        let Negotiation::Coding(coding) = negotiation else { return None };
        let budget = environment.scratch.budget();
        if budget.bytes() > environment.limits.held_bytes_max / 2 {
            return None;
        }
        let encoder = Encoder::of_stream(coding)?;
        let (budget, reserved) = (budget.clone(), Reservation::default());
        Some(Self { coding, encoder, reserved, budget })
    }

    /// Compresses the response of a route with this head, if its type is one that becomes
    /// smaller. Replaces the head.
    pub(super) fn of_response<S>(
        head: &mut Vec<u8>,
        negotiation: Negotiation,
        environment: &Environment<'_, S>,
    ) -> Option<Self> {
        let response = Response::read(head).filter(Response::may_be_coded)?;
        let encoder = Self::new(negotiation, environment)?;
        let mut coded = response.coded_head(encoder.coding);
        coded.extend_from_slice(b"\r\n");
        *head = coded;
        Some(encoder)
    }

    /// What the head of the stream says of its coding.
    pub(super) fn negotiation(encoder: Option<&Self>, asked: Negotiation) -> Negotiation {
        match (encoder, asked) {
            (Some(encoder), _) => Negotiation::Coding(encoder.coding),
            (None, Negotiation::Off) => Negotiation::Off,
            (None, _) => Negotiation::Identity,
        }
    }

    /// Appends a chunk with a part, which the client can decode at once.
    pub(super) fn write_chunk(&mut self, part: &[u8], flush: Flush, out: &mut Vec<u8>) {
        let mut encoded = Vec::new();
        self.encoder.encode(part, flush, &mut encoded);
        self.reserved.resize(self.encoder.held_bytes(), &self.budget);
        if !encoded.is_empty() {
            out.extend_from_slice(format!("{:x}\r\n", encoded.len()).as_bytes());
            out.extend_from_slice(&encoded);
            out.extend_from_slice(b"\r\n");
        }
    }
}

/// A response in the output.
struct Response<'a> {
    /// The status line and the headers, without the blank line.
    head: &'a [u8],
    body: &'a [u8],
    /// That of the body, which a response to HEAD has not; `None` for a stream.
    length: Option<usize>,
    status: u16,
    is_compressible: bool,
    /// Its headers forbid another coding.
    is_final: bool,
}

impl<'a> Response<'a> {
    /// Reads a response; `None` if the text is none.
    fn read(text: &'a [u8]) -> Option<Self> {
        let head_len = memmem::find(text, HEAD_END)? + 2;
        let (head, rest) = text.split_at_checked(head_len)?;
        let status = head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
        let mut response = Self {
            head,
            body: rest.get(2..)?,
            length: None,
            status: std::str::from_utf8(status).ok()?.parse().ok()?,
            is_compressible: false,
            is_final: false,
        };
        for (name, value) in Headers::of_block(header_block(head)) {
            match name {
                _ if name.eq_ignore_ascii_case(b"Content-Length") => {
                    response.length = Some(std::str::from_utf8(value).ok()?.parse().ok()?);
                }
                _ if name.eq_ignore_ascii_case(b"Content-Type") => {
                    response.is_compressible = is_compressible(value);
                }
                _ => response.is_final |= is_final(name, value),
            }
        }
        Some(response)
    }

    fn may_be_coded(&self) -> bool {
        self.is_compressible && !self.is_final && !matches!(self.status, 100..200 | 204 | 206 | 304)
    }

    /// The head of the response in a coding, without the length and the blank line.
    fn coded_head(&self, coding: Coding) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.head.len() + 128);
        for line in self.head.split_inclusive(|&byte| byte == b'\n') {
            match line.iter().position(|&byte| byte == b':').map(|at| line.split_at(at)) {
                Some((name, _)) if name.eq_ignore_ascii_case(b"Content-Length") => {}
                // The tag is that of these bytes no more (RFC 9110, section 8.8.3.3).
                Some((name, value)) if name.eq_ignore_ascii_case(b"ETag") => {
                    let tag = value.get(1..).unwrap_or_default().trim_ascii_start();
                    let weak: &[u8] = if tag.starts_with(b"W/") { b"" } else { b"W/" };
                    out.extend_from_slice(&[b"ETag: ", weak, tag].concat());
                }
                _ => out.extend_from_slice(line),
            }
        }
        Negotiation::Coding(coding).write(&mut out);
        out
    }
}

/// The headers of a head, after its first line.
fn header_block(head: &[u8]) -> &[u8] {
    let line_len = memmem::find(head, b"\r\n").map_or(head.len(), |at| at + 2);
    head.get(line_len..).unwrap_or_default()
}

/// Whether a header says that the body is to stay as it is.
fn is_final(name: &[u8], value: &[u8]) -> bool {
    match name {
        _ if name.eq_ignore_ascii_case(b"Content-Encoding") => true,
        _ if name.eq_ignore_ascii_case(b"Content-Range") => true,
        _ if name.eq_ignore_ascii_case(b"Cache-Control") => value
            .to_ascii_lowercase()
            .split(|&byte| byte == b',')
            .any(|directive| directive.trim_ascii() == b"no-transform"),
        _ => false,
    }
}

/// Whether bodies of this type become smaller: texts. Images, archives and arrays seldom do.
pub(super) fn is_compressible(content_type: &[u8]) -> bool {
    let media = content_type.split(|&byte| byte == b';').next().unwrap_or_default();
    let media = media.trim_ascii().to_ascii_lowercase();
    let Some(subtype) = media.strip_prefix(b"application/") else {
        return media.starts_with(b"text/") || media == b"image/svg+xml";
    };
    let names: [&[u8]; 5] = [b"json", b"javascript", b"xml", b"x-ndjson", b"wasm"];
    names.contains(&subtype) || subtype.ends_with(b"+json") || subtype.ends_with(b"+xml")
}
