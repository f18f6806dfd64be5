//! One connection to an upstream, without its socket.
//!
//! Calls over HTTP follow one another; others are pipelined. A connection over HTTP ends when its
//! call is cancelled, which reports that to the upstream, too.

mod closing;
mod long;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ucall_engine::{Id, SockAddr, is_shortage};
use ucall_proto::{MemoryBudget, Reservation};
use ucall_server::{NativeContext, NativeOutcome, Share, Token};

use crate::ends::{ConnectionEnd, EndedConnection, GivenUp, describe_tls, failed};
use crate::http::{self, HttpReplyReader, HttpTarget};
use crate::long_call::{CallText, LongCall, SHORT_BYTES_MAX};
use crate::options::{Destination, UpstreamAddress};
use crate::replies::{NO_CALL, ReplyReader, UpstreamReply, to_one_line};
use crate::request::{CallContext, end_call, write_cancel, write_meta};
use crate::secure::Transport;
use crate::slots::{PendingCall, Slots};

/// How long a connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the handshake of TLS may take after that.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls in flight on one connection. A server of this project reads no further at 128.
const CALLS_MAX: usize = 100;
/// Bytes that wait for a send, above which a connection gets no more calls.
const UNSENT_BYTES_MAX: usize = 1024 * 1024;
/// A longer call has a connection of its own: others do not wait for it, and end with it if the
/// upstream closes a connection rather than read so long a call.
pub(crate) const SHARED_BYTES_MAX: usize = SHORT_BYTES_MAX;
/// Calls that were given up and not answered since, at which a connection gets no more calls.
const GIVEN_UP_MAX: usize = CALLS_MAX / 2;
/// How long the replies to them may take, once no other call waits.
const GIVEN_UP_TIMEOUT: Duration = Duration::from_secs(1);
/// An unused connection is closed after this, before the upstream closes it.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// The idle time over HTTP: common servers close after 5 s, and a call sent meanwhile is lost.
const HTTP_IDLE_MAX: Duration = Duration::from_secs(4);

/// What all connections to an upstream have in common in one turn.
#[derive(Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) destination: &'a Destination,
    /// Connections with one call. Their long calls share the bytes that a turn sends.
    pub(crate) private: usize,
}

#[derive(Debug)]
enum ConnectionState {
    New,
    Connecting { attempt: Id, until: Instant },
    Open(Id),
    Closed,
}

/// How calls are written, and replies are read.
#[derive(Debug)]
enum Framing {
    Raw(ReplyReader),
    Http(Arc<HttpTarget>, HttpReplyReader),
}

/// One connection, with the calls that wait for its replies.
#[derive(Debug)]
pub(crate) struct Connection {
    state: ConnectionState,
    framing: Framing,
    transport: Transport,
    began: Instant,
    /// When the handshake must have ended.
    handshake_until: Instant,
    slots: Slots,
    /// What was not passed to the engine yet.
    output: Vec<u8>,
    /// The calls in it: their slots, and their texts up to the params.
    unsent: Vec<(u32, Range<usize>)>,
    /// Set once it cannot go on.
    ended: Option<ConnectionEnd>,
    /// When a call began or bytes arrived.
    last_used: Instant,
    last_received: Instant,
    /// Whether it gets no more calls, because it seems to be stuck.
    is_retired: bool,
    /// Whether the last call or notification is large, which has the connection for itself.
    has_large_call: bool,
    /// The part of it that is not in the output yet.
    long: Option<Box<LongCall>>,
    /// When the next piece of it is due, unless the end of a send is reported.
    piece_at: Option<Instant>,
    /// Whether it is closed once the output is sent.
    ends_after_send: bool,
    /// Whether it had a notification, which an error without an id may be for.
    has_notified: bool,
    /// Whether the last call is a stream, which has the connection for itself: a slow caller stops
    /// the reading.
    has_stream: bool,
    /// What has arrived of a stream, and waits for its turn to be read.
    pub(crate) backlog: Vec<u8>,
    /// The stream whose caller is slow.
    paused: Option<Token>,
    is_reading_paused: bool,
    /// When the reply to a call that was given up, or to a notification over HTTP, must have
    /// arrived.
    discarded_until: Option<Instant>,
    /// For what has arrived of a reply, and what waits to be sent.
    reserved: Reservation,
}

