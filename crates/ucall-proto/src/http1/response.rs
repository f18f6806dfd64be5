//! The responses of routes, which the layers above write: a status line, headers with the body's
//! length, a blank line and the body. The headers of the connection are added here.

use memchr::memmem;

use super::reply::{ReplyHeaders, ReplyWriter};

/// Begins each response.
const VERSION: &[u8] = b"HTTP/1.1 ";

/// Says that the length of a body is unknown. It is the first header of such a response.
const CHUNKED: &[u8] = b"Transfer-Encoding: chunked\r\n";

impl ReplyWriter {
    /// Writes a response, of which a HEAD request (`is_head`) gets the head only.
    pub fn response(
        &self,
        out: &mut Vec<u8>,
        response: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        is_head: bool,
    ) {
        debug_assert!(response.starts_with(VERSION), "a response begins with its status line");
        let (status_line, rest) = response.split_at(status_line_len(response));
        out.extend_from_slice(status_line);
        out.extend_from_slice(self.date_line());
        reply_headers.write(out);
        let head_end = memmem::find(rest, b"\r\n\r\n").map(|at| at + 4);
        let kept = head_end.filter(|_| is_head).and_then(|end| rest.get(..end)).unwrap_or(rest);
        out.extend_from_slice(kept);
    }
}

fn status_line_len(response: &[u8]) -> usize {
    memmem::find(response, b"\r\n").map_or(response.len(), |at| at + 2)
}

/// A head without `Transfer-Encoding: chunked`; `None` if it does not say that.
pub(crate) fn without_chunked(head: &[u8]) -> Option<Vec<u8>> {
    let (status_line, rest) = head.split_at(status_line_len(head));
    Some([status_line, rest.strip_prefix(CHUNKED)?].concat())
}

/// Appends a response with a JSON text as its body.
#[cold]
pub(crate) fn write_json_response(out: &mut Vec<u8>, status: &str, headers: &str, body: &[u8]) {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{headers}\
         Content-Length: {length}\r\n\r\n"
    );
    out.extend_from_slice(head.as_bytes());
    out.extend_from_slice(body);
}
