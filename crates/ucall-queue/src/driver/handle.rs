//! The handle by which other threads reach a communicator's thread.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use bytes::Bytes;
use ucall_engine::Mailbox;

use crate::accepted_names::AcceptedNames;
use crate::delivery_notifier::DeliveryNotifier;
use crate::delivery_state::ReceiveCredit;
use crate::driver::external_link::ExternalLink;
use crate::driver::inherited::InheritedSockets;
use crate::driver::secure::certificate_name;
use crate::event_queue::EventQueue;
use crate::failure::Failure;
use crate::identity::Identity;
use crate::inbox::Inbox;
use crate::log_queue::LogQueue;
use crate::outbox::Outbox;
use crate::session_manager::{Role, SessionManager};

/// Reaches one communicator's thread, from any other.
#[derive(Debug)]
pub struct Handle {
    identity: Identity,
    /// Where to put messages.
    pub outbox: Arc<Outbox>,
    /// Where to take messages.
    pub inbox: Arc<Inbox>,
    /// Events of sessions and their connections.
    pub events: Arc<EventQueue>,
    connected: Arc<AtomicUsize>,
    is_closing: AtomicBool,
    /// Lines for the program's log.
    pub log_queue: Arc<LogQueue>,
    /// Notifies of acknowledgements, failures, session events and the end.
    pub notifier: Arc<DeliveryNotifier>,
    mailbox: Mailbox<Command>,
    address: Option<SocketAddr>,
    inherited: Arc<InheritedSockets>,
    is_forked: AtomicBool,
}

/// The connections of a communicator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectionState {
    /// No peer is connected. A client connects, and a server listens.
    Disconnected,
    /// A peer is connected.
    Connected,
    /// It closes, and waits until all messages are acknowledged.
    Closing,
    /// No message will arrive any more.
    Closed,
}

/// A request of another thread.
#[derive(Debug)]
pub(super) enum Command {
    Close,
    CloseForGood,
    Abort,
    /// Messages of this session were taken or acknowledged.
    Taken(u32),
    /// The program accepts these names from now on.
    Announce(AcceptedNames),
    /// An event of a link that the program carries.
    Link(Arc<ExternalLink>, LinkEvent),
}

/// What the program reports of a link that it carries.
#[derive(Debug)]
pub(super) enum LinkEvent {
    Opened(Role),
    Received(Bytes),
    /// There is room for more output.
    HasRoom,
    Closed,
}

impl Handle {
    pub(super) fn new(
        manager: &SessionManager,
        mailbox: Mailbox<Command>,
        address: Option<SocketAddr>,
        inherited: Arc<InheritedSockets>,
    ) -> Self {
        Self {
            identity: manager.identity(),
            outbox: manager.outbox.clone(),
            inbox: manager.inbox.clone(),
            events: manager.events.clone(),
            connected: manager.connected.clone(),
            is_closing: AtomicBool::new(false),
            log_queue: manager.log_queue.clone(),
            notifier: manager.notifier.clone(),
            mailbox,
            address,
            inherited,
            is_forked: AtomicBool::new(false),
        }
    }

    /// The id that an error carries: the peer's if it concerns one peer, this communicator's own if
    /// it has closed.
    pub fn failed_id(&self, peer: Option<Identity>, failure: &Failure) -> Option<Identity> {
        peer.or_else(|| (*failure == Failure::Closed).then_some(self.identity))
    }

    /// Where a TCP server listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Its sockets with their inode numbers. A forked child has to close its copies, where the
    /// number is still the same.
    pub fn inherited(&self) -> Vec<(RawFd, u64)> {
        self.inherited.list()
    }

    /// Reports that this process is a forked child: the thread is its parent's, and may have held
    /// any lock at the fork.
    pub fn mark_forked(&self) {
        self.is_forked.store(true, Ordering::Relaxed);
    }

    /// Whether the thread is in a parent process.
    #[inline]
    pub fn is_forked(&self) -> bool {
        self.is_forked.load(Ordering::Relaxed)
    }

