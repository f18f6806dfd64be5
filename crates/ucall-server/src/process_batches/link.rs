//! The connection of a server and one process: messages over a pair of sockets, their bytes in
//! shared memory.
//!
//! A short message is behind its head in the socket. A longer one is copied once, into a slot of
//! shared memory, where the other side reads it; the slot is free again when the last view of it
//! is dropped. Without a free slot (the system has no memory for one, or there is no shared memory)
//! the bytes go through the socket as well.
//!
//! Neither side relies on the other's head: user code may write to the socket by its descriptor.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use bytes::Bytes;
use ucall_buffer::{PartPlace, SharedMemory, SharedMemoryError, SlotOwner, SlotPlace};
use ucall_engine::shared::{
    Preamble, Side, SlotMemory, receive_server_preamble, send_server_preamble,
};
use ucall_engine::{Wanted, wait_for_any};

use super::message::{ALIGNMENT, Encoded};

/// The first bytes of a server.
const PREAMBLE: [u8; 8] = *b"ucallbp1";
/// The first bytes of each message.
const MAGIC: u64 = u64::from_le_bytes(*b"ucallmsg");
/// Magic, kind, number, length, slot and descriptor.
const HEAD_NUMBERS: usize = 6;
const HEAD_BYTES: usize = 8 * HEAD_NUMBERS;
/// Longer messages are in shared memory.
const INLINE_BYTES_MAX: u64 = 16 * 1024;
/// No message is longer: more than the parts of a batch in a process's memory can be.
const MESSAGE_BYTES_MAX: u64 = 1 << 40;
/// The shared memory of one process, in each direction. Batches past it go through the socket.
const SHARED_BYTES_MAX: u64 = 512 << 20;
const READ_BYTES: usize = 64 * 1024;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MessageKind {
    /// The process takes batches from now on. Its bytes are the times that it has measured.
    Ready = 1,
    /// The process does not start; the reason is its text.
    Failed = 2,
    /// A batch.
    Batch = 3,
    /// The results of the batch with this number.
    Results = 4,
    /// The batch with this number is not to begin. A process has lost it by then; a host replies by
    /// `Recalled`, unless the batch has begun.
    Recall = 5,
    /// A process of the host begins the batch with this number.
    Began = 6,
    /// No process of the host will begin the batch with this number.
    Recalled = 7,
}

impl MessageKind {
    fn of_number(number: u64) -> Option<Self> {
        let sent_first = [Self::Ready, Self::Failed, Self::Batch, Self::Results];
        let others = [Self::Recall, Self::Began, Self::Recalled];
        sent_first.into_iter().chain(others).find(|kind| *kind as u64 == number)
    }
}

/// What a message is, its number and its bytes.
pub type Received = (MessageKind, u64, Bytes);

/// One side of the connection.
#[derive(Debug)]
pub struct ProcessLink {
    socket: UnixStream,
    memory: Option<SlotMemory>,
    /// What was read and is no whole message yet.
    input: Vec<u8>,
    /// What the socket has not taken yet.
    output: Vec<u8>,
    written: usize,
}