impl Connection {
    /// A connection that is not open yet.
    pub(crate) fn new(address: &UpstreamAddress, bytes_max: usize, now: Instant) -> Self {
        let framing = match &address.http {
            Some(target) => Framing::Http(target.clone(), HttpReplyReader::new(bytes_max)),
            None => Framing::Raw(ReplyReader::new(bytes_max)),
        };
        let transport = address.tls.as_ref().map(Transport::secure).transpose();
        let (transport, ended) = match transport {
            Ok(transport) => (transport.unwrap_or_default(), None),
            Err(error) => (Transport::default(), Some(describe_tls(&error))),
        };
        Self {
            state: ConnectionState::New,
            framing,
            transport,
            began: now,
            handshake_until: now,
            slots: Slots::default(),
            output: Vec::new(),
            unsent: Vec::new(),
            ended,
            last_used: now,
            last_received: now,
            is_retired: false,
            has_large_call: false,
            long: None,
            piece_at: None,
            ends_after_send: false,
            has_notified: false,
            has_stream: false,
            backlog: Vec::new(),
            paused: None,
            is_reading_paused: false,
            discarded_until: None,
            reserved: Reservation::default(),
        }
    }

    /// Whether it takes a call that has a connection for itself.
    pub(crate) fn is_unused(&self) -> bool {
        self.has_room() && self.slots.used() == 0 && self.output.is_empty()
    }

