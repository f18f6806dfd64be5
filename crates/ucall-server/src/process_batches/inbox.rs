//! The batches that a process has received, of which it runs one after another.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use bytes::Bytes;
use ucall_engine::{Wanted, wait_for_any};

use super::link::{MessageKind, ProcessLink};
use super::message::Encoded;
use super::semaphore::try_acquire;

/// A process's side of the connection with its server.
#[derive(Debug)]
pub struct ProcessInbox {
    link: ProcessLink,
    semaphore: UnixStream,
    /// Those that it has not begun, with their numbers.
    received: VecDeque<(u64, Bytes)>,
}

impl ProcessInbox {
    /// Over the socket of the link, and that by which batches are counted.
    ///
    /// # Errors
    /// The socket is closed, or has no server.
    pub fn new(socket: UnixStream, semaphore: UnixStream) -> io::Result<Self> {
        let link = ProcessLink::of_process(socket)?.never_block()?;
        Ok(Self { link, semaphore, received: VecDeque::new() })
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The server has closed the socket.
    pub fn send(
        &mut self,
        kind: MessageKind,
        number: u64,
        message: &Encoded<'_>,
    ) -> io::Result<()> {
        self.link.send(kind, number, message)?;
        while self.link.has_output() {
            let wanted = Wanted { descriptor: self.link.socket(), writable: true };
            wait_for_any([wanted], None)?;
            self.link.flush()?;
        }
        Ok(())
    }

    /// Waits for the next batch, and begins it. Returns its number and its bytes.
    ///
    /// # Errors
    /// The server has closed the socket, or has sent something else.
    pub fn begin(&mut self) -> io::Result<(u64, Bytes)> {
        while !try_acquire(&self.semaphore)? {
            let wanted = |descriptor| Wanted { descriptor, writable: false };
            wait_for_any([wanted(self.semaphore.as_fd()), wanted(self.link.socket())], None)?;
            self.receive()?;
        }
        // The server posts after it has sent the batch, and what it has taken back before.
        self.receive()?;
        self.received.pop_front().ok_or_else(|| ErrorKind::InvalidData.into())
    }

    /// Takes the messages that have arrived.
    fn receive(&mut self) -> io::Result<()> {
        while let Some((kind, number, message)) = self.link.receive()? {
            match kind {
                MessageKind::Batch => self.received.push_back((number, message)),
                MessageKind::Recall => self.received.retain(|(it, _)| *it != number),
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }
}