impl ProcessLink {
    /// The server's side, which never blocks. It makes the shared memory.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn of_server(socket: UnixStream) -> io::Result<Self> {
        let channel = match send_server_preamble(socket.as_fd(), &PREAMBLE) {
            Err(error) if error.kind() == ErrorKind::Unsupported => None,
            channel => channel?,
        };
        socket.set_nonblocking(true)?;
        let memory = channel
            .map(|it| SlotMemory::new(it, SHARED_BYTES_MAX, SHARED_BYTES_MAX, Side::Client, true));
        Ok(Self::new(socket, memory))
    }

    /// The process's side, which waits in each of its functions.
    ///
    /// # Errors
    /// The socket is closed, or has no server.
    pub fn of_process(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        let channel = loop {
            match receive_server_preamble(socket.as_fd()) {
                Ok(Preamble::With(channel, PREAMBLE)) => break channel,
                Ok(_) => return Err(invalid()),
                Err(error) if error.kind() == ErrorKind::Unsupported => break None,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let wanted = Wanted { descriptor: socket.as_fd(), writable: false };
                    wait_for_any([wanted], None)?;
                }
                Err(error) => return Err(error),
            }
        };
        let memory = channel
            .map(|it| SlotMemory::new(it, SHARED_BYTES_MAX, SHARED_BYTES_MAX, Side::Server, true));
        Ok(Self::new(socket, memory))
    }

    fn new(socket: UnixStream, memory: Option<SlotMemory>) -> Self {
        Self { socket, memory, input: Vec::new(), output: Vec::new(), written: 0 }
    }

    /// The socket, to wait for.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Has a process's side never block, either.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn never_block(self) -> io::Result<Self> {
        self.socket.set_nonblocking(true)?;
        Ok(self)
    }

    /// Whether a part of a message waits until the socket can be written.
    pub fn has_output(&self) -> bool {
        self.written < self.output.len()
    }

    /// Sends a message, or as much of it as the socket takes. A batch has a number, which its
    /// results have, too.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn send(
        &mut self,
        kind: MessageKind,
        number: u64,
        message: &Encoded<'_>,
    ) -> io::Result<()> {
        let place = match &mut self.memory {
            Some(memory) if message.len() > INLINE_BYTES_MAX => {
                let placed = memory.place_message(message.len(), &mut message.pieces());
                placed.map_err(|_| invalid())?
            }
            _ => None,
        };
        let SlotPlace { slot, descriptor } = place.unwrap_or(SlotPlace { slot: 0, descriptor: 0 });
        for number in [MAGIC, kind as u64, number, message.len(), slot, descriptor] {
            self.output.extend_from_slice(&number.to_le_bytes());
        }
        if place.is_none() {
            let start = self.output.len() as u64;
            for (at, piece) in message.pieces() {
                self.output.resize((start + at) as usize, 0);
                self.output.extend_from_slice(piece);
            }
        }
        self.flush()
    }

    /// Writes what waits.
    ///
    /// # Errors
    /// The socket is closed.
    pub fn flush(&mut self) -> io::Result<()> {
        while let Some(rest) = self.output.get(self.written..).filter(|rest| !rest.is_empty()) {
            match self.socket.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.written = 0;
        // A batch that went through the socket was long.
        match self.output.capacity() > READ_BYTES {
            true => self.output = Vec::new(),
            false => self.output.clear(),
        }
        Ok(())
    }

    /// The next message; `None` if it has not arrived, on a side that never blocks.
    ///
    /// # Errors
    /// `InvalidData` if the other side has written something else, `ConnectionReset` if it has
    /// ended before it read all messages, `UnexpectedEof` if it has ended.
    pub fn receive(&mut self) -> io::Result<Option<Received>> {
        let mut buffer = [0; READ_BYTES];
        loop {
            if let Some(message) = self.take_message()? {
                return Ok(Some(message));
            }
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.input.extend_from_slice(buffer.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn take_message(&mut self) -> io::Result<Option<Received>> {
        let Some(head) = self.input.first_chunk::<HEAD_BYTES>() else {
            let sent = &MAGIC.to_le_bytes()[..self.input.len().min(8)];
            return if self.input.starts_with(sent) { Ok(None) } else { Err(invalid()) };
        };
        let mut numbers = [0; HEAD_NUMBERS];
        for (number, bytes) in numbers.iter_mut().zip(head.chunks_exact(8)) {
            *number = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        }
        let [magic, kind, number, len, slot, descriptor] = numbers;
        let kind = MessageKind::of_number(kind).filter(|_| magic == MAGIC);
        let kind = kind.filter(|_| len <= MESSAGE_BYTES_MAX).ok_or_else(invalid)?;
        if slot > 0 {
            let memory = self.memory.as_mut().ok_or_else(invalid)?;
            let taken = take_from(memory, SlotPlace { slot, descriptor }, len);
            self.input.drain(..HEAD_BYTES);
            return Ok(Some((kind, number, taken.map_err(|_| invalid())?)));
        }
        let end = HEAD_BYTES + len as usize;
        let Some(bytes) = self.input.get(HEAD_BYTES..end) else { return Ok(None) };
        let message = aligned(bytes);
        match self.input.len() == end && end > READ_BYTES {
            true => self.input = Vec::new(),
            false => drop(self.input.drain(..end)),
        }
        Ok(Some((kind, number, message)))
    }
}

/// The message of that length at the start of a slot.
fn take_from(
    memory: &mut SlotMemory,
    slot: SlotPlace,
    bytes: u64,
) -> Result<Bytes, SharedMemoryError> {
    let place = PartPlace { owner: SlotOwner::Sender, slot, start: 0, bytes };
    memory.take(&[place])?.pop().ok_or(SharedMemoryError::Invalid)
}

/// A copy that begins at a multiple of [`ALIGNMENT`], as in shared memory.
fn aligned(bytes: &[u8]) -> Bytes {
    let mut copy: Vec<u8> = Vec::with_capacity(bytes.len() + ALIGNMENT as usize);
    let start = copy.as_ptr().align_offset(ALIGNMENT as usize);
    copy.resize(start, 0);
    copy.extend_from_slice(bytes);
    Bytes::from(copy).slice(start..)
}

fn invalid() -> io::Error {
    ErrorKind::InvalidData.into()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// As on a system that has no shared memory, or no more of it.
    #[test]
    fn without_shared_memory_long_messages_go_through_the_socket() {
        let (one, other) = UnixStream::pair().unwrap();
        one.set_nonblocking(true).unwrap();
        let mut server = ProcessLink::new(one, None);
        let mut process = ProcessLink::new(other, None);
        let text = vec![7; 8 << 20];
        let sent = text.clone();
        let reader = thread::spawn(move || process.receive().unwrap().unwrap());
        server.send(MessageKind::Batch, 7, &Encoded::text(&sent)).unwrap();
        while server.has_output() {
            let wanted = Wanted { descriptor: server.socket(), writable: true };
            wait_for_any([wanted], None).unwrap();
            server.flush().unwrap();
        }
        let (kind, number, message) = reader.join().unwrap();
        assert!(kind == MessageKind::Batch && number == 7 && message == text);
        assert_eq!(message.as_ptr() as usize % ALIGNMENT as usize, 0);
    }

    #[test]
    fn long_messages_are_in_shared_memory_and_return_it() {
        let (one, other) = UnixStream::pair().unwrap();
        let mut server = ProcessLink::of_server(one).unwrap();
        let mut process = ProcessLink::of_process(other).unwrap();
        let text = vec![7; INLINE_BYTES_MAX as usize + 1];
        for _ in 0..3 {
            server.send(MessageKind::Batch, 7, &Encoded::text(&text)).unwrap();
            assert!(!server.has_output());
            let head = process.socket.read(&mut [0; READ_BYTES]).unwrap();
            assert_eq!(head, HEAD_BYTES, "only the head is in the socket");
            let slot = SlotPlace { slot: 1, descriptor: 0 };
            let memory = process.memory.as_mut().unwrap();
            let first = SlotPlace { descriptor: 1, ..slot };
            let message = take_from(memory, first, text.len() as u64);
            let message = message.or_else(|_| take_from(memory, slot, text.len() as u64));
            assert_eq!(message.unwrap(), text, "the slot is used again");
        }
    }
}