    /// Whether it takes another call.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_retired
            && !self.is_private()
            && self.ended.is_none()
            && self.slots.used() < calls_max(self.is_http())
            && self.output.len() + self.transport.unsent() < UNSENT_BYTES_MAX
    }

    /// Whether it has a call or a notification for itself, and so takes no other.
    pub(crate) fn is_private(&self) -> bool {
        (self.has_stream || self.has_large_call) && (self.slots.used() > 0 || self.long.is_some())
    }

    /// Whether the upstream has said here that it ends.
    pub(crate) fn is_draining(&self) -> bool {
        matches!(&self.framing, Framing::Raw(reader) if reader.is_draining())
    }

    /// When it was made.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// Takes no more calls.
    pub(crate) fn retire(&mut self) {
        self.is_retired = true;
    }

    /// Whether it has a stream for itself.
    pub(crate) fn is_stream(&self) -> bool {
        self.has_stream && self.slots.used() > 0
    }

    /// Whether the caller of its stream is slow.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused.is_some_and(|token| self.slots.contains(token))
    }

    /// Keeps what has arrived. It is not read from the socket any further meanwhile.
    pub(crate) fn keep(&mut self, bytes: &[u8], now: Instant) {
        (self.last_used, self.last_received) = (now, now);
        self.backlog.extend_from_slice(bytes);
    }

    /// Pauses or resumes a stream, if it is here.
    pub(crate) fn set_paused(&mut self, token: Token, is_paused: bool) {
        if self.has_stream && self.slots.contains(token) {
            self.paused = is_paused.then_some(token);
        }
    }

    /// Calls that the upstream has not answered, given up or not.
    pub(crate) fn outstanding(&self) -> usize {
        self.slots.used()
    }

    /// The id of its socket, or of its attempt to connect.
    pub(crate) fn id(&self) -> Option<Id> {
        match self.state {
            ConnectionState::Connecting { attempt: id, .. } | ConnectionState::Open(id) => Some(id),
            ConnectionState::New | ConnectionState::Closed => None,
        }
    }

    /// Whether bytes wait for the end of a send.
    pub(crate) fn has_output(&self) -> bool {
        let is_open = matches!(self.state, ConnectionState::Open(_));
        is_open && (!self.output.is_empty() || self.transport.unsent() > 0)
    }

    /// Enqueues a call, whose text up to the params is `text`. Returns its slot.
    pub(crate) fn call(&mut self, call: PendingCall, text: &mut CallText) -> u32 {
        let (context, now) = (call.context.clone(), call.started);
        self.has_large_call = text.len() > SHARED_BYTES_MAX;
        self.has_stream = context.takes_items && !self.is_http();
        let slot = self.slots.insert(call);
        let range = self.write(text, &context, Some(slot), now);
        self.unsent.push((slot, range));
        slot
    }

    /// Enqueues a notification.
    pub(crate) fn notify(
        &mut self,
        text: &mut CallText,
        context: &CallContext,
        share: Option<Share>,
        now: Instant,
    ) {
        self.has_notified = true;
        self.has_large_call = text.len() > SHARED_BYTES_MAX;
        if self.is_http() || self.has_large_call {
            self.slots.insert_discarded(share);
            self.discarded_until = context.deadline.map(|deadline| deadline.at);
        }
        // No other call follows it: nothing says when the upstream has read it.
        self.ends_after_send = self.has_large_call && !self.is_http();
        self.write(text, context, None, now);
    }

    /// Returns where the head of `text` is in the output; the caller's is of no use any more.
    fn write(
        &mut self,
        text: &mut CallText,
        context: &CallContext,
        id: Option<u32>,
        now: Instant,
    ) -> Range<usize> {
        self.last_used = now;
        if text.long.is_some() {
            return self.write_long(text, context, id, now);
        }
        let (out, text) = (&mut self.output, &mut text.head);
        let Framing::Http(target, reader) = &mut self.framing else {
            let (start, len) = (out.len(), text.len());
            out.extend_from_slice(text);
            write_meta(out, context, id, now);
            // A server that reads lines would take a part of the params for another call.
            to_one_line(out.get_mut(start..).unwrap_or_default());
            end_call(out, id);
            return start..start + len;
        };
        let len = text.len();
        if target.takes_meta {
            write_meta(text, context, None, now);
        }
        end_call(text, id.map(|_| http::ID));
        target.write_head(out, text.len(), context);
        reader.begin(id.is_none());
        let start = out.len();
        out.extend_from_slice(text);
        start..start + len
    }

    /// Gives up the call of a slot, if it is there; returns why. A connection on which nothing has
    /// arrived since a late call was sent gets no more calls. Neither does one over HTTP, or with
    /// many calls that were given up.
    pub(crate) fn give_up(&mut self, slot: u32, token: Token, now: Instant) -> Option<GivenUp> {
        let call = self.slots.give_up(slot, token)?;
        self.paused = None;
        let is_late = call.context.deadline.is_some_and(|deadline| deadline.at <= now);
        if self.is_http() {
            self.is_retired = true;
        } else {
            let is_silent = is_late && self.last_received <= call.started;
            let given_up = self.slots.used() - self.slots.waiting();
            self.is_retired |= is_silent || given_up >= GIVEN_UP_MAX;
            self.discarded_until = Some(now + GIVEN_UP_TIMEOUT);
            write_cancel(self.output_end(), slot);
        }
        Some(if is_late { GivenUp::Late } else { GivenUp::Unwanted })
    }

    /// An attempt to connect has ended.
    pub(crate) fn connected(&mut self, socket: io::Result<Id>, now: Instant) {
        match socket {
            Ok(socket) => {
                self.state = ConnectionState::Open(socket);
                (self.last_used, self.handshake_until) = (now, now + HANDSHAKE_TIMEOUT);
            }
            Err(error) => self.disconnected(&error),
        }
    }

    /// The socket is closed.
    pub(crate) fn disconnected(&mut self, error: &io::Error) {
        let was_open = matches!(self.state, ConnectionState::Open(_));
        self.state = ConnectionState::Closed;
        self.end_by_peer(was_open && !self.transport.is_handshaking(), error);
    }

    /// What the end of the connection says about its only call, if it says nothing about others.
    fn refusal_at_end(&self) -> Option<String> {
        let status = match &self.framing {
            Framing::Http(_, reader) => reader.error_at_end(),
            Framing::Raw(_) => None,
        };
        // The upstream may have refused to read so long a call.
        let is_long = self.has_large_call.then_some("it has closed the connection of a long call");
        status.or_else(|| is_long.map(str::to_owned))
    }

    fn end_by_peer(&mut self, was_open: bool, error: &io::Error) {
        // An upstream may close a connection that it has answered all calls on.
        let is_failure = !was_open || self.slots.waiting() > 0;
        let refusal = self.refusal_at_end().filter(|_| was_open);
        self.ended.get_or_insert_with(|| match (is_failure, error.kind()) {
            _ if is_shortage(error) => ConnectionEnd::Shortage(error.to_string()),
            (false, _) => ConnectionEnd::Done,
            _ if refusal.is_some() => ConnectionEnd::Refused(refusal.unwrap_or_default()),
            (true, io::ErrorKind::UnexpectedEof) => failed("it has closed the connection"),
            (true, _) => ConnectionEnd::Failed(error.to_string()),
        });
    }

    /// Reads replies and items, and passes those that calls wait for to `reply`.
    pub(crate) fn received(
        &mut self,
        bytes: &mut [u8],
        now: Instant,
        mut reply: impl FnMut(Token, NativeOutcome),
    ) {
        if self.ended.is_some() {
            return;
        }
        (self.last_used, self.last_received) = (now, now);
        let Self { transport, framing, slots, is_retired, has_notified, .. } = self;
        let mut ended = None;
        let received = transport.receive(bytes, |plaintext| {
            if ended.is_none() {
                ended = read(framing, slots, is_retired, *has_notified, plaintext, &mut reply);
            }
        });
        if let Some(stream) = slots.take_refused() {
            write_cancel(self.output_end(), stream);
            self.discarded_until = Some(now + GIVEN_UP_TIMEOUT);
        }
        match received {
            Ok(true) => self.ended = ended,
            Ok(false) => {
                self.ended = ended;
                self.end_by_peer(true, &io::ErrorKind::UnexpectedEof.into());
            }
            Err(error) => self.ended = Some(describe_tls(&error)),
        }
    }

    /// Connects, sends or closes, at the end of a turn. Returns how it has ended, if it has.
    pub(crate) fn advance(
        &mut self,
        turn: &Turn<'_>,
        now: Instant,
        context: &mut dyn NativeContext,
    ) -> Option<EndedConnection> {
        if self.ended.is_none() {
            self.step(turn, now, context);
            let held = self.held_bytes();
            let held = if held > MemoryBudget::UNRESERVED_BYTES { held } else { 0 };
            if !context.reserve(&mut self.reserved, held) {
                let reason = "the relay has no memory for a reply (max_held_bytes)";
                self.ended = Some(ConnectionEnd::Shortage(reason.to_owned()));
            }
        }
        let end = self.ended.take()?;
        let (reason, is_shortage) = match &end {
            ConnectionEnd::Shortage(reason) => (&**reason, true),
            ConnectionEnd::Failed(reason) | ConnectionEnd::Refused(reason) => (&**reason, false),
            ConnectionEnd::Done => ("", false),
        };
        let lost = self.close(reason, is_shortage, context);
        Some(EndedConnection { end, lost })
    }

    fn step(&mut self, turn: &Turn<'_>, now: Instant, context: &mut dyn NativeContext) {
        match self.state {
            ConnectionState::New => match turn.destination {
                Destination::At(address) => self.connect(address, now, context),
                Destination::Resolving => {}
                // That is no failure of a server, and the next address has no open circuit.
                Destination::Unknown(reason) => {
                    self.ended = Some(ConnectionEnd::Refused(reason.clone()));
                }
            },
            ConnectionState::Connecting { until, .. } if until <= now => {
                let millis = CONNECT_TIMEOUT.as_millis();
                let reason = format!("it has not accepted a connection in {millis} ms");
                self.ended = Some(ConnectionEnd::Failed(reason));
            }
            ConnectionState::Open(_) if self.is_done(now) => {
                self.ended = Some(ConnectionEnd::Done);
            }
            ConnectionState::Open(_) if self.reply_until().is_some_and(|until| until <= now) => {
                self.ended = Some(match self.is_http() {
                    true => failed("it has not answered a notification in time"),
                    false => ConnectionEnd::Done,
                });
            }
            ConnectionState::Open(_)
                if self.transport.is_handshaking() && self.handshake_until <= now =>
            {
                let millis = HANDSHAKE_TIMEOUT.as_millis();
                let reason = format!("it has not ended the handshake of TLS in {millis} ms");
                self.ended = Some(ConnectionEnd::Failed(reason));
            }
            ConnectionState::Open(socket) => {
                let is_paused = self.is_paused() || !self.backlog.is_empty();
                if self.is_reading_paused != is_paused {
                    self.is_reading_paused = is_paused;
                    context.set_paused(socket, is_paused);
                }
                match self.transport.send(socket, &mut self.output, context) {
                    Ok(has_sent) => {
                        if has_sent {
                            self.unsent.clear();
                        }
                        if self.has_large_call {
                            let is_sending = context.is_sending(socket);
                            self.load_next_piece(has_sent, is_sending, turn.private, now);
                        }
                    }
                    Err(error) => self.ended = Some(describe_tls(&error)),
                }
                if self.ends_after_send
                    && self.ended.is_none()
                    && !self.has_output()
                    && !context.is_sending(socket)
                {
                    self.ended = Some(ConnectionEnd::Done);
                }
            }
            ConnectionState::Connecting { .. } | ConnectionState::Closed => {}
        }
    }

    fn connect(&mut self, address: &SockAddr, now: Instant, context: &mut dyn NativeContext) {
        match context.connect(address) {
            Ok(attempt) => {
                let until = now + CONNECT_TIMEOUT;
                self.state = ConnectionState::Connecting { attempt, until };
            }
            Err(error) => self.disconnected(&error),
        }
    }

    /// Whether it is idle for long, or stuck without a call that waits.
    fn is_done(&self, now: Instant) -> bool {
        match self.is_retired {
            true => self.slots.waiting() == 0,
            false => self.idle_until().is_some_and(|until| until <= now),
        }
    }

    fn idle_until(&self) -> Option<Instant> {
        let idle_max = if self.is_http() { HTTP_IDLE_MAX } else { IDLE_MAX };
        let is_idle = self.slots.used() == 0 && self.output.is_empty();
        is_idle.then(|| self.last_used + idle_max)
    }

    /// When a reply is late, if there are only such that nothing waits for.
    fn reply_until(&self) -> Option<Instant> {
        let is_discarded = self.slots.waiting() == 0 && self.slots.used() > 0;
        self.discarded_until.filter(|_| is_discarded)
    }

    fn held_bytes(&self) -> usize {
        let partial = match &self.framing {
            Framing::Raw(reader) => reader.held_bytes(),
            Framing::Http(_, reader) => reader.held_bytes(),
        };
        let long = self.long.as_ref().map_or(0, |long| long.params.held_bytes());
        let output = self.output.capacity() + self.transport.held_bytes();
        partial + self.backlog.capacity() + output + long
    }

    fn is_http(&self) -> bool {
        matches!(self.framing, Framing::Http(..))
    }

    /// When [`Connection::advance`] is due, even without events.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.state {
            ConnectionState::Connecting { until, .. } => Some(until),
            ConnectionState::Open(_) if self.transport.is_handshaking() => {
                Some(self.handshake_until)
            }
            ConnectionState::Open(_) if self.piece_at.is_some() => self.piece_at,
            ConnectionState::Open(_) => self.idle_until().or(self.reply_until()),
            ConnectionState::New | ConnectionState::Closed => None,
        }
    }
}

