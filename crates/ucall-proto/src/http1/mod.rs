//! The part of HTTP/1.1 that a server of calls and plain routes needs: request heads, chunked
//! bodies, access rules for browsers, and reply heads. Clients read responses with it.
//!
//! It may import `memchr`, `itoa`, `httparse`, the names of codings and the writer of JSON strings
//! only. It works on byte slices, has no clock, and allocates only for an error reply, a response
//! head or a growing chunked body.
//!
//! A request that a stricter and a laxer parser could read differently is refused (RFC 9112,
//! section 11.2, request smuggling). The hot path is one pass over the head, eight bytes at a time
//! inside values. Rare and invalid cases are out of line.

mod access;
mod bytes;
mod call_paths;
mod chunk_extension;
mod chunked;
mod coded_response;
mod date;
mod error;
mod fields;
mod forwarded;
mod head;
mod host;
mod method;
mod origin;
mod parser;
mod reply;
mod request_line;
mod response;
mod response_head;
mod response_reader;

#[cfg(any(test, feature = "invariants"))]
pub mod invariants;
#[cfg(test)]
mod tests;

pub use access::{AccessRules, AllowedOrigin, InvalidAccessRule};
pub use call_paths::CallPaths;
pub use chunked::{ChunkedDecoder, ChunkedLimits, Progress};
pub use date::{DATE_BYTES, civil_date, date_text};
pub use error::HttpError;
pub(crate) use fields::{EVENTS_TYPE, LINES_TYPE};
pub use forwarded::{ForwardedClient, InvalidProxy, TrustedProxies};
pub use head::{BodyLength, ContentCoding, Head, Headers, Target, Version};
pub(crate) use head::{begun_path, without_headers};
pub use method::{Method, Methods};
pub use origin::request_origin;
pub use parser::{HeadLimits, HeadParser, parse_head};
pub use reply::{
    ConnectionOption, ErrorBody, Negotiation, PendingReply, ReplyHeaders, ReplyWriter, continue_100,
};
pub(crate) use response::{without_chunked, write_json_response};
pub use response_head::{ResponseBodyLength, ResponseError, ResponseHead};
pub use response_reader::{ResponsePart, ResponseReader};
