//! The items of a stream: what a call yields before its reply.
//!
//! An item is a `$/progress` notification of the Language Server Protocol. Its token is the
//! caller's progress token, or over HTTP the id of the call.

use super::Call;
use super::route::ROUTE_ID;
use crate::http1::{EVENTS_TYPE, Head, LINES_TYPE, Version};

/// How the items of one call are framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ItemFormat {
    /// As messages of a WebSocket, or documents of raw TCP.
    Messages,
    /// As server-sent events of a chunked HTTP reply.
    Events,
    /// As lines of a chunked HTTP reply.
    Lines,
}

impl Call<'_> {
    /// Whether the caller takes the items of a stream one by one. If not, they are its result.
    pub fn takes_items(&self) -> bool {
        self.is_of_route() || self.item_format().is_some()
    }

    /// Whether the caller takes something before the reply, as reports of progress: over MCP
    /// notifications of any kind. A call of an array over HTTP has no stream for it.
    pub fn takes_reports(&self) -> bool {
        let takes_notifications = || {
            let is_alone = self.head.is_none() || self.number.item == 0;
            let is_request = self.id.is_some() && is_alone;
            self.mcp.is_some_and(|it| is_request && it.takes_notifications(self.head))
        };
        self.takes_items() || takes_notifications()
    }

    /// Whether it is a request of a route.
    fn is_of_route(&self) -> bool {
        self.id == Some(ROUTE_ID)
    }

    /// How the caller takes items; `None` if it does not.
    pub(crate) fn item_format(&self) -> Option<ItemFormat> {
        self.id?;
        if self.mcp.is_some() {
            return None;
        }
        match self.head {
            Some(_) if self.number.item > 0 => None,
            // Its reply is the body of a response, which is no stream.
            Some(head) if !head.is_call() => None,
            Some(head) => ItemFormat::accepted_by(head),
            None => self.meta?.progress_token().map(|_| ItemFormat::Messages),
        }
    }
}

impl ItemFormat {
    /// The first streamed media type that the `Accept` header of a request names.
    pub(crate) fn accepted_by(head: &Head<'_>) -> Option<Self> {
        if !head.accepts_streams() || head.version() == Version::Http10 {
            return None;
        }
        let values = head.headers().named("accept");
        values.flat_map(|value| value.split(|&byte| byte == b',')).find_map(Self::of_media_range)
    }

    fn of_media_range(range: &[u8]) -> Option<Self> {
        let mut parts = range.split(|&byte| byte == b';').map(<[u8]>::trim_ascii);
        let media_type = parts.next()?;
        let is_refused = parts.any(|part| part.eq_ignore_ascii_case(b"q=0"));
        [Self::Events, Self::Lines].into_iter().find(|format| {
            !is_refused && media_type.eq_ignore_ascii_case(format.media_type().as_bytes())
        })
    }

    /// Its media type over HTTP.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Events => EVENTS_TYPE,
            Self::Lines => LINES_TYPE,
            Self::Messages => "application/json",
        }
    }
}

/// Names the call that an item is of, and how the item is written.
#[derive(Debug)]
pub(crate) enum ItemToken {
    /// Of a `$/progress`.
    Progress(Vec<u8>),
    /// Of the `notifications/progress` of MCP; empty if the caller asks for none. Its items are
    /// reports, which are objects, or whole notifications.
    Mcp(Vec<u8>),
}

const OPENING: &[u8] = br#"{"jsonrpc":"2.0","method":"$/progress","params":{"token":"#;
const VALUE: &[u8] = br#","value":"#;
const MCP_OPENING: &[u8] =
    br#"{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"#;
/// A whole notification, which is no report.
const MESSAGE_OPENING: &[u8] = br#"{"jsonrpc":"2.0","#;
const CLOSING: &[u8] = b"}}";

impl ItemToken {
    /// The parts of an item, whose value is JSON text.
    fn parts<'a>(&'a self, value: &'a [u8]) -> [&'a [u8]; 5] {
        match self {
            Self::Progress(token) => [OPENING, token, VALUE, value, CLOSING],
            Self::Mcp(_) if value.starts_with(MESSAGE_OPENING) => [value, b"", b"", b"", b""],
            Self::Mcp(token) => {
                let members = value.strip_prefix(b"{").unwrap_or(value);
                [MCP_OPENING, token, b",", members, b"}"]
            }
        }
    }

    /// The length of an item as [`ItemToken::write_item`] writes it.
    pub(crate) fn item_len(&self, value: &[u8]) -> usize {
        self.parts(value).into_iter().map(<[u8]>::len).sum()
    }

    /// Appends an item, whose value is JSON text.
    pub(crate) fn write_item(&self, out: &mut Vec<u8>, value: &[u8]) {
        out.reserve(self.item_len(value));
        for part in self.parts(value) {
            out.extend_from_slice(part);
        }
    }
}
