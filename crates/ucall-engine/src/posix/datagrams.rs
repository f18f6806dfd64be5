//! Datagram sockets. On Linux one system call receives or sends many datagrams.

use std::io;
use std::mem;
use std::net::UdpSocket;

use super::ReadReadiness;
use crate::datagram::{DatagramDrops, DatagramPath};

/// Datagrams received or sent in one system call.
const BATCH: usize = 32;
/// No datagram is longer (the length field of RFC 768 has 16 bits).
const DATAGRAM_BYTES_MAX: usize = 1 << 16;

pub(super) struct Datagrams {
    pub(super) socket: UdpSocket,
    /// Memory for one batch. The system provides pages of it as long datagrams need them.
    buffer: Box<[u8]>,
    /// The length and the path of each datagram in the buffer.
    received: Vec<(usize, DatagramPath)>,
    /// How many of these were taken.
    taken: usize,
    /// What is to be sent: the bytes one after another, and the end and the path of each.
    outgoing: Vec<u8>,
    destinations: Vec<(usize, DatagramPath)>,
    pub(super) drops: DatagramDrops,
}

impl Datagrams {
    pub(super) fn new(socket: UdpSocket) -> Self {
        Self {
            socket,
            buffer: vec![0; BATCH * DATAGRAM_BYTES_MAX].into_boxed_slice(),
            received: Vec::with_capacity(BATCH),
            taken: 0,
            outgoing: Vec::new(),
            destinations: Vec::new(),
            drops: DatagramDrops::default(),
        }
    }

    /// Whether datagrams were received and not taken.
    pub(super) fn has_received(&self) -> bool {
        self.taken < self.received.len()
    }

    /// The next datagram. Receives another batch from the kernel after the last of one was taken.
    pub(super) fn next(
        &mut self,
        readiness: &mut ReadReadiness,
        calls: &mut u64,
    ) -> io::Result<(&mut [u8], DatagramPath)> {
        if !self.has_received() && readiness.readable && !readiness.paused {
            *calls += 1;
            self.received.clear();
            self.taken = 0;
            let received = self.receive_batch();
            readiness.readable = match &received {
                // Fewer than a batch: the socket is empty, and the next datagram is an edge.
                Ok(()) => self.received.len() == BATCH,
                Err(error) => error.kind() != io::ErrorKind::WouldBlock,
            };
            received?;
        }
        let Some(&(len, path)) = self.received.get(self.taken) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let start = self.taken * DATAGRAM_BYTES_MAX;
        self.taken += 1;
        Ok((&mut self.buffer[start..start + len], path))
    }

    /// Queues a datagram; sends when a batch is full.
    pub(super) fn send(&mut self, bytes: &[u8], path: DatagramPath, calls: &mut u64) {
        self.outgoing.extend_from_slice(bytes);
        self.destinations.push((self.outgoing.len(), path));
        if self.destinations.len() == BATCH {
            self.flush(calls);
        }
    }

    /// Sends the queued datagrams. Those that the kernel does not take are dropped: a full buffer
    /// would delay them until they are of no use.
    pub(super) fn flush(&mut self, calls: &mut u64) {
        let destinations = mem::take(&mut self.destinations);
        let mut first = 0;
        while first < destinations.len() {
            *calls += 1;
            match self.send_batch(&destinations, first) {
                Ok(count) => first += count.max(1),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.drops.sent += (destinations.len() - first) as u64;
                    break;
                }
                Err(_) => {
                    self.drops.sent += 1;
                    first += 1;
                }
            }
        }
        self.outgoing.clear();
        self.destinations = destinations;
        self.destinations.clear();
    }

    /// Where the bytes of a queued datagram begin.
    fn start_of(destinations: &[(usize, DatagramPath)], index: usize) -> usize {
        index.checked_sub(1).and_then(|before| destinations.get(before)).map_or(0, |it| it.0)
    }
}

#[cfg(target_os = "linux")]
mod batch {
    use std::net::{IpAddr, Ipv4Addr, SocketAddr};
    use std::os::fd::AsRawFd;

    use socket2::{SockAddr, SockAddrStorage};

    use super::*;
    use crate::datagram::{CONTROL_BYTES, Control, write_local};

    /// The sender of a datagram that has none. It takes no reply.
    const UNKNOWN_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

