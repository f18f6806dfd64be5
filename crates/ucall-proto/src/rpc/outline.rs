//! Finds the requests of a long document while it arrives, so that no turn scans all of it.
//!
//! [`DocumentOutline`] validates each byte once, when it arrives, and notes where the members of
//! the requests are. At the end only these are read: long params are not, because they are valid.
//! A property test compares the requests with those that a scan of the whole document finds.

use std::ops::Range;

use super::document::{Batch, Content};
use super::request::{Key, Request};
use crate::Limits;
use crate::json::stream::{DocumentEvents, DocumentStream};
use crate::json::{FirstMembers, JsonError, Text};

/// The names of members with all characters escaped are shorter.
const KEY_BYTES_MAX: usize = 64;

/// The requests of a document of which a part has arrived.
#[derive(Debug, Default)]
pub(crate) struct DocumentOutline {
    stream: DocumentStream,
    scanned: usize,
    /// How much of it was validated as UTF-8.
    validated: usize,
    has_invalid_utf8: bool,
    /// Why the document is none.
    error: Option<JsonError>,
    /// Its length, once it is complete.
    len: Option<usize>,
    requests: RequestOutlines,
}

impl DocumentOutline {
    /// Scans the bytes that have arrived since the last time. `text` is the document so far.
    /// Returns its length if it is complete.
    ///
    /// # Errors
    /// Those of the scan of the whole document, except for invalid UTF-8.
    pub(crate) fn scan(
        &mut self,
        text: &[u8],
        limits: &Limits,
    ) -> Result<Option<usize>, JsonError> {
        if self.len.is_some() {
            return Ok(self.len);
        }
        let new = text.get(self.scanned..).unwrap_or_default();
        let requests = &mut self.requests;
        requests.count_max = limits.batch_calls_max.max(1);
        let mut events = OutlineEvents { text, start: self.scanned, requests };
        let end = self.stream.scan_with(new, limits.nesting_max, &mut events)?;
        self.len = end.map(|end| self.scanned + end);
        self.scanned = self.len.unwrap_or(text.len());
        self.validate_utf8(text.get(..self.scanned).unwrap_or_default());
        Ok(self.len)
    }

    /// Scans the new bytes of a document that is all of `text`, with white space around it. An
    /// error is that of [`DocumentOutline::content`].
    pub(crate) fn scan_framed(&mut self, text: &[u8], limits: &Limits) {
        if self.error.is_some() {
            return;
        }
        let is_space = |rest: &[u8]| rest.iter().all(|byte| b" \t\r\n".contains(byte));
        match self.scan(text, limits) {
            Ok(None) => {}
            Ok(Some(_)) if is_space(text.get(self.scanned..).unwrap_or_default()) => {
                self.scanned = text.len();
            }
            Ok(Some(_)) => self.error = Some(JsonError::Invalid),
            Err(error) => self.error = Some(error),
        }
    }

    /// Its memory.
    pub(crate) fn held_bytes(&self) -> usize {
        self.requests.requests.capacity() * size_of::<RequestOutline>()
    }

    fn validate_utf8(&mut self, text: &[u8]) {
        let new = text.get(self.validated..).unwrap_or_default();
        match simdutf8::compat::from_utf8(new) {
            Ok(_) => self.validated = text.len(),
            Err(error) => {
                self.validated += error.valid_up_to();
                // A character may end with the next bytes.
                self.has_invalid_utf8 |= error.error_len().is_some() || self.len.is_some();
            }
        }
    }

    /// Whether it may have the requests of a document: that is an object or an array.
    pub(crate) fn has_requests(&self) -> bool {
        self.requests.base > 0 || self.error.is_some()
    }

