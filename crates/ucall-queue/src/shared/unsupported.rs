//! In the place of shared memory, on systems that cannot seal it: nobody ever has any.
#![forbid(unsafe_code)]

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use ucall_buffer::Payload;
use ucall_engine::WakeFlag;

use crate::frame::{ProtocolError, Sharing};
use crate::link_key::LinkKey;
use crate::message::Body;

/// Fails: this system has none that can be sealed.
pub fn shared_memory() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// A piece of a message in shared memory.
#[derive(Clone, Debug)]
pub enum View {}

impl View {
    /// Where it begins.
    pub fn as_ptr(&self) -> *const u8 {
        match *self {}
    }

    /// Its length.
    pub fn len(&self) -> usize {
        match *self {}
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        match *self {}
    }

    /// The bytes, if nobody can change them.
    pub fn as_slice(&self) -> Option<&[u8]> {
        match *self {}
    }

    /// A copy.
    pub fn to_vec(&self) -> Vec<u8> {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) enum SharedMemory {}

impl SharedMemory {
    pub(crate) fn sharing(&self) -> Sharing {
        match *self {}
    }

    pub(crate) fn set_peer_sharing(&mut self, _theirs: Sharing) {
        match *self {}
    }

    pub(crate) fn begin_output(&mut self) {
        match *self {}
    }

    pub(crate) fn is_copying(&self) -> bool {
        match *self {}
    }

    pub(crate) fn next_batch(
        &mut self,
        _fetch: impl FnOnce() -> Option<Vec<Bytes>>,
    ) -> Option<Vec<Bytes>> {
        match *self {}
    }

    pub(crate) fn take(
        &mut self,
        _record: &[u8],
        _message_bytes_max: usize,
    ) -> Result<(u64, Body), ProtocolError> {
        match *self {}
    }

    pub(crate) fn release(&mut self, _slot: u64) -> Result<(), ProtocolError> {
        match *self {}
    }

    pub(crate) fn give_back(&mut self, _slot: usize) {
        match *self {}
    }

    pub(crate) fn write_releases(&mut self, _output: &mut Payload) {
        match *self {}
    }
}

#[derive(Debug)]
pub(crate) struct ReturnedSlots;

impl ReturnedSlots {
    pub(crate) fn new(_wake_flag: Arc<WakeFlag>) -> Self {
        Self
    }

    pub(crate) fn take(&self) -> Vec<(LinkKey, usize)> {
        Vec::new()
    }
}
