//! The XDP socket of one receive queue.
//!
//! A frame is in the fill ring, in the ring of received frames, here, in the ring of sent frames or
//! in the completion ring. A reply takes the frame of its request, so that no other is needed.

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use super::frame::DatagramFrame;
use super::interface::Interface;
use super::retry_until_released;
use super::rings::Ring;
use super::umem::{FRAME_BYTES, FRAMES, Mapping};
use crate::{DatagramPath, LocalAddress};

/// Frames that one system call sends at least, unless it fails.
const SENT_AT_ONCE: u32 = 32;
/// Of <asm-generic/socket.h>.
const SO_BUSY_POLL: libc::c_int = 46;
const SO_PREFER_BUSY_POLL: libc::c_int = 69;
const SO_BUSY_POLL_BUDGET: libc::c_int = 70;
/// How long the kernel polls the driver in one system call. One that returns at once polls once.
const BUSY_POLL_MICROS: u32 = 20;
/// Packets that one such poll takes.
const BUSY_POLL_PACKETS: u32 = 64;

/// Sends and receives the datagrams of one queue. Readable while datagrams wait.
pub struct XdpQueue {
    fill: Ring<u64>,
    completion: Ring<u64>,
    received: Ring<libc::xdp_desc>,
    sending: Ring<libc::xdp_desc>,
    frames: Mapping,
    socket: OwnedFd,
    interface: u32,
    mtu: usize,
    invalid: u64,
}

/// A received datagram. [`XdpQueue::reply`] or [`XdpQueue::release`] takes it back.
#[derive(Debug)]
#[must_use = "its frame is the queue's"]
pub struct XdpDatagram {
    start: usize,
    frame: DatagramFrame,
    path: DatagramPath,
}

impl XdpDatagram {
    /// Both ends.
    pub fn path(&self) -> DatagramPath {
        self.path
    }
}

/// A socket of no queue yet. It needs privileges, and [`XdpQueue::bind`] does not.
pub(super) fn socket(busy_poll: bool) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is a new one.
    let socket = unsafe {
        let socket = libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0);
        match socket {
            ..0 => return Err(io::Error::last_os_error()),
            _ => OwnedFd::from_raw_fd(socket),
        }
    };
    if busy_poll {
        set_option(&socket, libc::SOL_SOCKET, SO_PREFER_BUSY_POLL, &1u32)?;
        set_option(&socket, libc::SOL_SOCKET, SO_BUSY_POLL, &BUSY_POLL_MICROS)?;
        set_option(&socket, libc::SOL_SOCKET, SO_BUSY_POLL_BUDGET, &BUSY_POLL_PACKETS)?;
    }
    Ok(socket)
}

impl XdpQueue {
    /// Retries for `timeout` while another process has the queue, or the memory its user may lock.
    pub(super) fn bind(
        socket: OwnedFd,
        interface: &Interface,
        queue: u32,
        timeout: Duration,
    ) -> io::Result<Self> {
        let frames = Mapping::frames()?;
        // SAFETY: zeros are a valid value of this plain structure.
        let mut memory: libc::xdp_umem_reg = unsafe { mem::zeroed() };
        memory.addr = frames.start() as u64;
        memory.len = frames.len() as u64;
        memory.chunk_size = FRAME_BYTES as u32;
        retry_until_released(timeout, || {
            set_option(&socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &memory)
        })?;
        for ring in [
            libc::XDP_UMEM_FILL_RING,
            libc::XDP_UMEM_COMPLETION_RING,
            libc::XDP_RX_RING,
            libc::XDP_TX_RING,
        ] {
            set_option(&socket, libc::SOL_XDP, ring, &FRAMES)?;
        }
        let offsets: libc::xdp_mmap_offsets = option(&socket, libc::XDP_MMAP_OFFSETS)?;
        let at = socket.as_fd();
        let mut fill = Ring::map(at, libc::XDP_UMEM_PGOFF_FILL_RING, offsets.fr, FRAMES)?;
        let pages = libc::XDP_UMEM_PGOFF_COMPLETION_RING;
        let completion = Ring::map(at, pages, offsets.cr, FRAMES)?;
        let received = Ring::map(at, libc::XDP_PGOFF_RX_RING as u64, offsets.rx, FRAMES)?;
        let sending = Ring::map(at, libc::XDP_PGOFF_TX_RING as u64, offsets.tx, FRAMES)?;
        for frame in 0..FRAMES {
            fill.push(u64::from(frame) * FRAME_BYTES as u64);
        }
        retry_until_released(timeout, || bind(&socket, interface.index, queue))?;
        Ok(Self {
            fill,
            completion,
            received,
            sending,
            frames,
            socket,
            interface: interface.index,
            mtu: interface.mtu,
            invalid: 0,
        })
    }

    /// Whether the driver writes into the frames itself.
    pub(super) fn is_zero_copy(&self) -> bool {
        let options: io::Result<u32> = option(&self.socket, libc::XDP_OPTIONS);
        options.is_ok_and(|options| options & libc::XDP_OPTIONS_ZEROCOPY != 0)
    }