    /// The requests of the document that `text` starts with.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn content<'a>(
        &self,
        text: &'a [u8],
        limits: &Limits,
        members: &mut FirstMembers<'_>,
    ) -> Result<Content<'a>, JsonError> {
        match (self.error, self.len) {
            (Some(error), _) => return Err(error),
            (None, None) => return Err(JsonError::Incomplete),
            (None, Some(_)) if self.has_invalid_utf8 => return Err(JsonError::Invalid),
            (None, Some(_)) => {}
        }
        let RequestOutlines { base, count, requests, .. } = &self.requests;
        let mut parsed = requests.iter().map(|it| it.request(text, limits, members));
        Ok(match base {
            1 => Content::Single(parsed.next().unwrap_or(Request::EMPTY)),
            _ => Content::Batch(Batch { requests: parsed.collect(), count: *count }),
        })
    }
}

/// The requests that have begun.
#[derive(Debug, Default)]
struct RequestOutlines {
    /// The number of open containers around the members of a request: 2 in a batch.
    base: usize,
    /// The elements of a batch, and how many of them are noted.
    count: usize,
    count_max: usize,
    requests: Vec<RequestOutline>,
    /// Of the member that has begun.
    key: Range<usize>,
    value: Option<usize>,
}

/// Where the members of a request are. Of two members with one name, the last counts.
#[derive(Debug, Default)]
struct RequestOutline {
    is_object: bool,
    members: [Option<Range<usize>>; Key::KNOWN],
}

impl RequestOutline {
    fn request<'a>(
        &self,
        text: &'a [u8],
        limits: &Limits,
        members: &mut FirstMembers<'_>,
    ) -> Request<'a> {
        let values = self.members.each_ref();
        let values = values.map(|it| text.get(it.clone()?).map(<[u8]>::trim_ascii_end));
        Request::of_values(self.is_object, values, limits, members)
    }
}

/// Notes the members of requests.
struct OutlineEvents<'a> {
    text: &'a [u8],
    /// Where the scanned bytes start in it.
    start: usize,
    requests: &'a mut RequestOutlines,
}

impl OutlineEvents<'_> {
    /// The request whose members are at this depth, if it is noted.
    #[inline(always)]
    fn request_at(&mut self, depth: usize) -> Option<&mut RequestOutline> {
        if depth != self.requests.base || self.requests.count > self.requests.count_max {
            return None;
        }
        self.requests.requests.last_mut().filter(|request| request.is_object)
    }

    #[cold]
    fn note_member(&mut self, value: Range<usize>) {
        let key = self.text.get(self.requests.key.clone()).unwrap_or_default();
        if key.len() > KEY_BYTES_MAX {
            return;
        }
        let key = Key::of_name(&Text::new(key, key.contains(&b'\\')).unescaped()) as usize;
        if let Some(request) = self.requests.requests.last_mut()
            && let Some(member) = request.members.get_mut(key)
        {
            *member = Some(value);
        }
    }
}

impl DocumentEvents for OutlineEvents<'_> {
    #[inline(always)]
    fn value(&mut self, depth: usize, first: u8, at: usize) {
        if depth == 0 && matches!(first, b'{' | b'[') {
            self.requests.base = if first == b'[' { 2 } else { 1 };
        }
        if depth + 1 == self.requests.base {
            self.requests.count += 1;
            if self.requests.count <= self.requests.count_max {
                let request = RequestOutline { is_object: first == b'{', ..Default::default() };
                if self.requests.base == 1 {
                    self.requests.requests.reserve_exact(1);
                }
                self.requests.requests.push(request);
            }
        } else if self.request_at(depth).is_some() {
            self.requests.value = Some(self.start + at);
        }
    }

    #[inline(always)]
    fn key(&mut self, depth: usize, at: usize) {
        if self.request_at(depth).is_some() {
            self.requests.key.start = self.start + at + 1;
        }
    }

    #[inline(always)]
    fn key_end(&mut self, depth: usize, at: usize) {
        if self.request_at(depth).is_some() {
            self.requests.key.end = self.start + at;
        }
    }

    #[inline(always)]
    fn value_end(&mut self, depth: usize, at: usize) {
        if depth == self.requests.base
            && let Some(value) = self.requests.value.take()
        {
            self.note_member(value..self.start + at);
        }
    }
}
