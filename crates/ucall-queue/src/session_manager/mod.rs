//! The sessions and links of one communicator, without I/O.
//!
//! The caller opens a link for each stream, hands received bytes in, and sends what
//! [`SessionManager::poll_output`] writes for the links that [`SessionManager::poll_ready`] names.
//! [`SessionManager::poll_action`] returns what else it has to do. A link is any stream that keeps
//! the order of its bytes, over a socket, a broker or an RPC library. Messages that were in flight
//! on a link that ended are sent again on the next.
#![forbid(unsafe_code)]

mod closing;
mod deadlines;
mod frames;
mod output;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use ucall_buffer::Target;
use ucall_engine::WakeFlag;

use crate::accepted_names::AcceptedNames;
use crate::backoff::Backoff;
use crate::buffer_pool::BufferPool;
use crate::decoder::{Decoder, ReadCopy};
use crate::delivery_notifier::DeliveryNotifier;
use crate::delivery_state::DeliveryState;
use crate::event_queue::{Event, EventQueue};
use crate::failure::Failure;
use crate::frame::{Kind, ProtocolError};
use crate::identity::{Identity, Incarnation};
use crate::inbox::Inbox;
use crate::link::Link;
pub use crate::link::Role;
pub use crate::link_key::LinkKey;
use crate::log_queue::LogQueue;
use crate::message::Incoming;
use crate::options::Options;
use crate::outbox::Outbox;
use crate::session::{Ending, Session};
use crate::shared::{Channel, ReturnedSlots, SharedMemory};

/// The smallest window of a peer.
const WINDOW_BYTES_MIN: u64 = 64 * 1024;
/// The inbox has room for this many windows, however small a queue is.
const WINDOWS_KEPT: usize = 4;

const DROPPED_EVENTS: &str = "callbacks are slow: a session that has ended was told to neither \
    on_start nor on_end, or a change of its connection not to on_connection";
/// Why a link ends that ends without another reason.
const CONNECTION_ENDED: &str = "the connection ended";
const CONNECTED_AGAIN: &str = "the peer has connected again";

/// An action for the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Make a new connection after this wait.
    Dial(Duration),
    /// Close this link, which the manager has forgotten. With `true`, after its output is sent.
    Close(LinkKey, bool),
}

/// The sessions and links of one communicator.
pub struct SessionManager {
    identity: Identity,
    options: Options,
    is_server: bool,
    random: Box<dyn FnMut() -> u128 + Send>,
    sessions: Vec<Option<Session>>,
    by_peer: HashMap<Identity, u32>,
    links: HashMap<LinkKey, Link>,
    /// Accepted links without a handshake, the oldest first.
    unidentified: BTreeSet<LinkKey>,
    next_link: u64,
    ready: VecDeque<LinkKey>,
    /// Links that continue in the next turn.
    continuing: Vec<LinkKey>,
    actions: VecDeque<Action>,
    /// Where other threads put messages.
    pub outbox: Arc<Outbox>,
    /// Where other threads take messages.
    pub inbox: Arc<Inbox>,
    /// Events of sessions and their connections.
    pub events: Arc<EventQueue>,
    /// How many sessions have a connection.
    pub connected: Arc<AtomicUsize>,
    /// Lines for the program's log.
    pub log_queue: Arc<LogQueue>,
    /// Notified at the end of a turn.
    pub notifier: Arc<DeliveryNotifier>,
    arrived: VecDeque<Incoming>,
    pool: Arc<BufferPool>,
    changed: Vec<u32>,
    returned: Arc<ReturnedSlots>,
    has_progress: bool,
    /// Messages were moved to the inbox in this turn.
    has_messages: bool,
    sweep_at: Instant,
    backoff: Backoff,
    /// The names that this side accepts.
    announced: AcceptedNames,
    /// Why the last attempt to connect failed.
    last_dial_error: Option<String>,
    is_closing: bool,
    /// A server that closes will not be started again.
    is_final: bool,
    /// The session of a client that ends with its server, while another has taken its place.
    succeeded: Option<u32>,
}