    /// Has the kernel poll the driver once for frames, rather than wait for an interrupt.
    pub fn poll(&mut self) {
        let (socket, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        // SAFETY: no memory is passed. A failure leaves the frames to the interrupt.
        unsafe { libc::recv(socket, std::ptr::null_mut(), 0, flags) };
    }

    /// The next datagram that waits.
    pub fn receive(&mut self) -> Option<XdpDatagram> {
        loop {
            let entry = self.received.pop()?;
            let start = entry.addr as usize;
            // SAFETY: the kernel has returned the frame.
            let bytes = unsafe { self.frames.frame(start) };
            let found = bytes.get(..entry.len as usize).and_then(DatagramFrame::parse);
            if let Some(frame) = found {
                let path = path(&frame, self.interface);
                return Some(XdpDatagram { start, frame, path });
            }
            self.invalid += 1;
            self.fill.push(frame_of(entry.addr));
        }
    }

    /// The bytes of a datagram.
    pub fn bytes(&mut self, datagram: &XdpDatagram) -> &[u8] {
        // SAFETY: the frame is not returned to the kernel as long as the datagram exists.
        let frame = unsafe { self.frames.frame(datagram.start) };
        frame.get(datagram.frame.payload.clone()).unwrap_or_default()
    }

    /// Queues the reply to a datagram until [`XdpQueue::flush`]. `false` if it is too long for a
    /// frame.
    pub fn reply(&mut self, datagram: XdpDatagram, bytes: &[u8]) -> bool {
        let addr = datagram.start as u64;
        // SAFETY: as in `bytes`.
        let frame = unsafe { self.frames.frame(datagram.start) };
        match datagram.frame.write_reply(frame, bytes, self.mtu) {
            Some(len) => {
                self.sending.push(libc::xdp_desc { addr, len: len as u32, options: 0 });
                true
            }
            None => {
                self.release(datagram);
                false
            }
        }
    }

    /// Returns the frame of a datagram that gets no reply.
    pub fn release(&mut self, datagram: XdpDatagram) {
        self.fill.push(frame_of(datagram.start as u64));
    }

    /// Sends the queued replies. What is left after some attempts is sent by a later flush.
    pub fn flush(&mut self) {
        for _ in 0..=FRAMES / SENT_AT_ONCE {
            if !self.sending.has_unread() || !self.sending.needs_wakeup() {
                break;
            }
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: no memory is passed.
            let sent = unsafe {
                libc::sendto(
                    self.socket.as_raw_fd(),
                    std::ptr::null(),
                    0,
                    flags,
                    std::ptr::null(),
                    0,
                )
            };
            // The kernel has sent a part of them, or none for want of memory, or dropped one.
            let error = io::Error::last_os_error().raw_os_error();
            let may_continue = [libc::EAGAIN, libc::ENOBUFS, libc::EBUSY, libc::EINTR].map(Some);
            if sent < 0 && !may_continue.contains(&error) {
                break;
            }
        }
        while let Some(sent) = self.completion.pop() {
            self.fill.push(frame_of(sent));
        }
    }

    /// Datagrams that were lost here: that had wrong checksums, or found no frame.
    pub fn drops(&self) -> u64 {
        let found: io::Result<libc::xdp_statistics> = option(&self.socket, libc::XDP_STATISTICS);
        let kernel = found.map_or(0, |found| found.rx_dropped + found.rx_ring_full);
        kernel + self.invalid
    }
}

impl AsFd for XdpQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The start of the frame that an address is in.
fn frame_of(address: u64) -> u64 {
    address - address % FRAME_BYTES as u64
}

/// The scope of link-local addresses is the interface.
fn path(frame: &DatagramFrame, interface: u32) -> DatagramPath {
    let mut peer = frame.peer;
    if let SocketAddr::V6(peer) = &mut peer
        && peer.ip().is_unicast_link_local()
    {
        peer.set_scope_id(interface);
    }
    let interface = match frame.local {
        IpAddr::V6(local) if local.is_unicast_link_local() => interface,
        _ => 0,
    };
    DatagramPath { peer, local: Some(LocalAddress { ip: frame.local, interface }) }
}

/// Binds, with zero-copy if the driver has it.
fn bind(socket: &OwnedFd, interface: u32, queue: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of the address.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_option<T>(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of the value.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const *value).cast(), len)
    };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn option<T: Copy>(socket: &OwnedFd, name: libc::c_int) -> io::Result<T> {
    let mut len = size_of::<T>() as libc::socklen_t;
    let mut value = mem::MaybeUninit::<T>::zeroed();
    // SAFETY: the kernel writes at most `len` bytes; the values are plain numbers, for which zeros
    // are valid.
    unsafe {
        let place = value.as_mut_ptr().cast();
        match libc::getsockopt(socket.as_raw_fd(), libc::SOL_XDP, name, place, &raw mut len) {
            0 => Ok(value.assume_init()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}
