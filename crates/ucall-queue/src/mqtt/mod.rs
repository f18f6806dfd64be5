//! Links through an MQTT broker, without I/O.
//!
//! The server is another client of the broker. A link is a pair of topics with a new name each
//! time: bytes for the server are published under `TOPIC/up/NAME`, bytes for the client under
//! `TOPIC/down/NAME`. A server announces its start under `TOPIC/server`, and its clients then make
//! new links. A side that dies is announced by its will, which the broker publishes. A broker that
//! is killed, or whose queue is full, loses publications: a missing piece ends the link (see
//! [`crate::tunnel`]), and the session continues over the next. Sessions acknowledge from end to
//! end, so pieces have QoS 0. A broker may refuse pieces above any length: see [`PieceSizer`].
#![forbid(unsafe_code)]

mod error;
mod packet;
mod piece_sizer;
mod reader;
mod topics;
mod tunnel_link;

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use ucall_buffer::Payload;

use crate::backoff::Backoff;
use crate::session_manager::{LinkKey, Role, SessionManager};
use crate::tunnel::HEADER_BYTES;
pub(crate) use error::BrokerError;
use packet::{BrokerLimits, Packet, Version};
use piece_sizer::PieceSizer;
use reader::{ReadEvent, Reader};
pub(crate) use tunnel_link::PieceHeader;
use tunnel_link::TunnelLink;

/// Credentials for a broker.
#[derive(Clone)]
pub struct Login {
    /// The prefix of all topics.
    pub topic: String,
    /// The user name, if any.
    pub user: Option<String>,
    /// The password, if any.
    pub password: Option<String>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Login({:?}, {:?})", self.topic, self.user)
    }
}

/// An output takes no further piece at this many bytes.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;
/// Above this many unsent bytes, a piece of an unknown link is not answered.
const CONTROL_BYTES_MAX: usize = 64 * 1024;
/// The most unsent bytes beside pieces. All links may end at once, each with some hundred bytes.
const UNSENT_BYTES_MAX: usize = 8 << 20;
/// Links at a time. Silent ones are closed soon.
const LINKS_MAX: usize = 32 * 1024;
/// The time in which a closed link sends its last output.
const LINGER: Duration = Duration::from_secs(1);
/// The connection to a broker that is silent for this many times `keepalive` is closed.
const SILENT_KEEPALIVES: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BrokerState {
    /// There is no connection.
    Disconnected,
    /// `CONNECT` was sent.
    Connecting,
    Connected,
}

/// The connection to a broker, and the links through it.
pub(crate) struct Broker {
    login: Login,
    is_server: bool,
    random: Box<dyn FnMut() -> u128 + Send>,
    keepalive: Duration,
    backoff: Backoff,
    version: Version,
    /// The newest version that the broker may support.
    newest: Version,
    state: BrokerState,
    reader: Reader,
    /// Packets that are sent before pieces.
    control: Vec<u8>,
    links: HashMap<u128, TunnelLink>,
    names: HashMap<LinkKey, u128>,
    /// Links that may have output.
    ready: VecDeque<u128>,
    /// The link whose piece is being received.
    incoming: Option<u128>,
    /// The deadlines of links, the next one first.
    due: BTreeSet<(Instant, u128)>,
    sizer: PieceSizer,
    /// When the manager wants the next link.
    next_dial_at: Option<Instant>,
    /// The upper half of the names of all links over this connection.
    connection: u64,
    /// Links that were dialed over this connection.
    dialed: u64,
    received_at: Instant,
    sent_at: Instant,
    /// A ping was sent since the last bytes of the broker.
    is_ping_pending: bool,
    is_closing: bool,
}

impl Broker {
    /// `keepalive` and `backoff` are those of the communicator.
    pub(crate) fn new(
        login: Login,
        is_server: bool,
        keepalive: Duration,
        backoff: Backoff,
        random: impl FnMut() -> u128 + Send + 'static,
        now: Instant,
    ) -> Self {
        Self {
            login,
            is_server,
            random: Box::new(random),
            keepalive,
            backoff,
            version: Version::Five,
            newest: Version::Five,
            state: BrokerState::Disconnected,
            reader: Reader::new(Version::Five),
            control: Vec::new(),
            links: HashMap::new(),
            names: HashMap::new(),
            ready: VecDeque::new(),
            incoming: None,
            due: BTreeSet::new(),
            sizer: PieceSizer::default(),
            next_dial_at: None,
            connection: 0,
            dialed: 0,
            received_at: now,
            sent_at: now,
            is_ping_pending: false,
            is_closing: false,
        }
    }