impl SessionManager {
    /// The manager of a server, or of a client, which has one session and dials. `wake_flag` wakes
    /// the thread that drives it; `random` draws secrets.
    pub fn new(
        identity: Identity,
        is_server: bool,
        options: Options,
        wake_flag: Arc<WakeFlag>,
        random: impl FnMut() -> u128 + Send + 'static,
        now: Instant,
    ) -> Self {
        let (queue, message) = (options.queue_bytes_max, options.message_bytes_max);
        let returned = Arc::new(ReturnedSlots::new(wake_flag.clone()));
        let pool = BufferPool::new(options.window_bytes);
        let backoff = Backoff::new(options.reconnect);
        let outbox = Arc::new(Outbox::new(wake_flag, queue, message, options.full));
        let mut manager = Self {
            identity,
            options,
            is_server,
            random: Box::new(random),
            sessions: Vec::new(),
            by_peer: HashMap::new(),
            links: HashMap::new(),
            unidentified: BTreeSet::new(),
            next_link: 0,
            ready: VecDeque::new(),
            continuing: Vec::new(),
            actions: VecDeque::new(),
            outbox,
            inbox: Arc::default(),
            events: Arc::default(),
            connected: Arc::default(),
            log_queue: Arc::default(),
            notifier: Arc::default(),
            arrived: VecDeque::new(),
            pool,
            changed: Vec::new(),
            returned,
            has_progress: false,
            has_messages: false,
            sweep_at: now,
            backoff,
            announced: AcceptedNames::default(),
            last_dial_error: None,
            is_closing: false,
            is_final: false,
            succeeded: None,
        };
        if !is_server {
            manager.open_session(None, None, now);
            manager.actions.push_back(Action::Dial(Duration::ZERO));
        }
        manager
    }

    /// Announces the names that this side accepts to all peers, now and when they connect.
    pub fn announce(&mut self, names: AcceptedNames) {
        self.announced = names;
        let connected = self.sessions.iter().flatten().filter(|session| session.peer_takes_names);
        for key in connected.filter_map(|session| session.link).collect::<Vec<_>>() {
            if let Some(link) = self.links.get_mut(&key) {
                self.announced.write(&mut link.control);
            }
            self.mark_ready(key);
        }
    }

    /// Whether it accepts links.
    pub fn is_server(&self) -> bool {
        self.is_server
    }

    /// Whether all sessions and links have ended after [`SessionManager::close`].
    pub fn is_closed(&self) -> bool {
        self.is_closing && self.sessions.iter().all(Option::is_none) && self.links.is_empty()
    }

    /// Its own id.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The server of a client, once it is known.
    fn server(&self) -> Option<Identity> {
        let mut sessions = self.sessions.iter().flatten().filter(|_| !self.is_server);
        sessions.find_map(|session| session.peer)
    }

    /// The session of a client that the next link continues.
    fn dialed_session(&self) -> Option<u32> {
        let mut sessions = self.sessions.iter().flatten().filter(|_| !self.is_server);
        self.succeeded.or_else(|| sessions.next().map(|session| session.delivery.index))
    }

    /// Whether a client has a session and no link.
    pub fn wants_link(&self) -> bool {
        self.dialed_session().is_some() && self.links.is_empty()
    }

    /// Opens a link. Above the limit of links without a handshake, the oldest of those is closed.
    pub fn open_link(&mut self, role: Role, now: Instant) -> LinkKey {
        let key = self.next_key(role, now);
        self.begin_link(key, Link::new(role, self.decoder(), now));
        key
    }

    /// Sets the name in the certificate of a link's peer. Sessions that begin on this link accept
    /// no other name.
    pub fn set_certificate_name(&mut self, key: LinkKey, name: &[u8]) {
        if let Some(link) = self.links.get_mut(&key) {
            link.certificate_name = Some(name.into());
        }
    }

