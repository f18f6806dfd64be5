//! The responses of routes, which the layers above write: a status line, headers with the body's
//! length, a blank line and the body. The headers of the connection are added here.

use memchr::memmem;

use super::reply::{ReplyHeaders, ReplyWriter};

/// Begins each response.
const VERSION: &[u8] = b"HTTP/1.1 ";

impl ReplyWriter {
    /// Writes a response, of which a HEAD request (`is_head`) gets the head only.
    pub fn response(
        &self,
        out: &mut Vec<u8>,
        response: &[u8],
        reply_headers: &ReplyHeaders<'_>,
        is_head: bool,
    ) {
        let rest = self.status_line(out, response, reply_headers);
        let head_end = memmem::find(rest, b"\r\n\r\n").map(|at| at + 4);
        let kept = head_end.filter(|_| is_head).and_then(|end| rest.get(..end)).unwrap_or(rest);
        out.extend_from_slice(kept);
    }

    /// Writes the head of a response whose chunks follow as they are made.
    pub fn chunked_head(&self, out: &mut Vec<u8>, head: &[u8], reply_headers: &ReplyHeaders<'_>) {
        let rest = self.status_line(out, head, reply_headers);
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        out.extend_from_slice(rest);
    }

    /// Writes the status line and the headers of the connection; returns what follows the former.
    fn status_line<'a>(
        &self,
        out: &mut Vec<u8>,
        response: &'a [u8],
        reply_headers: &ReplyHeaders<'_>,
    ) -> &'a [u8] {
        debug_assert!(response.starts_with(VERSION), "a response begins with its status line");
        let end = memmem::find(response, b"\r\n").map_or(response.len(), |at| at + 2);
        let (status_line, rest) = response.split_at(end);
        out.extend_from_slice(status_line);
        out.extend_from_slice(self.date_line());
        reply_headers.write(out);
        rest
    }
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
