//! Links through an MQTT broker, without I/O.
//!
//! The server is another client of the broker. A link is a pair of topics that the client names
//! anew each time: what goes to the server is published under `TOPIC/up/NAME`, what goes to the
//! client under `TOPIC/down/NAME`. A server that comes says so under `TOPIC/server`, and its
//! clients make their links anew. Whoever is gone without a word is missed by the broker, which
//! says so for it. A broker may lose what it holds (it is killed, or its queue is full), so each
//! piece of a link has a number: one that is missing ends the link, and the session goes on over
//! the next. Acknowledgements are the session's, from end to end; so pieces go at QoS 0, and credit
//! from the receiver, not from the broker, bounds what lies in the broker.
//!
//! A broker may also refuse pieces for their length without a word, at any length it likes: see
//! [`Lengths`].
#![forbid(unsafe_code)]

mod length;
mod packet;
mod pipe;
mod reader;
mod trouble;

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use ucall_buffer::Payload;

use crate::backoff::Backoff;
use crate::hub::{Hub, LinkKey, Role};
use length::Lengths;
use packet::{Packet, Terms, Version};
use pipe::Pipe;
pub(crate) use pipe::Word;
use reader::{Found, Reader};
pub(crate) use trouble::Trouble;

/// Who we are to a broker, and where we meet there.
#[derive(Clone)]
pub struct Login {
    /// Under this all is published.
    pub topic: String,
    /// Who we are; nobody if there is no name.
    pub user: Option<String>,
    /// And our password.
    pub password: Option<String>,
}

impl std::fmt::Debug for Login {
    /// Keeps the password to itself.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Login({:?}, {:?})", self.topic, self.user)
    }
}

/// What comes before our own bytes in a publication: see [`Word`].
const HEADER_BYTES: usize = 9;
/// Pieces that may be under way on one link, and on all of a server's: below what brokers queue for
/// one client, which is 1,000 or more.
const PIECES_MAX: u64 = 32;
const PIECES_OF_ALL_MAX: u64 = 512;
/// Pieces that may be under way before the other side has said a word.
const PIECES_FIRST: u64 = 2;
/// One output is not begun with more than this behind it.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;
/// Words to strangers are not added to more than this.
const CONTROL_BYTES_MAX: usize = 64 * 1024;
/// What a broker is sent beside pieces may wait up to this. All links may end at once, each with a
/// word of some hundred bytes.
const UNSENT_BYTES_MAX: usize = 8 << 20;
/// Links at the same time; each that says nothing is given up soon.
const PIPES_MAX: usize = 32 * 1024;
/// How long what is left to say on a link that ends may take.
const LINGER: Duration = Duration::from_secs(1);
/// A broker that says nothing for so many times `keepalive` is given up.
const QUIET_KEEPALIVES: u32 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// There is no connection.
    Away,
    /// We have asked to be let in.
    Knocking,
    In,
}