    /// The connection is established.
    pub(crate) fn handle_connected(&mut self, now: Instant) -> Result<(), BrokerError> {
        (self.received_at, self.sent_at, self.is_ping_pending) = (now, now, false);
        self.reader = Reader::new(self.version);
        self.state = BrokerState::Connecting;
        let keepalive_s = self.keepalive.as_secs_f64().round().clamp(1.0, 65_535.0) as u16;
        (self.connection, self.dialed) = ((self.random)() as u64, 0);
        self.sizer.begin();
        let client = format!("ucall-{:016x}", self.connection);
        let mut client_gone_header = Vec::new();
        PieceHeader::ClientGone.write(&mut client_gone_header);
        // Clients take this for the start of a server, and dial.
        let will = match self.is_server {
            true => (self.announcement_topic(), Vec::new()),
            false => (self.topic("up", self.name(0)), client_gone_header),
        };
        let will = (will.0.as_str(), will.1);
        self.control = packet::connect(self.version, &client, keepalive_s, &self.login, will)?;
        Ok(())
    }

    /// The connection is lost or could not be made. Pieces in flight may be lost, so all links are
    /// closed. Returns the wait before the next attempt.
    pub(crate) fn handle_lost(&mut self, manager: &mut SessionManager, now: Instant) -> Duration {
        match std::mem::replace(&mut self.state, BrokerState::Disconnected) {
            BrokerState::Connected => {
                self.sizer.disconnected(self.links.values().any(TunnelLink::has_long_in_flight));
                self.version = self.newest;
            }
            // A broker without MQTT 5 may end the connection without an answer.
            BrokerState::Connecting if self.version == Version::Five => {
                self.version = Version::ThreeOneOne;
            }
            BrokerState::Connecting | BrokerState::Disconnected => self.version = self.newest,
        }
        self.control.clear();
        self.close_links(manager, now);
        self.backoff.next((self.random)())
    }

