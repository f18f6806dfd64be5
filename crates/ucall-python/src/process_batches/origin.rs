//! Encodes the caller of a call for the process that runs it, for its log and its span.
//!
//! The bytes are the transport, whether the call gets a span in the process, and some texts, each
//! behind its length. The thread that writes them has no interpreter.

use ucall_engine::Peer;
use ucall_server::Transport;

use crate::context::Context;
use crate::job_input::{CallContext, Contents};
use crate::origin::CallOrigin;

const TRANSPORTS: [Transport; 5] =
    [Transport::Tcp, Transport::Http, Transport::WebSocket, Transport::Udp, Transport::Nats];
/// The length that marks an absent text.
const ABSENT: u32 = u32::MAX;
/// A client behind a proxy that does not name it.
const UNKNOWN: &str = "?";
/// The longest user name that is sent: `auth` sets no limit to it.
const NAME_BYTES_MAX: usize = 1024;

/// The caller of a call, decoded.
pub(super) struct ReceivedOrigin {
    pub(super) origin: CallOrigin,
    /// The context, if the call gets a span.
    pub(super) context: Option<Context>,
}

/// Encodes the caller of a call. A call with a context gets a span in the process.
pub(super) fn encode(contents: &Contents) -> Vec<u8> {
    let Some(origin) = &contents.origin else { return Vec::new() };
    let context = match &contents.context {
        Some(CallContext::Call(context)) => Some(context),
        _ => None,
    };
    let tracestate = context.and_then(|context| context.tracestate());
    let peer = origin.peer.map(peer_text);
    let texts = [
        peer.as_ref().map(String::as_bytes),
        origin.id(),
        origin.traceparent(),
        tracestate.as_ref().map(String::as_bytes),
        origin.user().map(|name| name.as_bytes().chunks(NAME_BYTES_MAX).next().unwrap_or_default()),
    ];
    let transport = TRANSPORTS.iter().position(|it| *it == origin.transport);
    let mut bytes = vec![transport.unwrap_or(0) as u8, u8::from(context.is_some())];
    for text in texts {
        bytes.extend_from_slice(&text.map_or(ABSENT, |text| text.len() as u32).to_le_bytes());
        bytes.extend_from_slice(text.unwrap_or_default());
    }
    bytes
}

/// Decodes the caller of a call of `method`.
pub(super) fn decode(method: &str, bytes: &[u8]) -> Option<ReceivedOrigin> {
    let (&[transport, is_traced], mut rest) = bytes.split_first_chunk()?;
    let [peer, id, traceparent, tracestate, user] = [(); 5].map(|()| take_text(&mut rest));
    let text = |bytes: Option<&[u8]>| bytes.map(|it| String::from_utf8_lossy(it).into_owned());
    let texts = [Some(method.as_bytes()), id, traceparent];
    let (peer, transport) =
        (text(peer).and_then(|it| peer_of(&it)), *TRANSPORTS.get(transport as usize)?);
    let origin = CallOrigin::of(texts, peer, transport, None).with_user(text(user));
    let context = (is_traced == 1).then(|| Context::of_origin(&origin, tracestate));
    Some(ReceivedOrigin { origin, context })
}

fn take_text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (len, after) = rest.split_first_chunk()?;
    let len = match u32::from_le_bytes(*len) {
        ABSENT => None,
        len => Some(len as usize),
    };
    let (text, after) = after.split_at_checked(len.unwrap_or(0))?;
    *rest = after;
    len.map(|_| text)
}

fn peer_text(peer: Peer) -> String {
    match peer {
        Peer::Address(address) => address.to_string(),
        Peer::Process { pid, uid, gid } => format!("{pid} {uid} {gid}"),
        _ => UNKNOWN.to_owned(),
    }
}

fn peer_of(text: &str) -> Option<Peer> {
    if text == UNKNOWN {
        return Some(Peer::Unknown);
    }
    if let Ok(address) = text.parse() {
        return Some(Peer::Address(address));
    }
    let mut numbers = text.split(' ');
    let pid = numbers.next()?.parse().ok()?;
    let [uid, gid] = [(); 2].map(|()| numbers.next()?.parse().ok());
    Some(Peer::Process { pid, uid: uid?, gid: gid? })
}
