//! Counts the batches that a process has and has not begun.
//!
//! The server posts once for each batch that it has sent. The process acquires once before it
//! begins its oldest batch, and the server to take back its newest one; so a batch is begun or
//! taken back, and never both. The count is what a socket has to read, of which both have a
//! descriptor, so it outlives the process.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// The server's side.
#[derive(Debug)]
pub struct BatchSemaphore {
    poster: UnixStream,
    acquirer: UnixStream,
    /// For batches of which a part still waits in the server.
    deferred: usize,
}

impl BatchSemaphore {
    /// Over a pair of sockets, of which the process has the second one, too.
    ///
    /// # Errors
    /// The system refuses it.
    pub fn new(poster: UnixStream, acquirer: UnixStream) -> io::Result<Self> {
        poster.set_nonblocking(true)?;
        acquirer.set_nonblocking(true)?;
        Ok(Self { poster, acquirer, deferred: 0 })
    }

    /// Counts a batch, once [`BatchSemaphore::post`] is called.
    pub(super) fn defer(&mut self) {
        self.deferred += 1;
    }

    /// Has the process begin the batches that were sent. Those that the socket has no room for are
    /// posted the next time: the process has hundreds before them.
    pub(super) fn post(&mut self) -> io::Result<()> {
        while self.deferred > 0 {
            match (&self.poster).write(&[0]) {
                Ok(_) => self.deferred -= 1,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the process will not begin its newest batch.
    pub(super) fn try_acquire(&mut self) -> bool {
        if self.deferred > 0 {
            self.deferred -= 1;
            return true;
        }
        try_acquire(&self.acquirer).unwrap_or(false)
    }
}

/// Decrements the count, unless it is 0.
pub(super) fn try_acquire(acquirer: &UnixStream) -> io::Result<bool> {
    let mut acquirer = acquirer;
    loop {
        match acquirer.read(&mut [0]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}