    /// Opens a link that has a channel for shared memory beside its stream.
    pub fn open_shared_link(&mut self, role: Role, channel: Channel, now: Instant) -> LinkKey {
        let key = self.next_key(role, now);
        let (trusts, returned) = (self.options.trusts_peers, self.returned.clone());
        let pool = self.pool.clone();
        // A window of messages in flight, and as much again that has views.
        let kept = self.options.window_bytes.saturating_mul(2);
        let mut link = Link::new(role, self.decoder(), now);
        link.shared = SharedMemory::open(channel, key, trusts, kept, returned, pool);
        link.decoder.enable_shared_memory();
        self.begin_link(key, link);
        key
    }

    /// The key of a new link, after making room for it.
    fn next_key(&mut self, role: Role, now: Instant) -> LinkKey {
        if role == Role::Accepted && self.unidentified.len() >= self.options.handshakes_max {
            self.evict_oldest_unidentified(now);
        }
        self.next_link += 1;
        LinkKey(self.next_link)
    }

    fn decoder(&self) -> Decoder {
        Decoder::new(self.options.message_bytes_max, self.pool.clone())
    }

    fn begin_link(&mut self, key: LinkKey, mut link: Link) {
        if link.role == Role::Accepted {
            self.unidentified.insert(key);
        } else {
            let (identity, limit) = (self.identity, self.options.message_bytes_max);
            let (window, index) = (self.window(), self.dialed_session());
            if let Some(session) = index.and_then(|index| self.session(index)) {
                let mut hello = session.hello(identity, limit, window);
                hello.sharing = link.sharing();
                hello.write(Kind::Hello, &mut link.control);
                link.session = index;
            }
        }
        self.links.insert(key, link);
        self.mark_ready(key);
        // A link that opens after the end does not delay the close.
        self.check_closed();
    }

    /// Whether there are links without a handshake yet.
    pub fn has_unidentified(&self) -> bool {
        !self.unidentified.is_empty()
    }

    /// Closes the oldest link without a handshake.
    pub fn evict_oldest_unidentified(&mut self, now: Instant) {
        if let Some(&oldest) = self.unidentified.first() {
            self.close_link(oldest, false, now);
        }
    }

    /// Handles received bytes of a link. An error has closed the link.
    pub fn handle_received(
        &mut self,
        key: LinkKey,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let (earlier, mut shared) = (self.arrived.len(), ReadCopy::new(bytes));
        let received = self.receive_frames(key, bytes, &mut shared, now);
        if shared.is_wasteful() {
            for message in self.arrived.iter_mut().skip(earlier) {
                message.body.detach();
            }
        }
        received
    }

