//! The calls that wait for replies on one connection, each by a number that is its id there.
//!
//! A call that its caller has given up keeps its slot until its reply arrives, so that this reply
//! is not taken for that of another call.

use std::time::Instant;

use ucall_engine::Id;
use ucall_server::{Share, Token};

use crate::long_call::CallText;
use crate::request::CallContext;

/// A call that an upstream has to answer.
#[derive(Debug)]
pub(crate) struct PendingCall {
    /// Names the call of the worker.
    pub(crate) token: Token,
    pub(crate) context: CallContext,
    /// The connection of its caller, if it is not shared by callers.
    pub(crate) caller: Option<Id>,
    /// Kept until the upstream has answered.
    pub(crate) share: Option<Share>,
    /// When it was passed to the connection.
    pub(crate) started: Instant,
    /// A bit for each upstream that it was passed to.
    pub(crate) tried: u64,
    /// Whether it was passed to more than one connection.
    pub(crate) is_repeated: bool,
    /// Its text up to the params, if it may be sent again. After an item it may not.
    pub(crate) repeatable: Option<Box<CallText>>,
}

#[derive(Debug)]
enum Slot {
    Free,
    Waiting(PendingCall),
    /// Nothing waits for the reply: the call was given up, or is a notification over HTTP.
    GivenUp {
        _share: Option<Share>,
    },
}

/// The slots of one connection.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    waiting: usize,
    /// The stream that was given up because of its items.
    refused: Option<u32>,
}

impl Slots {
    /// Slots with a call that may still be answered.
    pub(crate) fn used(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Calls that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn insert(&mut self, call: PendingCall) -> u32 {
        self.waiting += 1;
        self.insert_slot(Slot::Waiting(call))
    }

    /// Takes a slot until a reply that is discarded has arrived.
    pub(crate) fn insert_discarded(&mut self, share: Option<Share>) -> u32 {
        self.insert_slot(Slot::GivenUp { _share: share })
    }

    fn insert_slot(&mut self, slot: Slot) -> u32 {
        match self.free.pop() {
            Some(index) => {
                self.slots[index as usize] = slot;
                index
            }
            None => {
                self.slots.push(slot);
                (self.slots.len() - 1) as u32
            }
        }
    }

    /// Frees a slot whose reply has arrived. Returns its call, or `Some(None)` if that was given
    /// up; `None` if none was wanted.
    pub(crate) fn answer(&mut self, index: u32) -> Option<Option<PendingCall>> {
        let slot = self.slots.get_mut(index as usize)?;
        let answered = match std::mem::replace(slot, Slot::Free) {
            Slot::Free => return None,
            Slot::Waiting(call) => {
                self.waiting -= 1;
                Some(call)
            }
            Slot::GivenUp { .. } => None,
        };
        self.free.push(index);
        Some(answered)
    }

    /// The same for the only slot in use, if there is one.
    pub(crate) fn answer_only(&mut self) -> Option<Option<PendingCall>> {
        if self.used() != 1 {
            return None;
        }
        let index = self.slots.iter().position(|slot| !matches!(slot, Slot::Free))?;
        self.answer(index as u32)
    }

    /// The token of the stream of an item, as [`Slots::answer`] returns its call.
    pub(crate) fn stream(&mut self, index: u32) -> Option<Option<Token>> {
        match self.slots.get_mut(index as usize)? {
            Slot::Waiting(call) if call.context.takes_items => {
                call.repeatable = None;
                Some(Some(call.token))
            }
            Slot::GivenUp { .. } => Some(None),
            _ => None,
        }
    }

    /// Gives up a stream whose items the relay refuses; returns what [`Slots::stream`] does.
    pub(crate) fn refuse_stream(&mut self, index: u32) -> Option<Option<Token>> {
        let stream = self.stream(index);
        if let Some(Some(token)) = stream {
            self.give_up(index, token);
            self.refused = Some(index);
        }
        stream
    }

    /// The stream that was refused since the last time, which the upstream has to cancel.
    pub(crate) fn take_refused(&mut self) -> Option<u32> {
        self.refused.take()
    }

    /// Whether a call waits here.
    pub(crate) fn contains(&self, token: Token) -> bool {
        let is_wanted = |slot: &Slot| matches!(slot, Slot::Waiting(call) if call.token == token);
        self.slots.iter().any(is_wanted)
    }

    /// Gives up the call of a slot; returns it, if it is there.
    pub(crate) fn give_up(&mut self, index: u32, token: Token) -> Option<PendingCall> {
        let slot = self.slots.get_mut(index as usize)?;
        match std::mem::replace(slot, Slot::Free) {
            Slot::Waiting(mut call) if call.token == token => {
                *slot = Slot::GivenUp { _share: call.share.take() };
                self.waiting -= 1;
                Some(call)
            }
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Removes all calls that wait, with their slots.
    pub(crate) fn take_all(&mut self) -> Vec<(u32, PendingCall)> {
        let slots = std::mem::take(self).slots.into_iter().enumerate();
        let waiting = slots.filter_map(|(index, slot)| match slot {
            Slot::Waiting(call) => Some((index as u32, call)),
            Slot::Free | Slot::GivenUp { .. } => None,
        });
        waiting.collect()
    }
}