/// Calls in flight on one connection.
pub(crate) fn calls_max(is_http: bool) -> usize {
    if is_http { 1 } else { CALLS_MAX }
}

/// Reads replies out of plaintext. Returns how the connection has ended, if it has.
fn read(
    framing: &mut Framing,
    slots: &mut Slots,
    is_retired: &mut bool,
    has_notified: bool,
    bytes: &[u8],
    mut reply: impl FnMut(Token, NativeOutcome),
) -> Option<ConnectionEnd> {
    let mut is_refused = false;
    let handle = |UpstreamReply { id, mut outcome, is_last }: UpstreamReply| {
        let token = match &mut outcome {
            NativeOutcome::Item(item) => {
                to_one_line(item);
                slots.stream(id)
            }
            NativeOutcome::Reply(_) if !is_last => slots.refuse_stream(id),
            NativeOutcome::Reply(outcome) => {
                is_refused |= id == NO_CALL;
                // The upstream may be about to close, and a call sent meanwhile is lost.
                *is_retired |= id == NO_CALL;
                let answered = match id {
                    NO_CALL if has_notified => None,
                    NO_CALL => slots.answer_only(),
                    _ => slots.answer(id),
                };
                answered.map(|call| {
                    let call = call?;
                    if !call.context.keeps_line_breaks {
                        match outcome {
                            Ok(result) => to_one_line(result),
                            Err(error) => error.data.iter_mut().for_each(|data| to_one_line(data)),
                        }
                    }
                    Some(call.token)
                })
            }
        };
        if let Some(Some(token)) = token {
            reply(token, outcome);
        }
        token.is_some()
    };
    match framing {
        Framing::Raw(reader) => {
            let result = reader.read(bytes, handle);
            let end = if is_refused { ConnectionEnd::Refused } else { ConnectionEnd::Failed };
            result.err().map(end)
        }
        Framing::Http(_, reader) => {
            let result = reader.read(bytes, handle);
            *is_retired |= !reader.keeps_alive();
            // Between calls a server may say that it closes, as by status 408.
            let end = |reason| match slots.used() {
                0 => ConnectionEnd::Done,
                _ => ConnectionEnd::Failed(reason),
            };
            result.err().map(end)
        }
    }
}