    /// Whether the communicator is connected, to any peer, or has closed.
    pub fn state(&self) -> ConnectionState {
        if self.inbox.closed().is_some() {
            ConnectionState::Closed
        } else if self.is_closing.load(Ordering::Relaxed) {
            ConnectionState::Closing
        } else if self.connected.load(Ordering::Relaxed) > 0 {
            ConnectionState::Connected
        } else {
            ConnectionState::Disconnected
        }
    }

    /// Ends in order: both sides receive all messages that were put.
    pub fn close(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.send(Command::Close);
    }

    /// As [`Handle::close`], and the clients of this server end as well.
    pub fn close_for_good(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.send(Command::CloseForGood);
    }

    /// Ends at once.
    pub fn abort(&self) {
        self.is_closing.store(true, Ordering::Relaxed);
        self.send(Command::Abort);
    }

    /// Records that `get` returns a message.
    #[inline]
    pub fn notify_taken(&self, credit: &ReceiveCredit, sequence: u64, weight: usize) {
        if credit.take(sequence, weight) {
            self.send(Command::Taken(credit.index));
        }
    }

    /// Records that `get` returns no message, because it could not be read for this reason.
    pub fn reject(&self, credit: &ReceiveCredit, sequence: u64, weight: usize, reason: String) {
        credit.reject(sequence, reason);
        credit.take(sequence, weight);
        self.send(Command::Taken(credit.index));
    }

    /// Announces the names that the program accepts in messages.
    pub fn announce(&self, names: AcceptedNames) {
        self.send(Command::Announce(names));
    }

    /// Logs a warning.
    pub fn warn(&self, line: impl FnOnce() -> String) {
        self.log_queue.warn(line, Instant::now());
    }

    /// Acknowledges a received message: see [`ReceiveCredit::acknowledge`].
    ///
    /// # Errors
    /// The session is over, and the message was not acknowledged before.
    pub fn acknowledge(&self, credit: &ReceiveCredit, sequence: u64) -> Result<(), Failure> {
        if credit.acknowledge(sequence)? {
            self.send(Command::Taken(credit.index));
        }
        Ok(())
    }

    /// Opens a link that the program carries. `in_flight_bytes_max` bounds the bytes that wait each
    /// way; `certificate` is the peer's, in DER, if one was required; the communicator's thread
    /// calls `wake` when there is output, room for input, or the end.
    pub fn open_link(
        &self,
        role: Role,
        in_flight_bytes_max: usize,
        certificate: Option<&[u8]>,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Arc<ExternalLink> {
        let link = Arc::new(ExternalLink::new(
            in_flight_bytes_max,
            certificate.map(certificate_name),
            wake,
        ));
        self.send(Command::Link(link.clone(), LinkEvent::Opened(role)));
        link
    }

    /// Hands received bytes of a link in. The caller waits while [`ExternalLink::is_full`].
    pub fn link_received(&self, link: &Arc<ExternalLink>, bytes: &[u8]) {
        link.add_input(bytes.len());
        let received = LinkEvent::Received(Bytes::copy_from_slice(bytes));
        self.send(Command::Link(link.clone(), received));
    }

    /// Appends the next output of a link, at most this many bytes.
    pub fn link_next(&self, link: &Arc<ExternalLink>, bytes_max: usize, output: &mut Vec<u8>) {
        if link.next(bytes_max, output) {
            self.send(Command::Link(link.clone(), LinkEvent::HasRoom));
        }
    }

    /// The stream of a link has ended or failed, or the program closes it.
    pub fn link_closed(&self, link: &Arc<ExternalLink>) {
        self.send(Command::Link(link.clone(), LinkEvent::Closed));
    }

    fn send(&self, command: Command) {
        if !self.is_forked() {
            self.mailbox.send(command);
        }
    }
}

impl Drop for Handle {
    /// No other thread can put or take any more. Messages that were put are still sent.
    fn drop(&mut self) {
        self.close();
    }
}
