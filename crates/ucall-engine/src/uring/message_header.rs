//! A message header with its parts and its address, all at a stable address.

use std::net::SocketAddr;
use std::ptr;

use socket2::{SockAddr, SockAddrStorage};

use super::memory::StableBox;

/// Parts of one send; the kernel's maximum (`UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;

pub(super) struct MessageHeader {
    header: libc::msghdr,
    parts: Vec<libc::iovec>,
    address: SockAddrStorage,
}

impl MessageHeader {
    pub(super) fn new() -> StableBox<Self> {
        // SAFETY: a header of zeros is a valid one: no name, no parts, no control data.
        let header = unsafe { std::mem::zeroed() };
        StableBox::new(Box::new(Self {
            header,
            parts: Vec::new(),
            address: SockAddrStorage::zeroed(),
        }))
    }

    /// Sets the parts to send, and the destination if the socket is not connected. Returns the
    /// number of bytes, because there may be more slices than one send takes. The slices must keep
    /// their addresses until they are sent.
    pub(super) fn outgoing<'a>(
        &mut self,
        slices: impl Iterator<Item = &'a [u8]>,
        peer: Option<SocketAddr>,
    ) -> (*const libc::msghdr, usize) {
        let part = |slice: &[u8]| libc::iovec {
            iov_base: slice.as_ptr().cast_mut().cast(),
            iov_len: slice.len(),
        };
        self.parts.clear();
        self.parts.extend(slices.take(PARTS_MAX).map(part));
        let peer = peer.map(SockAddr::from);
        let len = peer.as_ref().map_or(0, SockAddr::len);
        self.address = peer.map_or_else(SockAddrStorage::zeroed, SockAddr::as_storage);
        let bytes = self.parts.iter().map(|part| part.iov_len).sum();
        (self.header(len), bytes)
    }

    /// Names where to receive a datagram and its sender.
    pub(super) fn incoming(&mut self, room: *mut [u8]) -> *mut libc::msghdr {
        self.parts.clear();
        self.parts.push(libc::iovec { iov_base: room.cast(), iov_len: room.len() });
        self.header(self.address.size_of())
    }

    fn header(&mut self, address_len: libc::socklen_t) -> *mut libc::msghdr {
        let address = &raw mut self.address;
        self.header.msg_name = if address_len == 0 { ptr::null_mut() } else { address.cast() };
        self.header.msg_namelen = address_len;
        self.header.msg_iov = self.parts.as_mut_ptr();
        self.header.msg_iovlen = self.parts.len() as _;
        &raw mut self.header
    }

    /// Who sent the datagram that was received.
    pub(super) fn sender(&self) -> Option<SocketAddr> {
        // SAFETY: the storage is plain bytes; the kernel wrote an address and its length there, or
        // left it zeroed.
        unsafe { SockAddr::new(ptr::read(&self.address), self.header.msg_namelen) }.as_socket()
    }
}