    impl Datagrams {
        /// Receives up to a batch.
        pub(super) fn receive_batch(&mut self) -> io::Result<()> {
            let mut names: [SockAddrStorage; BATCH] =
                std::array::from_fn(|_| SockAddrStorage::zeroed());
            let mut controls = [[0u8; CONTROL_BYTES]; BATCH];
            // SAFETY: zeros are a valid value of these plain structures.
            let mut parts: [libc::iovec; BATCH] = unsafe { mem::zeroed() };
            // SAFETY: as above.
            let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
            let rooms = self.buffer.chunks_exact_mut(DATAGRAM_BYTES_MAX);
            for (index, room) in rooms.enumerate() {
                parts[index] =
                    libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
                let header = &mut headers[index].msg_hdr;
                header.msg_name = (&raw mut names[index]).cast();
                header.msg_namelen = size_of::<SockAddrStorage>() as libc::socklen_t;
                header.msg_iov = &raw mut parts[index];
                header.msg_iovlen = 1;
                header.msg_control = controls[index].as_mut_ptr().cast();
                header.msg_controllen = CONTROL_BYTES as _;
            }
            let descriptor = self.socket.as_raw_fd();
            // SAFETY: each header names memory that outlives the call.
            let count = retry(|| unsafe {
                libc::recvmmsg(
                    descriptor,
                    headers.as_mut_ptr(),
                    BATCH as _,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            })?;
            for (index, name) in names.into_iter().enumerate().take(count) {
                let header = &headers[index];
                // SAFETY: the kernel has written an address of that length.
                let peer = unsafe { SockAddr::new(name, header.msg_hdr.msg_namelen) };
                let peer = peer.as_socket().unwrap_or(UNKNOWN_PEER);
                let control = Control::read(&controls[index]);
                self.drops.received = control.drops.map_or(self.drops.received, u64::from);
                let path = DatagramPath { peer, local: control.local };
                self.received.push((header.msg_len as usize, path));
            }
            Ok(())
        }

        /// Sends a batch from `first` on; returns how many were sent.
        pub(super) fn send_batch(
            &self,
            destinations: &[(usize, DatagramPath)],
            first: usize,
        ) -> io::Result<usize> {
            let mut controls = [[0u8; CONTROL_BYTES]; BATCH];
            // SAFETY: zeros are a valid value of these plain structures.
            let mut parts: [libc::iovec; BATCH] = unsafe { mem::zeroed() };
            // SAFETY: as above.
            let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
            let mut start = Self::start_of(destinations, first);
            let names: Vec<SockAddr> =
                destinations[first..].iter().map(|(_, path)| path.peer.into()).collect();
            for (index, (end, path)) in destinations[first..].iter().enumerate() {
                let bytes = &self.outgoing[start..*end];
                start = *end;
                parts[index] = libc::iovec {
                    iov_base: bytes.as_ptr().cast_mut().cast(),
                    iov_len: bytes.len(),
                };
                let header = &mut headers[index].msg_hdr;
                header.msg_name = names[index].as_ptr().cast_mut().cast();
                header.msg_namelen = names[index].len();
                header.msg_iov = &raw mut parts[index];
                header.msg_iovlen = 1;
                let control_len = write_local(path.local, &mut controls[index]);
                if control_len > 0 {
                    header.msg_control = controls[index].as_mut_ptr().cast();
                    header.msg_controllen = control_len as _;
                }
            }
            let descriptor = self.socket.as_raw_fd();
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: each header names memory that outlives the call.
            retry(|| unsafe {
                libc::sendmmsg(descriptor, headers.as_mut_ptr(), names.len() as _, flags as _)
            })
        }
    }

    fn retry(mut call: impl FnMut() -> i32) -> io::Result<usize> {
        loop {
            match usize::try_from(call()) {
                Ok(count) => return Ok(count),
                Err(_) => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
    }
}

/// Systems without calls for several datagrams.
#[cfg(not(target_os = "linux"))]
impl Datagrams {
    fn receive_batch(&mut self) -> io::Result<()> {
        for room in self.buffer.chunks_exact_mut(DATAGRAM_BYTES_MAX) {
            match self.socket.recv_from(room) {
                Ok((len, peer)) => self.received.push((len, peer.into())),
                Err(_) if !self.received.is_empty() => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn send_batch(
        &self,
        destinations: &[(usize, DatagramPath)],
        first: usize,
    ) -> io::Result<usize> {
        let (end, path) = destinations[first];
        let start = Self::start_of(destinations, first);
        self.socket.send_to(&self.outgoing[start..end], path.peer).map(|_| 1)
    }
}