    fn receive_frames(
        &mut self,
        key: LinkKey,
        mut input: &[u8],
        shared: &mut ReadCopy<'_>,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        loop {
            // An earlier frame may have closed it.
            let Some(link) = self.links.get_mut(&key) else { return Ok(()) };
            if link.is_closing {
                return Ok(());
            }
            link.received_at = now;
            let taken = match link.decoder.next(&mut input, shared) {
                Ok(None) => return Ok(()),
                Ok(Some(frame)) => self.handle_frame(key, frame, now),
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                self.set_close_reason(key, &error.to_string());
                self.close_link(key, false, now);
                return Err(error);
            }
        }
    }

    /// Sets why a link is about to be closed.
    fn set_close_reason(&mut self, key: LinkKey, reason: &str) {
        if let Some(link) = self.links.get_mut(&key) {
            link.close_reason = Some(reason.to_owned());
        }
    }

    /// Memory to receive the next bytes of a link into, if it wants that.
    pub fn poll_target(&mut self, key: LinkKey) -> Option<Target> {
        self.links.get_mut(&key)?.decoder.poll_target()
    }

    /// Takes a target back with its received bytes.
    pub fn return_target(
        &mut self,
        key: LinkKey,
        target: Target,
        now: Instant,
    ) -> Result<(), ProtocolError> {
        let link = self.links.get_mut(&key);
        let tail = link.map(|link| link.decoder.return_target(target)).unwrap_or_default();
        self.handle_received(key, &tail, now)
    }

    /// The stream of a link has ended or failed.
    pub fn handle_link_closed(&mut self, key: LinkKey, now: Instant) {
        if let Some(link) = self.links.remove(&key) {
            self.detach_link(key, &link, now);
        }
    }

    /// A link has failed for this reason. If that `is_final` and the session has not started, the
    /// session ends, because another attempt would fail in the same way.
    pub fn handle_link_failed(&mut self, key: LinkKey, reason: &str, is_final: bool, now: Instant) {
        self.set_dial_error(reason, now);
        if is_final {
            self.fail_unstarted(reason, now);
        }
        self.set_close_reason(key, reason);
        self.handle_link_closed(key, now);
    }

    /// A connection led to a peer with another protocol.
    pub fn handle_wrong_protocol(&mut self, reason: &str, now: Instant) {
        self.set_dial_error(reason, now);
        self.fail_unstarted(reason, now);
        self.redial();
    }

    /// Ends the session of a client that has never connected.
    fn fail_unstarted(&mut self, reason: &str, now: Instant) {
        if let Some(index) = self.dialed_session().filter(|_| self.server().is_none()) {
            self.end_session(index, Failure::Insecure(reason.to_owned()), now);
        }
    }

    /// Records why a client's last attempt to connect failed, and logs it if the reason is new.
    pub fn set_dial_error(&mut self, reason: &str, now: Instant) {
        if !self.is_server && self.replace_dial_error(reason) {
            self.log_queue.info(|| format!("cannot connect: {reason}"), now);
        }
    }

    /// Whether this is another reason than that of the attempt before.
    fn replace_dial_error(&mut self, reason: &str) -> bool {
        let is_new = self.last_dial_error.as_deref() != Some(reason);
        if is_new {
            self.last_dial_error = Some(reason.to_owned());
        }
        is_new
    }

    /// A connection could not be made; `refused` if nothing listens at the address.
    pub fn handle_dial_failed(&mut self, refused: bool, now: Instant) {
        // No peer waits for our end, and no message of ours waits before it.
        if let Some(index) = self.dialed_session().filter(|_| refused)
            && self.is_flushed(index)
        {
            self.end_session(index, self.closing_failure(), now);
        }
        self.redial();
    }

    /// The next action for the caller.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Moves received messages to the inbox and notifies waiting threads. The driver calls it at
    /// the end of each turn.
    pub fn finish_turn(&mut self) {
        self.deliver();
        let has_messages = std::mem::take(&mut self.has_messages);
        if std::mem::take(&mut self.has_progress) {
            self.notifier.notify();
        } else if has_messages {
            self.notifier.call_callback();
        }
        for key in std::mem::take(&mut self.continuing) {
            self.mark_ready(key);
        }
    }

    /// Moves received messages to the inbox.
    fn deliver(&mut self) {
        self.has_messages |= self.inbox.push(&mut self.arrived);
    }

    /// Adds an event, which waiting threads are notified of at the end of the turn.
    fn push_event(&mut self, event: Event, now: Instant) {
        if !self.events.push(event) {
            self.log_queue.warn(|| DROPPED_EVENTS.to_owned(), now);
        }
        self.has_progress = true;
    }

    /// As [`SessionManager::close`], after which no server with this address is started again: the
    /// clients end as well.
    pub fn close_for_good(&mut self, now: Instant) {
        self.is_final = true;
        self.close(now);
    }

    /// Refuses further messages, sends the queues, and ends every session in order.
    pub fn close(&mut self, now: Instant) {
        if std::mem::replace(&mut self.is_closing, true) {
            return;
        }
        self.outbox.close(self.server(), Failure::Closed);
        for index in 0..self.sessions.len() as u32 {
            self.flush_session(index, now);
        }
        // A peer that wants to resume its session connects again.
        while !self.unidentified.is_empty() {
            self.evict_oldest_unidentified(now);
        }
        self.check_closed();
    }

    /// Ends everything at once.
    pub fn abort(&mut self, now: Instant) {
        self.is_closing = true;
        self.outbox.close(self.server(), Failure::Closed);
        let sessions = self.sessions.iter().flatten();
        let count = sessions.map(|session| session.count_unacknowledged(&self.outbox)).sum();
        self.log_unacknowledged(count, &Failure::Closed, now);
        for index in 0..self.sessions.len() as u32 {
            self.remove_session(index, Failure::Closed, now);
        }
        for key in self.links.keys().copied().collect::<Vec<_>>() {
            self.close_link(key, false, now);
        }
        self.check_closed();
    }

    /// Whether the inbox is too full for a new incarnation of any peer. The window of a session
    /// counts one incarnation alone, and messages of earlier ones may still be in the inbox.
    fn inbox_is_full(&self) -> bool {
        let Options { queue_bytes_max, window_bytes, .. } = self.options;
        self.inbox.weight() > queue_bytes_max.max(window_bytes.saturating_mul(WINDOWS_KEPT))
    }

    /// The window of each peer, which is smaller with many peers.
    fn window(&self) -> u64 {
        let sessions = self.by_peer.len().max(1);
        let share = (self.options.queue_bytes_max / sessions) as u64;
        share.min(self.options.window_bytes as u64).max(WINDOW_BYTES_MIN)
    }

    /// Opens a session with a peer, which may take the place of another one.
    fn open_session(
        &mut self,
        peer: Option<Identity>,
        instead_of: Option<u32>,
        now: Instant,
    ) -> u32 {
        let free = self.sessions.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.sessions.push(None);
            self.sessions.len() - 1
        });
        let delivery = Arc::new(DeliveryState::new(index as u32, peer));
        self.outbox.open(delivery.clone(), instead_of);
        let incarnation = Incarnation((self.random)().max(1));
        let session = Session::new(delivery, incarnation, self.options.acknowledge, now);
        if let Some(position) = self.sessions.get_mut(index) {
            *position = Some(session);
        }
        self.by_peer.extend(peer.map(|peer| (peer, index as u32)));
        index as u32
    }

    fn session(&mut self, index: u32) -> Option<&mut Session> {
        self.sessions.get_mut(index as usize)?.as_mut()
    }

    /// Forgets a link, and has the caller close it.
    fn close_link(&mut self, key: LinkKey, after_output: bool, now: Instant) {
        if let Some(link) = self.links.remove(&key) {
            self.actions.push_back(Action::Close(key, after_output));
            self.detach_link(key, &link, now);
        }
    }

    fn detach_link(&mut self, key: LinkKey, link: &Link, now: Instant) {
        self.unidentified.remove(&key);
        let index = link.session;
        if let Some(session) = index.and_then(|index| self.session(index))
            && session.link == Some(key)
        {
            session.link = None;
            session.disconnected_at = now;
            let is_open = session.ending == Ending::Open && !session.peer_has_ended();
            let peer = session.peer.filter(|_| is_open);
            self.connected.fetch_sub(1, Ordering::Relaxed);
            if let Some(peer) = peer {
                let reason = link.close_reason.as_deref().unwrap_or(CONNECTION_ENDED);
                let line = || format!("the connection with peer {peer} was lost: {reason}");
                self.push_event(Event::Lost(peer, reason.to_owned()), now);
                self.log_queue.warn(line, now);
            }
        }
        if link.role == Role::Dialed {
            self.redial();
        }
    }

    /// Has the caller make another connection, if there is a session to resume.
    fn redial(&mut self) {
        if self.dialed_session().is_none() {
            return;
        }
        let delay = self.backoff.next((self.random)());
        self.actions.push_back(Action::Dial(delay));
    }
}

impl std::fmt::Debug for SessionManager {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "SessionManager({}, {} links)", self.identity, self.links.len())
    }
}
