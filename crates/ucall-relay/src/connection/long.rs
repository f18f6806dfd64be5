//! Sends a long call piece by piece.

use std::ops::Range;
use std::time::Instant;

use super::{Connection, Framing};
use crate::http;
use crate::long_call::{CallText, LongCall, PIECE_BYTES_MAX, piece_bytes};
use crate::replies::to_one_line;
use crate::request::{CallContext, end_call, write_meta};

impl Connection {
    /// The bytes of a call with long params, which follow piece by piece.
    #[cold]
    pub(super) fn write_long(
        &mut self,
        text: &mut CallText,
        context: &CallContext,
        id: Option<u32>,
        now: Instant,
    ) -> Range<usize> {
        let (head, params) = (&text.head, text.long.take().unwrap_or_default());
        let (mut end, out) = (Vec::new(), &mut self.output);
        let is_line = match &mut self.framing {
            Framing::Raw(_) => {
                write_meta(&mut end, context, id, now);
                to_one_line(&mut end);
                end_call(&mut end, id);
                true
            }
            Framing::Http(target, reader) => {
                if target.takes_meta {
                    write_meta(&mut end, context, None, now);
                }
                end_call(&mut end, id.map(|_| http::ID));
                target.write_head(out, head.len() + params.len() + end.len(), context);
                reader.begin(id.is_none());
                false
            }
        };
        let start = out.len();
        out.extend_from_slice(head);
        self.long = Some(Box::new(LongCall::new(params, end, is_line)));
        self.load_piece(PIECE_BYTES_MAX);
        start..start + head.len()
    }

    /// After the output was passed on, or was not: loads the next piece, for which the next turn
    /// comes at once. That turn may learn of the end of the send, too, which io_uring reports only
    /// together with other events.
    pub(super) fn load_next_piece(
        &mut self,
        has_sent: bool,
        is_sending: bool,
        private: usize,
        now: Instant,
    ) {
        if has_sent {
            self.piece_at = self.long.is_some().then_some(now);
            self.load_piece(piece_bytes(private));
        } else if is_sending {
            self.piece_at = None;
        }
    }

    /// Appends the next piece of a long call to the output.
    fn load_piece(&mut self, bytes_max: usize) {
        if let Some(long) = &mut self.long
            && long.write_piece(&mut self.output, bytes_max)
        {
            self.long = None;
        }
    }

    /// Where the next line is written. A long call precedes it.
    pub(super) fn output_end(&mut self) -> &mut Vec<u8> {
        match &mut self.long {
            Some(long) => &mut long.end,
            None => &mut self.output,
        }
    }
}
