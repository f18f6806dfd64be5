//! Reads server-sent events (WHATWG HTML, section 9.2.6) from a body that arrives in pieces.
//!
//! Only `data` counts. Its lines are collected until an empty line ends the event. Comments and
//! other fields are skipped, and so are events whose data is blank: they carry no document.

use super::error::ClientFault;

/// It may precede the first line, of which it is no part.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads the events of one body.
#[derive(Debug)]
pub(super) struct EventReader {
    bytes_max: usize,
    /// Bytes of the body whose lines were read.
    taken: usize,
    /// Bytes of the body without an end of line after `taken`.
    scanned: usize,
    /// The data of the event so far; each line of it ends with a line feed.
    data: Vec<u8>,
    /// Whether a line was read, so that no byte order mark may follow.
    has_begun: bool,
    /// Whether the last line ended with a carriage return, of which a line feed is then a part.
    after_return: bool,
}

impl EventReader {
    /// A reader of events with up to `bytes_max` bytes of data.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            bytes_max,
            taken: 0,
            scanned: 0,
            data: Vec::new(),
            has_begun: false,
            after_return: false,
        }
    }

    /// The data of the next event, once it is complete. `body` starts where it did in the previous
    /// call, unless [`forget_taken`](Self::forget_taken) was called.
    pub(super) fn next(&mut self, body: &[u8]) -> Result<Option<Vec<u8>>, ClientFault> {
        while let Some(line) = self.next_line(body) {
            let is_first = !std::mem::replace(&mut self.has_begun, true);
            let line =
                if is_first { line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line) } else { line };
            if line.is_empty() {
                let mut data = std::mem::take(&mut self.data);
                data.pop();
                if !data.trim_ascii().is_empty() {
                    return Ok(Some(data));
                }
            }
            if let Some(value) = data_of(line) {
                self.check_size(self.data.len() + value.len())?;
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
        }
        self.check_size(body.len().saturating_sub(self.taken))?;
        Ok(None)
    }

    /// Removes the lines from the body that were read.
    pub(super) fn forget_taken(&mut self, body: &mut Vec<u8>) {
        body.drain(..self.taken.min(body.len()));
        self.scanned = body.len();
        self.taken = 0;
    }

    fn next_line<'a>(&mut self, body: &'a [u8]) -> Option<&'a [u8]> {
        if self.after_return && self.taken < body.len() {
            self.after_return = false;
            self.taken += usize::from(body.get(self.taken) == Some(&b'\n'));
        }
        let start = self.scanned.max(self.taken);
        let unscanned = body.get(start..).unwrap_or_default();
        let Some(end) = memchr::memchr2(b'\r', b'\n', unscanned) else {
            self.scanned = body.len();
            return None;
        };
        let end = start + end;
        let line = body.get(self.taken..end);
        self.after_return = body.get(end) == Some(&b'\r');
        self.taken = end + 1;
        line
    }

    fn check_size(&self, len: usize) -> Result<(), ClientFault> {
        match len > self.bytes_max {
            true => Err(ClientFault::TooLarge { bytes_max: self.bytes_max }),
            false => Ok(()),
        }
    }
}

/// The value of a line of the field `data`.
fn data_of(line: &[u8]) -> Option<&[u8]> {
    let value = line.strip_prefix(b"data")?;
    match value {
        [] => Some(value),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    }
}
