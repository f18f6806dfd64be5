//! One call of a generator: where its items go, and how many wait.

use std::sync::Arc;

use pyo3::prelude::*;
use ucall_proto::json::write_string;
use ucall_server::{MemoryBudget, Reservation, Token};

use super::context::StreamContext;
use crate::awaited_call::AwaitedCall;
use crate::convert::ConversionFault;
use crate::origin::CallOrigin;

/// Items of a call that wait for the worker before its generator waits, too.
const WAITING_ITEMS_MAX: usize = 128;
/// The bytes of these items.
pub(super) const WAITING_BYTES_MAX: usize = 16 << 10;

/// Where the items of a call go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ItemTarget {
    /// To the caller, each by itself.
    Caller,
    /// Into a list, which is the call's result.
    List,
    /// Into a list, and to the caller as progress: over MCP.
    Reported,
    /// Nowhere: the call is a notification.
    Nowhere,
    /// To the async hook that awaits them, as objects.
    Hook,
}

/// Finds a call of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallKey {
    pub(super) position: usize,
    pub(super) token: Token,
    /// Where its items go.
    pub(super) target: ItemTarget,
}

/// A call that a stream begins to answer.
pub(crate) struct NewCall {
    pub(crate) token: Token,
    pub(crate) target: ItemTarget,
    /// Who has made it, for the log.
    pub(crate) origin: Option<Arc<CallOrigin>>,
    /// Set if an async hook awaits it.
    pub(crate) awaited: Option<Arc<AwaitedCall>>,
}

/// Where a call is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CallPlace {
    /// It waits for a slot.
    Queue,
    /// The generator works at it: in a slot, alone, or in a batch.
    Generator,
    /// The generator knows that it has ended. Its items may wait for the worker.
    Left,
    /// It is over, and another call may take its record.
    Free,
}

/// One call of a generator.
pub(super) struct StreamCall {
    pub(super) token: Token,
    pub(super) place: CallPlace,
    /// Who has made it, for the log.
    pub(super) origin: Option<Arc<CallOrigin>>,
    /// Has its items, if an async hook awaits them.
    pub(super) awaited: Option<Arc<AwaitedCall>>,
    /// The list of all items, if the target is one.
    pub(super) list: ItemList,
    pub(super) has_ended: bool,
    /// Whether the caller reads too slowly.
    pub(super) is_paused: bool,
    /// Items that the worker has not taken.
    pub(super) waiting: Items,
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
        self.ends.push(self.text.len());
        self.ends.len() == 1
    }

    /// Appends an item in place of the last one.
    pub(super) fn replace_last(&mut self, text: &mut Vec<u8>) {
        self.ends.pop();
        self.text.truncate(self.ends.last().copied().unwrap_or(0));
        self.push(text);
    }

    /// The bytes of all items.
    pub(super) fn bytes(&self) -> usize {
        self.text.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
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

    pub(super) fn is_full(&self) -> bool {
        self.ends.len() >= WAITING_ITEMS_MAX || self.text.len() >= WAITING_BYTES_MAX
    }
}

impl StreamCall {
    pub(super) fn new(token: Token, place: CallPlace, origin: Option<Arc<CallOrigin>>) -> Self {
        Self {
            token,
            place,
            origin,
            awaited: None,
            list: ItemList::default(),
            has_ended: false,
            is_paused: false,
            waiting: Items::default(),
        }
    }

    /// Adds the text of an item, and leaves memory for the next one. Returns the token if this is
    /// the first item that waits.
    pub(super) fn add(
        &mut self,
        target: ItemTarget,
        text: &mut Vec<u8>,
        context: &StreamContext,
    ) -> Result<Option<Token>, ConversionFault> {
        match target {
            ItemTarget::Caller => Ok(self.waiting.push(text).then_some(self.token)),
            ItemTarget::List => self.list.push(text, context).map(|()| None),
            ItemTarget::Reported => {
                self.list.push(text, context)?;
                let mut report = report_of(self.list.len(), text);
                Ok(self.waiting.push(&mut report).then_some(self.token))
            }
            ItemTarget::Nowhere | ItemTarget::Hook => Ok(None),
        }
    }

    /// Adds an item for the hook. Returns the token if this is the first one that waits.
    pub(super) fn add_for_hook(&mut self, item: Py<PyAny>) -> Option<Token> {
        let awaited = self.awaited.as_ref()?;
        awaited.push_item(item).then_some(self.token)
    }

    pub(super) fn is_full(&self) -> bool {
        let is_full_for_hook = || self.awaited.as_ref().is_some_and(|it| it.is_full());
        !self.has_ended && (self.is_paused || self.waiting.is_full() || is_full_for_hook())
    }
}

/// The report of the item at this place, from 1 on: its text, or its JSON.
fn report_of(place: usize, item: &[u8]) -> Vec<u8> {
    let mut report = format!(r#"{{"progress":{place},"message":"#).into_bytes();
    if item.starts_with(b"\"") {
        report.extend_from_slice(item);
    } else {
        write_string(&mut report, &String::from_utf8_lossy(item));
    }
    report.push(b'}');
    report
}

/// The JSON text of a list that grows, without its last bracket.
#[derive(Default)]
pub(super) struct ItemList {
    text: Vec<u8>,
    items: usize,
    reserved: Reservation,
}

impl ItemList {
    pub(super) fn len(&self) -> usize {
        self.items
    }

    fn push(&mut self, item: &[u8], context: &StreamContext) -> Result<(), ConversionFault> {
        // The brackets or commas around the item, and the bracket at the end.
        let len_max = context.reply_bytes_max.saturating_sub(1);
        if self.text.len() + 1 + item.len() > len_max {
            return Err(ConversionFault::TooLarge);
        }
        self.text.push(if self.items == 0 { b'[' } else { b',' });
        self.text.extend_from_slice(item);
        self.items += 1;
        if self.text.capacity() > MemoryBudget::UNRESERVED_BYTES {
            self.reserved.resize(self.text.capacity(), &context.budget);
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.text.extend_from_slice(if self.items == 0 { b"[]" } else { b"]" });
        self.text
    }
}
