//! The sessions and links of one communicator, without I/O.
//!
//! The caller opens a link for whatever carries bytes, hands in what comes, and sends what
//! [`SessionManager::poll_output`] writes for the links that [`SessionManager::poll_ready`] names.
//! What it has to do beyond that comes from [`SessionManager::poll_action`]. All of it is the same
//! for sockets and for carriers of others (a broker, an RPC library): a link is a stream of bytes
//! that keeps their order, and that ends whole. What was under way on a link that ended is sent
//! again on the next.
#![forbid(unsafe_code)]

mod closing;
mod frames;
mod output;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use ucall_buffer::Target;
use ucall_engine::WakeFlag;

use crate::backoff::Backoff;
use crate::buffer_pool::BufferPool;
use crate::decoder::{Decoder, ReadCopy};
use crate::delivery_notifier::DeliveryNotifier;
use crate::delivery_state::DeliveryState;
use crate::event_queue::{Event, EventQueue};
use crate::failure::Failure;
use crate::frame::{Header, Kind, ProtocolError};
use crate::identity::{Identity, Incarnation};
use crate::inbox::Inbox;
use crate::link::Link;
pub use crate::link::Role;
pub use crate::link_key::LinkKey;
use crate::log_queue::LogQueue;
use crate::message::Incoming;
use crate::options::Options;
use crate::outbox::Outbox;
use crate::session::Session;
use crate::shared::ReturnedSlots;
#[cfg(target_os = "linux")]
use crate::shared::{Channel, SharedMemory};

/// A peer's window is never smaller.
const WINDOW_BYTES_MIN: u64 = 64 * 1024;
/// The inbox may have as many windows, however small a queue is.
const WINDOWS_KEPT: usize = 4;
/// A link that is quiet for so many times `keepalive` is given up.
const SILENT_KEEPALIVES: u32 = 3;

const DROPPED_EVENTS: &str = "callbacks are slow: a session that has ended was told to neither \
    on_start nor on_end";

/// What the caller is to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// Make a new connection, after waiting so long.
    Dial(Duration),
    /// Close this link, which the hub has forgotten. With `true`, after what was written to it
    /// went out.
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
    /// Links that others made and on which nobody has said yet who they are, the oldest first.
    unidentified: BTreeSet<LinkKey>,
    next_link: u64,
    ready: VecDeque<LinkKey>,
    /// Links that go on in the next turn.
    continuing: Vec<LinkKey>,
    actions: VecDeque<Action>,
    /// Where other threads put messages.
    pub outbox: Arc<Outbox>,
    /// Where other threads take messages.
    pub inbox: Arc<Inbox>,
    /// Starts and ends of sessions.
    pub events: Arc<EventQueue>,
    /// Lines for the program's log.
    pub log_queue: Arc<LogQueue>,
    /// Notified at the end of a turn.
    pub notifier: Arc<DeliveryNotifier>,
    arrived: VecDeque<Incoming>,
    pool: Arc<BufferPool>,
    changed: Vec<u32>,
    returned: Arc<ReturnedSlots>,
    has_progress: bool,
    sweep_at: Instant,
    backoff: Backoff,
    /// What kept the last attempt from succeeding.
    last_dial_error: Option<String>,
    is_closing: bool,
}

