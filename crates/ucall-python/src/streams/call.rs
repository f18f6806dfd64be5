//! One call of a generator: where its items go, and how many wait.

use pyo3::prelude::*;
use ucall_server::{MemoryBudget, Reservation, Token};

use super::context::StreamContext;
use crate::convert::ConversionFault;
use crate::procedure::Procedure;

/// Items of a call that wait for the worker before its generator waits, too.
const WAITING_ITEMS_MAX: usize = 128;
/// The bytes of these items.
const WAITING_BYTES_MAX: usize = 16 << 10;

/// Where the items of a call go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ItemTarget {
    /// To the caller, each by itself.
    Caller,
    /// Into a list, which is the call's result.
    List,
    /// Nowhere: the call is a notification.
    Nowhere,
}

/// One call of a generator.
pub(super) struct StreamCall {
    pub(super) token: Token,
    pub(super) target: ItemTarget,
    /// The list of all items, if the target is one.
    pub(super) list: ItemList,
    pub(super) has_ended: bool,
    /// Whether the caller reads too slowly.
    pub(super) is_paused: bool,
    /// Items that the worker has not taken.
    pub(super) waiting: Items,
    /// Memory for the text of the next item.
    pub(super) cached_text: Vec<u8>,
}

/// The JSON texts of several items.
#[derive(Default)]
pub(crate) struct Items {
    text: Vec<u8>,
    /// Where each item ends.
    ends: Vec<usize>,
}

impl Items {
    /// Appends an item, and leaves memory for the next one in `text`; `true` for the first item.
    pub(super) fn push(&mut self, text: &mut Vec<u8>) -> bool {
        match self.ends.is_empty() {
            true => std::mem::swap(&mut self.text, text),
            false => self.text.extend_from_slice(text),
        }
        text.clear();
        self.ends.push(self.text.len());
        self.ends.len() == 1
    }

    /// The item at `index`.
    pub(super) fn item(&self, index: usize) -> Option<&[u8]> {
        let start = index.checked_sub(1).map_or(Some(0), |before| self.ends.get(before).copied());
        self.text.get(start?..*self.ends.get(index)?)
    }

    /// Removes all items, and keeps a little memory.
    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.text.shrink_to(WAITING_BYTES_MAX);
        self.ends.clear();
    }

    fn is_full(&self) -> bool {
        self.ends.len() >= WAITING_ITEMS_MAX || self.text.len() >= WAITING_BYTES_MAX
    }
}

impl StreamCall {
    pub(super) fn new(token: Token, target: ItemTarget) -> Self {
        Self {
            token,
            target,
            list: ItemList::default(),
            has_ended: false,
            is_paused: false,
            waiting: Items::default(),
            cached_text: Vec::new(),
        }
    }

    pub(super) fn is_full(&self) -> bool {
        !self.has_ended && (self.is_paused || self.waiting.is_full())
    }
}

/// The JSON text of a list that grows, without its last bracket.
#[derive(Default)]
pub(super) struct ItemList {
    text: Vec<u8>,
    items: usize,
    reserved: Reservation,
}

impl ItemList {
    pub(super) fn push(
        &mut self,
        procedure: &Procedure,
        context: &StreamContext,
        item: &Bound<'_, PyAny>,
    ) -> Result<(), ConversionFault> {
        self.text.push(if self.items == 0 { b'[' } else { b',' });
        // The bracket at the end needs a byte, too.
        let len_max = context.reply_bytes_max.saturating_sub(1);
        let written = procedure.write(&mut self.text, len_max, item);
        written.map_err(|fault| fault.at_index(self.items))?;
        self.items += 1;
        if self.text.capacity() > MemoryBudget::UNRESERVED_BYTES {
            self.reserved.resize(self.text.capacity(), &context.budget);
        }
        match self.text.len() > len_max {
            true => Err(ConversionFault::TooLarge),
            false => Ok(()),
        }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.text.extend_from_slice(if self.items == 0 { b"[]" } else { b"]" });
        self.text
    }
}