    /// Handles received bytes. After an error the connection is to be closed.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        manager: &mut SessionManager,
        now: Instant,
    ) -> Result<(), BrokerError> {
        (self.received_at, self.is_ping_pending) = (now, false);
        let mut input = bytes;
        while let Some(found) = self.reader.next(&mut input)? {
            match found {
                ReadEvent::Packet(bytes) => self.handle_packet(&bytes)?,
                ReadEvent::Begin(..) if self.state != BrokerState::Connected => {
                    return Err(BrokerError::Malformed);
                }
                ReadEvent::Begin(topic, header) => {
                    self.incoming = self.begin_publication(&topic, header, manager, now)
                }
                ReadEvent::Payload(part) => {
                    let link = self.incoming.and_then(|name| self.links.get(&name));
                    if let Some(link) = link {
                        // An error has closed the link, which the manager reports by an action.
                        let _ = manager.handle_received(link.key, part, now);
                    }
                }
                ReadEvent::End => self.finish_piece(),
            }
        }
        (self.control.len() <= UNSENT_BYTES_MAX).then_some(()).ok_or(BrokerError::TakesNothing)
    }

    /// Writes the next output.
    pub(crate) fn poll_output(
        &mut self,
        output: &mut Payload,
        manager: &mut SessionManager,
        now: Instant,
    ) {
        output.extend(&self.control);
        self.control.clear();
        while self.state == BrokerState::Connected && output.len() < OUTPUT_BYTES_MAX {
            let Some(name) = self.ready.pop_front() else { break };
            let may_continue = self.write_piece(name, output, manager, now);
            match self.links.get_mut(&name) {
                Some(_) if may_continue => self.ready.push_back(name),
                Some(link) => link.is_queued = false,
                None => {}
            }
        }
        if !output.is_empty() {
            self.sent_at = now;
        }
    }

    /// A link may have output.
    pub(crate) fn mark_ready(&mut self, key: LinkKey) {
        if let Some(&name) = self.names.get(&key) {
            self.mark_ready_by_name(name);
        }
    }

    /// The manager wants a link at this time.
    pub(crate) fn dial_at(&mut self, at: Instant) {
        self.next_dial_at = Some(self.next_dial_at.map_or(at, |before| before.min(at)));
    }

    /// The manager has closed a link; with `after_output`, its output is sent first.
    pub(crate) fn close_link(&mut self, key: LinkKey, after_output: bool, now: Instant) {
        let Some(&name) = self.names.get(&key) else { return };
        if after_output && let Some(link) = self.links.get_mut(&name) {
            link.ends_at = Some(now + LINGER);
            self.update_due(name);
            self.mark_ready_by_name(name);
        } else {
            self.close_named_link(name, PieceHeader::Close);
        }
    }

    /// Whether all output is written.
    pub(crate) fn is_drained(&self) -> bool {
        self.links.is_empty() && self.control.is_empty()
    }

    /// Writes `DISCONNECT`.
    pub(crate) fn close(&mut self) {
        if self.state != BrokerState::Disconnected && !std::mem::replace(&mut self.is_closing, true)
        {
            self.control.extend(packet::DISCONNECT);
        }
    }

    /// When [`Broker::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let ends = self.due.first().map(|&(at, _)| at);
        let dials = self.next_dial_at.filter(|_| self.may_dial());
        let pings = (self.state == BrokerState::Connected).then(|| self.pings_at());
        let silent_until = self.received_at + self.keepalive * SILENT_KEEPALIVES;
        let silence_deadline = (self.state != BrokerState::Disconnected).then_some(silent_until);
        [ends, dials, pings, silence_deadline].into_iter().flatten().min()
    }

    /// Handles all deadlines. After an error the connection is to be closed.
    pub(crate) fn handle_timeout(
        &mut self,
        manager: &mut SessionManager,
        now: Instant,
    ) -> Result<(), BrokerError> {
        while let Some((at, name)) = self.due.pop_first() {
            if at > now {
                self.due.insert((at, name));
                break;
            }
            self.close_lost_link(name, manager, now);
            self.publish_header(name, PieceHeader::Close);
        }
        if self.may_dial()
            && self.next_dial_at.take_if(|at| now >= *at).is_some()
            && manager.wants_link()
        {
            self.dial(manager, now)?;
        }
        if self.state != BrokerState::Disconnected
            && now >= self.received_at + self.keepalive * SILENT_KEEPALIVES
        {
            return Err(BrokerError::TimedOut);
        }
        if self.state == BrokerState::Connected && now >= self.pings_at() {
            self.control.extend(packet::PING);
            self.is_ping_pending = true;
            self.sent_at = now;
        }
        Ok(())
    }

    /// Updates the deadline of a link.
    fn update_due(&mut self, name: u128) {
        let Some(link) = self.links.get_mut(&name) else { return };
        let due = link.deadline(self.keepalive);
        let before = std::mem::replace(&mut link.due, due);
        if before != due {
            if let Some(before) = before {
                self.due.remove(&(before, name));
            }
            self.due.extend(due.map(|at| (at, name)));
        }
    }

    /// When the next ping is due.
    fn pings_at(&self) -> Instant {
        let silent_since =
            if self.is_ping_pending { self.sent_at } else { self.sent_at.min(self.received_at) };
        silent_since + self.keepalive / 2
    }

    fn may_dial(&self) -> bool {
        self.state == BrokerState::Connected && !self.is_server && self.links.is_empty()
    }

    fn handle_packet(&mut self, packet: &[u8]) -> Result<(), BrokerError> {
        match packet::read(self.version, packet)? {
            Packet::Connack(limits) if self.state == BrokerState::Connecting => {
                self.handle_connack(&limits)
            }
            Packet::UnsupportedVersion => {
                self.newest = Version::ThreeOneOne;
                self.state = BrokerState::Disconnected;
                Err(BrokerError::UnsupportedVersion)
            }
            Packet::Refused(why) => {
                self.state = BrokerState::Disconnected;
                Err(BrokerError::Refused(why))
            }
            Packet::Unsubscribed(why) => Err(BrokerError::Unsubscribed(why)),
            Packet::Disconnected(why) => Err(BrokerError::Disconnected(why)),
            Packet::Connack(_) | Packet::Other => Ok(()),
        }
    }

    /// The broker has accepted the connection.
    fn handle_connack(&mut self, limits: &BrokerLimits) -> Result<(), BrokerError> {
        self.state = BrokerState::Connected;
        if let Some(seconds) = limits.keepalive_s.filter(|seconds| *seconds > 0) {
            self.keepalive = self.keepalive.min(Duration::from_secs(seconds.into()));
        }
        let head = packet::publish_head(self.version, &self.topic("down", 0), u16::MAX.into());
        let most = limits.packet_bytes_max.map_or(usize::MAX, |most| most as usize);
        self.sizer.limit(most.saturating_sub(head.len() + HEADER_BYTES));
        let announcement_topic = self.announcement_topic();
        if self.is_server {
            let all = format!("{}/up/+", self.login.topic);
            self.control.extend(packet::subscribe(self.version, &all)?);
            self.control.extend(packet::publish_head(self.version, &announcement_topic, 0));
        } else {
            self.control.extend(packet::subscribe(self.version, &announcement_topic)?);
        }
        Ok(())
    }

    /// Opens a link to the server. The broker gets the subscription before the first piece.
    fn dial(&mut self, manager: &mut SessionManager, now: Instant) -> Result<(), BrokerError> {
        self.dialed += 1;
        let name = self.name(self.dialed);
        let ours = self.topic("down", name);
        self.control.extend(packet::subscribe(self.version, &ours)?);
        self.open(name, Role::Dialed, manager, now);
        Ok(())
    }

    fn open(&mut self, name: u128, role: Role, manager: &mut SessionManager, now: Instant) {
        let key = manager.open_link(role, now);
        self.links.insert(name, TunnelLink::new(key));
        self.names.insert(key, name);
    }

    /// Handles the start of a publication; returns the link whose next piece it is, if it is one.
    fn begin_publication(
        &mut self,
        topic: &str,
        header: Option<PieceHeader>,
        manager: &mut SessionManager,
        now: Instant,
    ) -> Option<u128> {
        let rest = topic.strip_prefix(self.login.topic.as_str())?.strip_prefix('/')?;
        if rest == "server" {
            if !self.is_server {
                self.handle_server_started(manager, now);
            }
            return None;
        }
        let side = if self.is_server { "up" } else { "down" };
        let name = rest.strip_prefix(side)?.strip_prefix('/')?;
        let name = u128::from_str_radix(name, 16).ok()?;
        let header = header?;
        if header == PieceHeader::ClientGone {
            self.handle_client_gone(name, manager, now);
            return None;
        }
        let is_new = header == PieceHeader::Piece(0) && !self.links.contains_key(&name);
        if is_new && self.is_server && self.links.len() < LINKS_MAX {
            self.open(name, Role::Accepted, manager, now);
        }
        self.handle_header(name, header, manager, now)
    }

    fn handle_header(
        &mut self,
        name: u128,
        header: PieceHeader,
        manager: &mut SessionManager,
        now: Instant,
    ) -> Option<u128> {
        let Some(link) = self.links.get_mut(&name) else {
            // A link from before a restart of the broker or of this side.
            if matches!(header, PieceHeader::Piece(_)) && self.control.len() < CONTROL_BYTES_MAX {
                self.publish_header(name, PieceHeader::Close);
            }
            return None;
        };
        match header {
            PieceHeader::Piece(number) if number == link.received() => return Some(name),
            PieceHeader::Piece(number) if number < link.received() => {}
            PieceHeader::Piece(_) => {
                manager.handle_link_closed(link.key, now);
                self.close_named_link(name, PieceHeader::Lost);
            }
            PieceHeader::Credit(received, window) => {
                let full = link.credit(received, window, self.sizer.full());
                self.sizer.arrived(name, received, full);
                self.backoff.reset();
                self.update_due(name);
                self.mark_ready_by_name(name);
            }
            PieceHeader::ClientGone => {}
            PieceHeader::Lost | PieceHeader::Close => {
                if header == PieceHeader::Lost {
                    self.close_lost_link(name, manager, now);
                } else {
                    manager.handle_link_closed(link.key, now);
                    self.remove_link(name);
                }
            }
        }
        None
    }

    /// The piece that was being received is complete.
    fn finish_piece(&mut self) {
        let Some(name) = self.incoming.take() else { return };
        let links = self.links.len();
        if let Some(link) = self.links.get_mut(&name)
            && let Some(credit) = link.count_piece(links)
        {
            self.publish_header(name, credit);
        }
    }

    /// Closes the links of a client, because a new server does not know them.
    fn handle_server_started(&mut self, manager: &mut SessionManager, now: Instant) {
        self.backoff.reset();
        self.close_links(manager, now);
        self.next_dial_at = Some(now);
    }

    /// Closes all links of the connection to which this link belongs.
    fn handle_client_gone(&mut self, name: u128, manager: &mut SessionManager, now: Instant) {
        let client_gone_header = self.links.keys().filter(|other| **other >> 64 == name >> 64);
        for name in client_gone_header.copied().collect::<Vec<_>>() {
            if let Some(link) = self.links.get(&name) {
                manager.handle_link_closed(link.key, now);
            }
            self.remove_link(name);
        }
    }

    /// Writes the next piece of a link; `true` if it may have more.
    fn write_piece(
        &mut self,
        name: u128,
        output: &mut Payload,
        manager: &mut SessionManager,
        now: Instant,
    ) -> bool {
        let topic = self.topic(self.peer_side(), name);
        let Some(link) = self.links.get_mut(&name) else { return false };
        if !link.has_credit_for(1) {
            link.stalled_since.get_or_insert(now);
            self.update_due(name);
            return false;
        }
        let waiting = link.fill(self.sizer.wanted(), manager, now);
        let count = self.sizer.next((name, link.next_number()), waiting, link.has_credit_for(2));
        if count == 0 {
            if link.ends_at.is_some() {
                self.close_named_link(name, PieceHeader::Close);
                output.extend(&self.control);
                self.control.clear();
            }
            return false;
        }
        let mut head = packet::publish_head(self.version, &topic, HEADER_BYTES + count);
        PieceHeader::Piece(link.next_number()).write(&mut head);
        output.extend(&head);
        link.take(count, output);
        true
    }

    /// Closes a link on which pieces were lost, perhaps because of their length.
    fn close_lost_link(&mut self, name: u128, manager: &mut SessionManager, now: Instant) {
        let Some(link) = self.links.get(&name) else { return };
        let is_too_long = link.has_long_in_flight();
        manager.handle_link_closed(link.key, now);
        self.sizer.lost(name, is_too_long);
        self.remove_link(name);
    }

    /// Closes a link, and reports that to the peer.
    fn close_named_link(&mut self, name: u128, header: PieceHeader) {
        self.publish_header(name, header);
        self.remove_link(name);
    }

    fn remove_link(&mut self, name: u128) {
        let Some(link) = self.links.remove(&name) else { return };
        self.names.remove(&link.key);
        if let Some(due) = link.due {
            self.due.remove(&(due, name));
        }
        self.sizer.forget(name);
        if !self.is_server && self.state == BrokerState::Connected {
            // The topic is valid, because its subscription was.
            let ours = packet::unsubscribe(self.version, &self.topic("down", name));
            self.control.extend(ours.unwrap_or_default());
        }
    }

    fn close_links(&mut self, manager: &mut SessionManager, now: Instant) {
        self.incoming = None;
        self.ready.clear();
        for name in self.links.keys().copied().collect::<Vec<_>>() {
            if let Some(link) = self.links.get(&name) {
                manager.handle_link_closed(link.key, now);
            }
            self.remove_link(name);
        }
    }

    /// Publishes a header without a piece.
    fn publish_header(&mut self, name: u128, header: PieceHeader) {
        if self.state == BrokerState::Connected {
            let topic = self.topic(self.peer_side(), name);
            let head = packet::publish_head(self.version, &topic, HEADER_BYTES);
            self.control.extend(head);
            header.write(&mut self.control);
        }
    }

    fn mark_ready_by_name(&mut self, name: u128) {
        if let Some(link) = self.links.get_mut(&name)
            && !std::mem::replace(&mut link.is_queued, true)
        {
            self.ready.push_back(name);
        }
    }
}
