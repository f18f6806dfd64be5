//! How other threads reach a communicator's thread.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::bell::Doorbell;
use crate::driver::foreign::Foreign;
use crate::driver::inherited::Inherited;
use crate::driver::secure::name_of;
use crate::failure::Failure;
use crate::hub::Role;
use crate::inbox::Inbox;
use crate::message::Incoming;
use crate::outbox::Outbox;
use crate::standing::Intake;

/// Leads to one communicator's thread, from any other.
#[derive(Debug)]
pub struct Handle {
    /// Where to put.
    pub outbox: Arc<Outbox>,
    /// Where to take.
    pub inbox: Arc<Inbox>,
    doorbell: Arc<Doorbell>,
    commands: Arc<Commands>,
    address: Option<SocketAddr>,
    inherited: Arc<Inherited>,
    is_orphan: AtomicBool,
}

/// What was asked of the thread.
#[derive(Debug)]
pub(super) enum Command {
    Close,
    Abort,
    Open(Role, Arc<Foreign>),
    Bytes(Arc<Foreign>, Bytes),
    /// There is room again for what it has to send.
    Room(Arc<Foreign>),
    Broken(Arc<Foreign>),
    /// Messages of this session were taken, or acknowledged.
    Taken(u32),
}

#[derive(Debug, Default)]
pub(super) struct Commands {
    waiting: Mutex<Vec<Command>>,
}

impl Commands {
    fn push(&self, command: Command) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(command);
    }

    /// Moves all commands to the end of `commands`.
    pub(super) fn take(&self, commands: &mut Vec<Command>) {
        commands.append(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Handle {
    pub(super) fn new(
        (outbox, inbox): (Arc<Outbox>, Arc<Inbox>),
        (doorbell, commands): (Arc<Doorbell>, Arc<Commands>),
        address: Option<SocketAddr>,
        inherited: Arc<Inherited>,
    ) -> Self {
        let is_orphan = AtomicBool::new(false);
        Self { outbox, inbox, doorbell, commands, address, inherited, is_orphan }
    }

    /// Where a TCP server listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Its sockets, and the numbers of the files behind them. A child that was forked off has to
    /// close its copies, where these are still the same.
    pub fn inherited(&self) -> Vec<(RawFd, u64)> {
        self.inherited.list()
    }

    /// Says that this is a child that was forked off: the thread is its parent's, and may have held
    /// any lock when the child began.
    pub fn orphan(&self) {
        self.is_orphan.store(true, Ordering::Relaxed);
    }

    /// Whether there is no thread in this process.
    #[inline]
    pub fn is_orphan(&self) -> bool {
        self.is_orphan.load(Ordering::Relaxed)
    }

    /// Ends in order: what was put goes out, and what the peers have put comes in.
    pub fn close(&self) {
        self.send(Command::Close);
    }

    /// Ends at once.
    pub fn abort(&self) {
        self.send(Command::Abort);
    }

    /// Notes that `get` returns a message.
    #[inline]
    pub fn took(&self, message: &Incoming) {
        if message.intake.take(message.sequence, message.weight) {
            self.send(Command::Taken(message.intake.index));
        }
    }

    /// Acknowledges a message that came: see [`Intake::acknowledge`].
    ///
    /// # Errors
    /// The session is over, and the message was not acknowledged before.
    pub fn acknowledge(&self, intake: &Intake, sequence: u64) -> Result<(), Failure> {
        if intake.acknowledge(sequence)? {
            self.send(Command::Taken(intake.index));
        }
        Ok(())
    }

    /// Begins a link that somebody else carries. `in_flight_bytes_max` is what may wait to be
    /// fetched; `certificate` is what the other side has shown, in DER, if it had to; `wake` is
    /// called, on the communicator's thread, when there is something.
    pub fn open_link(
        &self,
        role: Role,
        in_flight_bytes_max: usize,
        certificate: Option<&[u8]>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Arc<Foreign> {
        let link = Arc::new(Foreign::new(in_flight_bytes_max, certificate.map(name_of), wake));
        self.send(Command::Open(role, link.clone()));
        link
    }

    /// Hands in what came on a link. Whoever does that waits while [`Foreign::is_full`].
    pub fn link_received(&self, link: &Arc<Foreign>, bytes: &[u8]) {
        link.hand_in(bytes.len());
        self.send(Command::Bytes(link.clone(), Bytes::copy_from_slice(bytes)));
    }

    /// What a link is to send next, at most so many bytes.
    pub fn link_next(&self, link: &Arc<Foreign>, bytes_max: usize) -> Option<Vec<u8>> {
        let (bytes, is_low) = link.next(bytes_max)?;
        if is_low {
            self.send(Command::Room(link.clone()));
        }
        Some(bytes)
    }

    /// A link has broken, or its carrier gives it up.
    pub fn link_closed(&self, link: &Arc<Foreign>) {
        self.send(Command::Broken(link.clone()));
    }

    fn send(&self, command: Command) {
        if self.is_orphan() {
            return;
        }
        self.commands.push(command);
        self.doorbell.ring();
    }
}

impl Drop for Handle {
    /// Nobody is left who could put or take. What was put goes out all the same.
    fn drop(&mut self) {
        self.close();
    }
}
