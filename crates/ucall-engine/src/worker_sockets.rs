//! Sockets by which the worker processes of one server send messages to each other.
//!
//! The supervisor makes a pair of Unix sockets for each worker before it starts any, so that a
//! worker that is started again can be sent to as well. A message is sent whole or not at all. A
//! long one is passed in a file without a name, whose descriptor is sent.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// Longer messages are sent in a file. macOS takes no longer ones by default.
const INLINE_MAX: usize = if cfg!(target_os = "linux") { 16 << 10 } else { 2 << 10 };

#[cfg(target_os = "linux")]
const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);
#[cfg(not(target_os = "linux"))]
const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT;

/// The receiving socket of this process, and the sending sockets of all workers.
#[derive(Debug)]
pub struct WorkerSockets {
    receiver: Option<OwnedFd>,
    senders: Vec<OwnedFd>,
}

impl WorkerSockets {
    /// Takes over sockets that keep the bounds of messages. The receiver blocks.
    pub fn new(receiver: Option<OwnedFd>, senders: Vec<OwnedFd>) -> Self {
        Self { receiver, senders }
    }

    /// The number of workers that can be sent to.
    pub fn len(&self) -> usize {
        self.senders.len()
    }

    /// Whether there are no other workers.
    pub fn is_empty(&self) -> bool {
        self.senders.is_empty()
    }

    /// Sends a message to a worker, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if the worker has not received earlier messages.
    pub fn send(&self, worker: usize, message: &[u8]) -> io::Result<()> {
        let Some(sender) = self.senders.get(worker) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        if message.len() <= INLINE_MAX {
            return send(sender, message, &mut SendAncillaryBuffer::default());
        }
        let mut file = anonymous_file()?;
        file.write_all(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [file.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&descriptors));
        send(sender, b"f", &mut ancillary)
    }

    /// Waits for the next message to this process.
    ///
    /// # Errors
    /// There is no receiver, or it has failed.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        self.receive_with(RecvFlags::empty())
    }

    /// Discards the messages that have arrived.
    pub fn discard(&self) {
        while self.receive_with(RecvFlags::DONTWAIT).is_ok() {}
    }

    fn receive_with(&self, flags: RecvFlags) -> io::Result<Vec<u8>> {
        let receiver = self.receiver.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let mut bytes = vec![0; INLINE_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            match recvmsg(receiver, &mut slices, &mut ancillary, flags | CLOSE_ON_EXEC) {
                Err(Errno::INTR) => {}
                received => break received?,
            }
        };
        let mut files = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        if let Some(file) = files.next() {
            return read_file(File::from(file));
        }
        match received.bytes {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            len => {
                bytes.truncate(len);
                bytes.shrink_to_fit();
                Ok(bytes)
            }
        }
    }
}

#[cfg(target_os = "linux")]
const CLOSE_ON_EXEC: RecvFlags = RecvFlags::CMSG_CLOEXEC;
#[cfg(not(target_os = "linux"))]
const CLOSE_ON_EXEC: RecvFlags = RecvFlags::empty();

fn send(
    sender: &OwnedFd,
    bytes: &[u8],
    ancillary: &mut SendAncillaryBuffer<'_, '_, '_>,
) -> io::Result<()> {
    loop {
        match sendmsg(sender, &[IoSlice::new(bytes)], ancillary, SEND_FLAGS) {
            Err(Errno::INTR) => {}
            // macOS reports a full buffer so.
            Err(Errno::NOBUFS) => return Err(io::ErrorKind::WouldBlock.into()),
            sent => return sent.map(drop).map_err(io::Error::from),
        }
    }
}

fn read_file(mut file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(target_os = "linux")]
fn anonymous_file() -> io::Result<File> {
    use rustix::fs::{MemfdFlags, memfd_create};
    Ok(File::from(memfd_create(c"ucall-message", MemfdFlags::CLOEXEC)?))
}

#[cfg(not(target_os = "linux"))]
fn anonymous_file() -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("ucall-{}-{number}", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::expect_used, reason = "a test fails by panicking")]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn sockets() -> WorkerSockets {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let (receiver, sender) =
            socketpair(family, kind, SocketFlags::CLOEXEC, None).expect("a pair of sockets");
        WorkerSockets::new(Some(receiver), vec![sender])
    }

    #[test]
    fn messages_of_any_length_arrive_whole() {
        let sockets = sockets();
        for len in [1, INLINE_MAX, INLINE_MAX + 1, 3 << 20] {
            let message: Vec<u8> = (0..len).map(|at| at as u8).collect();
            sockets.send(0, &message).expect("there is room");
            assert_eq!(sockets.receive().expect("a message"), message);
        }
        assert!(sockets.send(1, b"x").is_err());
    }

    #[test]
    fn a_full_socket_blocks_nobody_and_can_be_emptied() {
        let sockets = sockets();
        let mut sent = 0;
        let error = loop {
            match sockets.send(0, &[0; 1000]) {
                Ok(()) => sent += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(sent > 10, "{sent}");
        sockets.discard();
        sockets.send(0, b"new").expect("there is room again");
        assert_eq!(sockets.receive().expect("a message"), b"new");
    }
}
