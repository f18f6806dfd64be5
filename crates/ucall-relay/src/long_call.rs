//! Calls with long params, which are sent piece by piece: no turn of the worker copies or sends all
//! of one, so other calls do not wait for it.
//!
//! The params stay where they were received, if the server shares that memory. Each turn copies one
//! piece to the output of the connection, which the call has for itself.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::replies::to_one_line;
use crate::request::write_call;

/// Longer calls are sent piece by piece.
pub(crate) const SHORT_BYTES_MAX: usize = 256 * 1024;
/// What a turn sends of one call, and of a few together.
pub(crate) const PIECE_BYTES_MAX: usize = 128 * 1024;
/// Calls that get whole pieces in one turn. More share what these would get.
const WHOLE_PIECES: usize = 4;
/// The shortest piece, so that a call does not take a turn for each of a few bytes.
const PIECE_BYTES_MIN: usize = 8 * 1024;

/// What one turn sends of each of so many long calls.
pub(crate) fn piece_bytes(calls: usize) -> usize {
    let share = WHOLE_PIECES * PIECE_BYTES_MAX / calls.max(WHOLE_PIECES);
    share.max(PIECE_BYTES_MIN)
}

/// The text of a call up to its params.
#[derive(Clone, Debug, Default)]
pub(crate) struct CallText {
    /// All of the call, or the part before long params.
    pub(crate) head: Vec<u8>,
    pub(crate) long: Option<LongParams>,
}

impl CallText {
    pub(crate) fn clear(&mut self) {
        self.head.clear();
        if self.long.is_some() {
            self.long = None;
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.long.as_ref().map_or(0, LongParams::len)
    }

    /// Writes a long call. Its params are in `document` if they are shared.
    #[cold]
    pub(crate) fn write_long(
        &mut self,
        method: &[u8],
        params: Option<Cow<'_, [u8]>>,
        document: Option<&Arc<Vec<u8>>>,
    ) {
        let params = params.unwrap_or_default();
        if params.len() <= SHORT_BYTES_MAX {
            // The name is long: the whole call is sent as params are.
            let mut text = Vec::new();
            write_call(
                &mut text,
                method,
                Some(&params).filter(|it| !it.is_empty()).map(|it| &**it),
                0,
            );
            self.long = Some(LongParams::from(text));
            return;
        }
        write_call(&mut self.head, method, Some(b""), 0);
        let shared = document.and_then(|document| LongParams::shared(document, &params));
        self.long = Some(shared.unwrap_or_else(|| LongParams::from(params.into_owned())));
    }
}

/// Long params, in memory that others may share.
#[derive(Clone, Debug, Default)]
pub(crate) struct LongParams {
    document: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl LongParams {
    /// `params` without a copy, if they are at least half of `document`. A call of a long batch
    /// would hold all of that, and so would each of the others.
    fn shared(document: &Arc<Vec<u8>>, params: &[u8]) -> Option<Self> {
        if params.len() < document.len() / 2 {
            return None;
        }
        let start = params.as_ptr().addr().checked_sub(document.as_ptr().addr())?;
        let range = start..start + params.len();
        document.get(range.clone())?;
        Some(Self { document: document.clone(), range })
    }

    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    /// The memory of all that they share.
    pub(crate) fn held_bytes(&self) -> usize {
        self.document.capacity()
    }

    fn text(&self) -> &[u8] {
        self.document.get(self.range.clone()).unwrap_or_default()
    }
}

impl From<Vec<u8>> for LongParams {
    fn from(params: Vec<u8>) -> Self {
        let range = 0..params.len();
        Self { document: Arc::new(params), range }
    }
}

/// A call that is being sent.
#[derive(Debug)]
pub(crate) struct LongCall {
    pub(crate) params: LongParams,
    /// Bytes of the params that were in the output.
    sent: usize,
    /// The text after the params.
    pub(crate) end: Vec<u8>,
    is_line: bool,
}

impl LongCall {
    /// A call of which nothing was sent. Line breaks become spaces if it is to be a line.
    pub(crate) fn new(params: LongParams, end: Vec<u8>, is_line: bool) -> Self {
        Self { params, sent: 0, end, is_line }
    }

    /// Appends the next piece of at most `bytes_max` bytes. Returns whether it was the last.
    pub(crate) fn write_piece(&mut self, out: &mut Vec<u8>, bytes_max: usize) -> bool {
        let rest = self.params.text().get(self.sent..).unwrap_or_default();
        let piece = rest.get(..bytes_max).unwrap_or(rest);
        let (start, is_last) = (out.len(), piece.len() == rest.len());
        out.extend_from_slice(piece);
        if self.is_line {
            // A server that reads lines would take a part of the params for another call.
            to_one_line(out.get_mut(start..).unwrap_or_default());
        }
        self.sent += piece.len();
        if is_last {
            out.append(&mut self.end);
        }
        is_last
    }
}