/// The connection to a broker, and the links through it.
pub(crate) struct Broker {
    login: Login,
    is_server: bool,
    random: Box<dyn FnMut() -> u128 + Send>,
    keepalive: Duration,
    backoff: Backoff,
    version: Version,
    /// The newest that the broker may speak.
    newest: Version,
    state: State,
    reader: Reader,
    /// Packets that go out before pieces do.
    control: Vec<u8>,
    pipes: HashMap<u128, Pipe>,
    names: HashMap<LinkKey, u128>,
    /// Links that may have something to send.
    ready: VecDeque<u128>,
    /// The link whose piece is coming in.
    incoming: Option<u128>,
    /// When links are to be given up, the next one first.
    due: BTreeSet<(Instant, u128)>,
    lengths: Lengths,
    /// When the hub wants the next link.
    dials_at: Option<Instant>,
    /// The upper half of the names of all links that are made over this connection.
    connection: u64,
    /// Links that were made over it.
    dialed: u64,
    heard: Instant,
    spoke: Instant,
    /// Since it was heard.
    has_asked: bool,
    is_leaving: bool,
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
            state: State::Away,
            reader: Reader::new(Version::Five),
            control: Vec::new(),
            pipes: HashMap::new(),
            names: HashMap::new(),
            ready: VecDeque::new(),
            incoming: None,
            due: BTreeSet::new(),
            lengths: Lengths::default(),
            dials_at: None,
            connection: 0,
            dialed: 0,
            heard: now,
            spoke: now,
            has_asked: false,
            is_leaving: false,
        }
    }

    /// A connection was made.
    pub(crate) fn connected(&mut self, now: Instant) -> Result<(), Trouble> {
        (self.heard, self.spoke, self.has_asked) = (now, now, false);
        self.reader = Reader::new(self.version);
        self.state = State::Knocking;
        let keepalive_s = self.keepalive.as_secs_f64().round().clamp(1.0, 65_535.0) as u16;
        (self.connection, self.dialed) = ((self.random)() as u64, 0);
        self.lengths.begin();
        let client = format!("ucall-{:016x}", self.connection);
        let mut gone = Vec::new();
        Word::Gone.write(&mut gone);
        // Clients take it for one that comes, and look for it.
        let will = match self.is_server {
            true => (self.arrival(), Vec::new()),
            false => (self.topic("up", self.name(0)), gone),
        };
        let will = (will.0.as_str(), will.1);
        self.control = packet::connect(self.version, &client, keepalive_s, &self.login, will)?;
        Ok(())
    }

    /// The connection is lost, or could not be made. What was under way may be lost, too, so no
    /// link goes on. Returns after what time to try again.
    pub(crate) fn disconnected(&mut self, hub: &mut Hub, now: Instant) -> Duration {
        match std::mem::replace(&mut self.state, State::Away) {
            State::In => {
                self.lengths.disconnected(self.pipes.values().any(Pipe::has_long_under_way));
                self.version = self.newest;
            }
            // One that knows no MQTT 5 may end the connection without a word.
            State::Knocking if self.version == Version::Five => {
                self.version = Version::ThreeOneOne;
            }
            State::Knocking | State::Away => self.version = self.newest,
        }
        self.control.clear();
        self.drop_links(hub, now);
        self.backoff.next((self.random)())
    }

    /// Takes in what came. After an error the connection is to be given up.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        hub: &mut Hub,
        now: Instant,
    ) -> Result<(), Trouble> {
        (self.heard, self.has_asked) = (now, false);
        let mut input = bytes;
        while let Some(found) = self.reader.next(&mut input)? {
            match found {
                Found::Packet(bytes) => self.take_packet(&bytes)?,
                Found::Begin(..) if self.state != State::In => return Err(Trouble::Malformed),
                Found::Begin(topic, word) => self.incoming = self.begin(&topic, word, hub, now),
                Found::Payload(part) => {
                    let pipe = self.incoming.and_then(|name| self.pipes.get(&name));
                    if let Some(pipe) = pipe {
                        // An error has closed the link, which the hub tells by an action.
                        let _ = hub.receive(pipe.key, part, now);
                    }
                }
                Found::End => self.finish_piece(),
            }
        }
        (self.control.len() <= UNSENT_BYTES_MAX).then_some(()).ok_or(Trouble::TakesNothing)
    }

    /// Writes what is to be sent, as much as goes out in one piece.
    pub(crate) fn poll_output(&mut self, output: &mut Payload, hub: &mut Hub, now: Instant) {
        output.extend(&self.control);
        self.control.clear();
        while self.state == State::In && output.len() < OUTPUT_BYTES_MAX {
            let Some(name) = self.ready.pop_front() else { break };
            let may_have_more = self.write_piece(name, output, hub, now);
            match self.pipes.get_mut(&name) {
                Some(_) if may_have_more => self.ready.push_back(name),
                Some(pipe) => pipe.is_listed = false,
                None => {}
            }
        }
        if !output.is_empty() {
            self.spoke = now;
        }
    }

    /// A link may have something to send.
    pub(crate) fn enlist(&mut self, key: LinkKey) {
        if let Some(&name) = self.names.get(&key) {
            self.enlist_name(name);
        }
    }

    /// The hub wants a link, at this moment.
    pub(crate) fn dial_at(&mut self, at: Instant) {
        self.dials_at = Some(self.dials_at.map_or(at, |before| before.min(at)));
    }

    /// The hub has given a link up; with `after_output`, what it had to say still goes out.
    pub(crate) fn close_link(&mut self, key: LinkKey, after_output: bool, now: Instant) {
        let Some(&name) = self.names.get(&key) else { return };
        if after_output && let Some(pipe) = self.pipes.get_mut(&name) {
            pipe.ends_at = Some(now + LINGER);
            self.note_due(name);
            self.enlist_name(name);
        } else {
            self.end(name, Word::Close);
        }
    }

    /// Whether no link has anything left to say.
    pub(crate) fn is_drained(&self) -> bool {
        self.pipes.is_empty() && self.control.is_empty()
    }

    /// Says goodbye.
    pub(crate) fn leave(&mut self) {
        if self.state != State::Away && !std::mem::replace(&mut self.is_leaving, true) {
            self.control.extend(packet::DISCONNECT);
        }
    }

    /// When [`Broker::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let ends = self.due.first().map(|&(at, _)| at);
        let dials = self.dials_at.filter(|_| self.may_dial());
        let pings = (self.state == State::In).then(|| self.pings_at());
        let quiet_until = self.heard + self.keepalive * QUIET_KEEPALIVES;
        let gives_up = (self.state != State::Away).then_some(quiet_until);
        [ends, dials, pings, gives_up].into_iter().flatten().min()
    }

    /// Looks after what depends on time. After an error the connection is to be given up.
    pub(crate) fn handle_timeout(&mut self, hub: &mut Hub, now: Instant) -> Result<(), Trouble> {
        while let Some((at, name)) = self.due.pop_first() {
            if at > now {
                self.due.insert((at, name));
                break;
            }
            self.lose(name, hub, now);
            self.say(name, Word::Close);
        }
        if self.may_dial() && self.dials_at.take_if(|at| now >= *at).is_some() && hub.wants_link() {
            self.dial(hub, now)?;
        }
        if self.state != State::Away && now >= self.heard + self.keepalive * QUIET_KEEPALIVES {
            return Err(Trouble::Silent);
        }
        if self.state == State::In && now >= self.pings_at() {
            self.control.extend(packet::PING);
            self.has_asked = true;
            self.spoke = now;
        }
        Ok(())
    }

    /// Keeps when a link is to be given up, which has changed.
    fn note_due(&mut self, name: u128) {
        let Some(pipe) = self.pipes.get_mut(&name) else { return };
        let due = pipe.given_up_at(self.keepalive);
        let before = std::mem::replace(&mut pipe.due, due);
        if before != due {
            if let Some(before) = before {
                self.due.remove(&(before, name));
            }
            self.due.extend(due.map(|at| (at, name)));
        }
    }

    /// When a sign of life is due: from us, or asked for.
    fn pings_at(&self) -> Instant {
        let quiet_since = if self.has_asked { self.spoke } else { self.spoke.min(self.heard) };
        quiet_since + self.keepalive / 2
    }

    fn may_dial(&self) -> bool {
        self.state == State::In && !self.is_server && self.pipes.is_empty()
    }

    fn take_packet(&mut self, packet: &[u8]) -> Result<(), Trouble> {
        match packet::read(self.version, packet)? {
            Packet::Welcome(terms) if self.state == State::Knocking => self.enter(&terms),
            Packet::TooNew => {
                self.newest = Version::ThreeOneOne;
                self.state = State::Away;
                Err(Trouble::TooNew)
            }
            Packet::Refused(why) => {
                self.state = State::Away;
                Err(Trouble::Refused(why))
            }
            Packet::Unsubscribed(why) => Err(Trouble::Unsubscribed(why)),
            Packet::Goodbye(why) => Err(Trouble::Goodbye(why)),
            Packet::Welcome(_) | Packet::Other => Ok(()),
        }
    }

    /// The broker has let us in.
    fn enter(&mut self, terms: &Terms) -> Result<(), Trouble> {
        self.state = State::In;
        if let Some(seconds) = terms.keepalive_s.filter(|seconds| *seconds > 0) {
            self.keepalive = self.keepalive.min(Duration::from_secs(seconds.into()));
        }
        let head = packet::publish_head(self.version, &self.topic("down", 0), u16::MAX.into());
        let most = terms.packet_bytes_max.map_or(usize::MAX, |most| most as usize);
        self.lengths.limit(most.saturating_sub(head.len() + HEADER_BYTES));
        let arrival = self.arrival();
        if self.is_server {
            let all = format!("{}/up/+", self.login.topic);
            self.control.extend(packet::subscribe(self.version, &all)?);
            self.control.extend(packet::publish_head(self.version, &arrival, 0));
        } else {
            self.control.extend(packet::subscribe(self.version, &arrival)?);
        }
        Ok(())
    }

    /// Opens a link to the server. The broker sees the subscription before what is sent.
    fn dial(&mut self, hub: &mut Hub, now: Instant) -> Result<(), Trouble> {
        self.dialed += 1;
        let name = self.name(self.dialed);
        let ours = self.topic("down", name);
        self.control.extend(packet::subscribe(self.version, &ours)?);
        self.open(name, Role::Dialed, hub, now);
        Ok(())
    }

    fn open(&mut self, name: u128, role: Role, hub: &mut Hub, now: Instant) {
        let key = hub.open_link(role, now);
        self.pipes.insert(name, Pipe::new(key, PIECES_FIRST));
        self.names.insert(key, name);
    }

    /// A publication has begun: the link whose next piece it is, if it is one.
    fn begin(
        &mut self,
        topic: &str,
        word: Option<Word>,
        hub: &mut Hub,
        now: Instant,
    ) -> Option<u128> {
        let rest = topic.strip_prefix(self.login.topic.as_str())?.strip_prefix('/')?;
        if rest == "server" {
            if !self.is_server {
                self.server_arrived(hub, now);
            }
            return None;
        }
        let side = if self.is_server { "up" } else { "down" };
        let name = rest.strip_prefix(side)?.strip_prefix('/')?;
        let name = u128::from_str_radix(name, 16).ok()?;
        let word = word?;
        if word == Word::Gone {
            self.client_gone(name, hub, now);
            return None;
        }
        let is_new = word == Word::Piece(0) && !self.pipes.contains_key(&name);
        if is_new && self.is_server && self.pipes.len() < PIPES_MAX {
            self.open(name, Role::Accepted, hub, now);
        }
        self.take_word(name, word, hub, now)
    }

    fn take_word(&mut self, name: u128, word: Word, hub: &mut Hub, now: Instant) -> Option<u128> {
        let Some(pipe) = self.pipes.get_mut(&name) else {
            // A link from before the broker or we were started again.
            if matches!(word, Word::Piece(_)) && self.control.len() < CONTROL_BYTES_MAX {
                self.say(name, Word::Close);
            }
            return None;
        };
        match word {
            Word::Piece(number) if number == pipe.received => return Some(name),
            Word::Piece(number) if number < pipe.received => {}
            Word::Piece(_) => {
                hub.link_closed(pipe.key, now);
                self.end(name, Word::Lost);
            }
            Word::Credit(received, window) => {
                let full = pipe.credit(received, window, self.lengths.full());
                self.lengths.arrived(name, received, full);
                self.backoff.reset();
                self.note_due(name);
                self.enlist_name(name);
            }
            Word::Gone => {}
            Word::Lost | Word::Close => {
                if word == Word::Lost {
                    self.lose(name, hub, now);
                } else {
                    hub.link_closed(pipe.key, now);
                    self.forget(name);
                }
            }
        }
        None
    }

    /// The piece that was coming in is whole.
    fn finish_piece(&mut self) {
        let Some(name) = self.incoming.take() else { return };
        let links = self.pipes.len() as u64;
        let window = (PIECES_OF_ALL_MAX / links.max(1)).clamp(PIECES_FIRST, PIECES_MAX);
        if let Some(pipe) = self.pipes.get_mut(&name)
            && let Some(credit) = pipe.take_piece(window)
        {
            self.say(name, credit);
        }
    }

    /// Clients do not wait for their links to a server before to be found dead.
    fn server_arrived(&mut self, hub: &mut Hub, now: Instant) {
        self.backoff.reset();
        self.drop_links(hub, now);
        self.dials_at = Some(now);
    }

    /// Gives up the links of the connection on which this one was named.
    fn client_gone(&mut self, name: u128, hub: &mut Hub, now: Instant) {
        let gone = self.pipes.keys().filter(|other| **other >> 64 == name >> 64);
        for name in gone.copied().collect::<Vec<_>>() {
            if let Some(pipe) = self.pipes.get(&name) {
                hub.link_closed(pipe.key, now);
            }
            self.forget(name);
        }
    }

    /// Writes the next piece of a link. Whether it may have more.
    fn write_piece(
        &mut self,
        name: u128,
        output: &mut Payload,
        hub: &mut Hub,
        now: Instant,
    ) -> bool {
        let topic = self.topic(self.theirs(), name);
        let Some(pipe) = self.pipes.get_mut(&name) else { return false };
        if !pipe.has_credit() {
            pipe.stuck_since.get_or_insert(now);
            self.note_due(name);
            return false;
        }
        let waiting = pipe.fill(self.lengths.wanted(), hub, now);
        let count = self.lengths.next((name, pipe.next_number()), waiting, pipe.has_credit_for(2));
        if count == 0 {
            if pipe.ends_at.is_some() {
                self.end(name, Word::Close);
                output.extend(&self.control);
                self.control.clear();
            }
            return false;
        }
        let mut head = packet::publish_head(self.version, &topic, HEADER_BYTES + count);
        pipe.next_word().write(&mut head);
        output.extend(&head);
        pipe.take(count, output);
        true
    }

    /// Gives a link up on which pieces were lost, for their length perhaps.
    fn lose(&mut self, name: u128, hub: &mut Hub, now: Instant) {
        let Some(pipe) = self.pipes.get(&name) else { return };
        let is_too_long = pipe.has_long_under_way();
        hub.link_closed(pipe.key, now);
        self.lengths.lost(name, is_too_long);
        self.forget(name);
    }

    /// Gives a link up, and tells the other side.
    fn end(&mut self, name: u128, word: Word) {
        self.say(name, word);
        self.forget(name);
    }

    fn forget(&mut self, name: u128) {
        let Some(pipe) = self.pipes.remove(&name) else { return };
        self.names.remove(&pipe.key);
        if let Some(due) = pipe.due {
            self.due.remove(&(due, name));
        }
        self.lengths.forget(name);
        if !self.is_server && self.state == State::In {
            // The topic is one that could be subscribed to.
            let ours = packet::unsubscribe(self.version, &self.topic("down", name));
            self.control.extend(ours.unwrap_or_default());
        }
    }

    fn drop_links(&mut self, hub: &mut Hub, now: Instant) {
        self.incoming = None;
        self.ready.clear();
        for name in self.pipes.keys().copied().collect::<Vec<_>>() {
            if let Some(pipe) = self.pipes.get(&name) {
                hub.link_closed(pipe.key, now);
            }
            self.forget(name);
        }
    }

    /// Publishes a word, without a piece.
    fn say(&mut self, name: u128, word: Word) {
        if self.state == State::In {
            let topic = self.topic(self.theirs(), name);
            let head = packet::publish_head(self.version, &topic, HEADER_BYTES);
            self.control.extend(head);
            word.write(&mut self.control);
        }
    }

    fn enlist_name(&mut self, name: u128) {
        if let Some(pipe) = self.pipes.get_mut(&name)
            && !std::mem::replace(&mut pipe.is_listed, true)
        {
            self.ready.push_back(name);
        }
    }

    /// The side of the topic where what we say goes.
    fn theirs(&self) -> &'static str {
        if self.is_server { "down" } else { "up" }
    }

    /// Where a server says that it has come.
    fn arrival(&self) -> String {
        format!("{}/server", self.login.topic)
    }

    /// Names a link of this connection.
    fn name(&self, number: u64) -> u128 {
        u128::from(self.connection) << 64 | u128::from(number)
    }

    fn topic(&self, side: &str, name: u128) -> String {
        format!("{}/{side}/{name:032x}", self.login.topic)
    }
}

impl std::fmt::Debug for Broker {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Broker({:?}, {} links)", self.state, self.pipes.len())
    }
}
