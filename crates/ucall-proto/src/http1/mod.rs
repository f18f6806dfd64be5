//! HTTP/1.1 as far as a server of `POST /` needs it: request heads, chunked bodies, who may call
//! from a browser, and the heads of replies.
//!
//! May import `memchr` and `itoa` only. Everything here works on byte slices, keeps no clock, and
//! allocates only when a reply is an error or when a chunked body grows.
//!
//! Strategy: what a stricter and a laxer parser could read differently is refused, never guessed
//! at (RFC 9112, section 11.2, request smuggling). The hot path is one pass over the head, eight
//! bytes at a time inside values; all that is rare or wrong is out of line.

mod access;
mod bytes;
mod chunk_extension;
mod chunked;
mod date;
mod error;
mod fields;
mod head;
mod host;
mod parser;
mod reply;
mod request_line;

#[cfg(any(test, fuzzing))]
pub mod invariants;
#[cfg(test)]
mod tests;

pub use access::{AccessRules, AllowedOrigin, InvalidAccessRule};
pub use chunked::{ChunkedDecoder, ChunkedLimits, Progress};
pub use date::{DATE_BYTES, date_text};
pub use error::HttpError;
pub use head::{BodyLength, Head, Headers, Method, Target, Version};
pub use parser::{HeadLimits, HeadParser, parse_head};
pub use reply::{ConnectionOption, PendingReply, ReplyHeaders, ReplyWriter, continue_100};