impl SessionManager {
    /// The hub of a server, or of a client, which has one session and dials. `wake_flag` wakes
    /// whoever drives it; `random` draws secrets.
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
            log_queue: Arc::default(),
            notifier: Arc::default(),
            arrived: VecDeque::new(),
            pool,
            changed: Vec::new(),
            returned,
            has_progress: false,
            sweep_at: now,
            backoff,
            last_dial_error: None,
            is_closing: false,
        };
        if !is_server {
            manager.open_session(None, now);
            manager.actions.push_back(Action::Dial(Duration::ZERO));
        }
        manager
    }

    /// Whether others come to it.
    pub fn is_server(&self) -> bool {
        self.is_server
    }

    /// Whether everything is over after [`SessionManager::close`], and all is said.
    pub fn is_closed(&self) -> bool {
        self.is_closing && self.sessions.iter().all(Option::is_none) && self.links.is_empty()
    }

    /// Whether a client has no link, and has something to go on with.
    pub fn wants_link(&self) -> bool {
        let has_session = matches!(self.sessions.first(), Some(Some(_)));
        !self.is_server && has_session && self.links.is_empty()
    }

    /// Begins a link. When too many have not told who they are, the oldest of those makes room.
    pub fn open_link(&mut self, role: Role, now: Instant) -> LinkKey {
        let key = self.next_key(role, now);
        self.begin_link(key, Link::new(role, self.decoder(), now));
        key
    }

    /// Notes whom the certificate names that the other side of a link has shown. Sessions that
    /// begin on it are theirs alone.
    pub fn set_certificate_name(&mut self, key: LinkKey, name: &[u8]) {
        if let Some(link) = self.links.get_mut(&key) {
            link.certificate_name = Some(name.into());
        }
    }

    /// Begins a link that has a channel for shared memory beside its stream.
    #[cfg(target_os = "linux")]
    pub fn open_shared_link(&mut self, role: Role, channel: Channel, now: Instant) -> LinkKey {
        let key = self.next_key(role, now);
        let (trusts, returned) = (self.options.trusts_peers, self.returned.clone());
        let pool = self.pool.clone();
        // As much as may be under way, and as much again that is looked at.
        let kept = self.options.window_bytes.saturating_mul(2);
        let mut link = Link::new(role, self.decoder(), now);
        link.shared = Some(SharedMemory::new(channel, key, trusts, kept, returned, pool));
        link.decoder.enable_shared_memory();
        self.begin_link(key, link);
        key
    }

    /// The name of a link that is about to begin, for which there is room.
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
            let window = self.window();
            if let Some(Some(session)) = self.sessions.first_mut() {
                let limit = self.options.message_bytes_max;
                let mut hello = session.hello(self.identity, limit, window);
                hello.sharing = link.sharing();
                hello.write(Kind::Hello, &mut link.control);
                link.session = Some(0);
            }
        }
        self.links.insert(key, link);
        self.mark_ready(key);
        // Who comes when all is over is not waited for.
        self.check_closed();
    }

    /// Whether there are links without a handshake yet.
    pub fn has_unidentified(&self) -> bool {
        !self.unidentified.is_empty()
    }

    /// Closes the link that has been open for longest without anybody saying who they are.
    pub fn evict_oldest_unidentified(&mut self, now: Instant) {
        if let Some(&oldest) = self.unidentified.first() {
            self.close_link(oldest, false, now);
        }
    }

    /// Takes in what came on a link. An error has closed the link.
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
            // It may have been closed by what came before.
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
                self.close_link(key, false, now);
                return Err(error);
            }
        }
    }

    /// Memory that the next bytes of a link are to be received into, if it wants that.
    pub fn poll_target(&mut self, key: LinkKey) -> Option<Target> {
        self.links.get_mut(&key)?.decoder.poll_target()
    }

    /// Takes a target back, as far as it was filled.
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

    /// A link has broken, or could not be made.
    pub fn handle_link_closed(&mut self, key: LinkKey, now: Instant) {
        if let Some(link) = self.links.remove(&key) {
            self.detach_link(key, &link, now);
        }
    }

    /// A link has broken for a reason that has a name. When that `is_final` and the other side was
    /// never met, there is no session: asking again would end as it did.
    pub fn handle_link_failed(&mut self, key: LinkKey, reason: &str, is_final: bool, now: Instant) {
        self.set_dial_error(reason);
        if is_final {
            self.fail_unstarted(reason, now);
        }
        self.handle_link_closed(key, now);
    }

    /// A connection led to somebody who speaks otherwise.
    pub fn handle_wrong_protocol(&mut self, reason: &str, now: Instant) {
        self.set_dial_error(reason);
        self.fail_unstarted(reason, now);
        self.redial();
    }

    /// Ends the session of a client that has not met its server.
    fn fail_unstarted(&mut self, reason: &str, now: Instant) {
        let was_started =
            self.sessions.first().is_none_or(|it| it.as_ref().is_none_or(|it| it.start_reported));
        if !self.is_server && !was_started {
            self.end_session(0, Failure::Insecure(reason.to_owned()), now);
        }
    }

    /// Keeps what a client that gives up in the end is to say of its last attempt.
    pub fn set_dial_error(&mut self, reason: &str) {
        if !self.is_server {
            self.last_dial_error = Some(reason.to_owned());
        }
    }

    /// A connection could not be made at all; `refused` when nobody is there.
    pub fn handle_dial_failed(&mut self, refused: bool, now: Instant) {
        // Nobody is there to hear an end that nothing of ours waits behind.
        if refused && self.is_flushed(0) {
            return self.end_session(0, self.closing_failure(), now);
        }
        self.redial();
    }

    /// What the caller is to do next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Moves received messages to the inbox and notifies waiting threads. The driver calls it at
    /// the end of each turn.
    pub fn finish_turn(&mut self) {
        let has_messages = self.inbox.push(&mut self.arrived);
        if std::mem::take(&mut self.has_progress) {
            self.notifier.notify();
        } else if has_messages {
            self.notifier.call_callback();
        }
        for key in std::mem::take(&mut self.continuing) {
            self.mark_ready(key);
        }
    }

    /// Adds an event, which waiting threads are notified of at the end of the turn.
    fn push_event(&mut self, event: Event, now: Instant) {
        if !self.events.push(event) {
            self.log_queue.log(|| DROPPED_EVENTS.to_owned(), now);
        }
        self.has_progress = true;
    }

    /// When [`SessionManager::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let is_idle = self.links.is_empty() && self.sessions.iter().all(Option::is_none);
        (!is_idle || !self.pool.is_empty()).then_some(self.sweep_at)
    }

    /// Whether [`SessionManager::handle_timeout`] has something to look after.
    pub fn timeout_is_due(&self, now: Instant) -> bool {
        now >= self.sweep_at
    }

    /// Notes a sign of life of a link whose bytes are not handed in yet.
    pub fn note_received(&mut self, key: LinkKey, now: Instant) {
        if let Some(link) = self.links.get_mut(&key) {
            link.received_at = now;
        }
    }

    /// Looks after everything that depends on time, if that is due.
    pub fn handle_timeout(&mut self, now: Instant) {
        if !self.timeout_is_due(now) {
            return;
        }
        let (keepalive, expire) = (self.options.keepalive, self.options.expire);
        let nearest = keepalive.min(expire).min(self.options.handshake);
        self.sweep_at = now + (nearest / 4).clamp(Duration::from_millis(5), Duration::from_secs(1));
        self.pool.release_idle();
        for key in self.links.keys().copied().collect::<Vec<_>>() {
            self.sweep_link(key, now);
        }
        for index in 0..self.sessions.len() {
            let Some(Some(session)) = self.sessions.get(index) else { continue };
            let gone = session.link.is_none() && now >= session.disconnected_at + expire;
            if gone {
                let failure =
                    self.last_dial_error.clone().map_or(Failure::Expired, Failure::Unreachable);
                self.end_session(index as u32, failure, now);
            }
        }
    }

    /// Lets nothing more be put, sends what was, and ends every session in order.
    pub fn close(&mut self, now: Instant) {
        if std::mem::replace(&mut self.is_closing, true) {
            return;
        }
        self.outbox.close(Failure::Closed);
        for index in 0..self.sessions.len() as u32 {
            self.flush_session(index, now);
        }
        // Those who come to go on with a session find it later, too.
        while !self.unidentified.is_empty() {
            self.evict_oldest_unidentified(now);
        }
        self.check_closed();
    }

    /// Ends everything at once.
    pub fn abort(&mut self, now: Instant) {
        self.is_closing = true;
        self.outbox.close(Failure::Closed);
        for index in 0..self.sessions.len() as u32 {
            self.end_session(index, Failure::Closed, now);
        }
        for key in self.links.keys().copied().collect::<Vec<_>>() {
            self.close_link(key, false, now);
        }
        self.check_closed();
    }

    fn sweep_link(&mut self, key: LinkKey, now: Instant) {
        let keepalive = self.options.keepalive;
        let Some(link) = self.links.get_mut(&key) else { return };
        let is_late = !link.is_open && now >= link.opened + self.options.handshake;
        let is_dialed = link.role == Role::Dialed;
        if is_late || now >= link.received_at + keepalive * SILENT_KEEPALIVES {
            if is_late && is_dialed {
                self.set_dial_error("there was no answer within handshake_s");
            }
            self.close_link(key, false, now);
        } else if link.is_open && now >= link.sent_at + keepalive {
            // Who hears us well enough may hear nothing from us while he sends a long message.
            let is_silent = now >= link.received_at + keepalive;
            let kind = if is_silent { Kind::Ping } else { Kind::Pong };
            link.control.extend(Header::control(kind, 0, 0).write());
            // One at a time.
            link.sent_at = now;
            self.mark_ready(key);
        }
    }

    /// Whether nobody may begin to send who has not yet: the window of a session counts only what
    /// this life of its peer has sent, and that of others may still lie in the inbox.
    fn inbox_is_full(&self) -> bool {
        let Options { queue_bytes_max, window_bytes, .. } = self.options;
        self.inbox.weight() > queue_bytes_max.max(window_bytes.saturating_mul(WINDOWS_KEPT))
    }

    /// What each peer may have under way: less when there are many.
    fn window(&self) -> u64 {
        let sessions = self.by_peer.len().max(1);
        let share = (self.options.queue_bytes_max / sessions) as u64;
        share.min(self.options.window_bytes as u64).max(WINDOW_BYTES_MIN)
    }

    fn open_session(&mut self, peer: Option<Identity>, now: Instant) -> u32 {
        let free = self.sessions.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.sessions.push(None);
            self.sessions.len() - 1
        });
        let delivery = Arc::new(DeliveryState::new(index as u32, peer));
        self.outbox.open(delivery.clone());
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

    /// Gives a link up, and has the caller close it.
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
        }
        if link.role == Role::Dialed {
            self.redial();
        }
    }

    /// Asks for another connection, for as long as there is a session to go on with.
    fn redial(&mut self) {
        if self.is_server || !matches!(self.sessions.first(), Some(Some(_))) {
            return;
        }
        let delay = self.backoff.next((self.random)());
        self.actions.push_back(Action::Dial(delay));
    }
}

impl std::fmt::Debug for SessionManager {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Hub({}, {} links)", self.identity, self.links.len())
    }
}
