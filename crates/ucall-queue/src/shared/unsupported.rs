//! Replaces shared memory on systems that cannot seal it: no link has any.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bytes::Bytes;
use ucall_buffer::Payload;
use ucall_engine::WakeFlag;

use crate::buffer_pool::BufferPool;
use crate::frame::{ProtocolError, Sharing};
use crate::link_key::LinkKey;
use crate::message::Body;

/// Fails, because this system has no memory that can be sealed.
pub fn shared_memory() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// One end of a channel.
#[derive(Debug)]
pub enum Channel {}

pub(crate) fn send_client_preamble(_connection: BorrowedFd<'_>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn send_preamble(_connection: BorrowedFd<'_>) -> io::Result<Option<Channel>> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn receive_preamble(_connection: BorrowedFd<'_>) -> io::Result<Option<Channel>> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(crate) fn match_client_preamble(_before: usize, _bytes: &[u8]) -> Option<usize> {
    None
}

pub(crate) fn is_preamble(_first: &[u8]) -> bool {
    false
}

#[derive(Debug)]
pub(crate) enum SharedMemory {}

impl SharedMemory {
    pub(crate) fn open(
        channel: Channel,
        _link: LinkKey,
        _trusts: bool,
        _slots_bytes_max: usize,
        _returned: Arc<ReturnedSlots>,
        _pool: Arc<BufferPool>,
    ) -> Option<Self> {
        match channel {}
    }

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

    pub(crate) fn release_later(&mut self, _slot: usize) {
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
