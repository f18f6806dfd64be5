//! The load: one thread, all connections on one epoll.
//!
//! A closed loop sends on a connection when all its requests have replies. An open loop has a due
//! time for every request: any free connection takes the next due request, and without a free one
//! requests wait. Latency counts from the due time, so a server that stalls does not hide it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use crate::Error;
use crate::arrivals::Arrivals;
use crate::options::Options;
use crate::pace::Pace;
use crate::stream::Stream;
use crate::wire::{Exchange, Wire};

const EVENTS_MAX: usize = 1024;
const READ_BYTES: usize = 1 << 20;
const LATENCY_MAX: Duration = Duration::from_secs(60);
/// The load stops after this many errors.
const ERRORS_MAX: u64 = 1000;
const TICK: Duration = Duration::from_millis(10);
const WINDOW: Duration = Duration::from_millis(50);
/// The timer's token.
const TIMER: Token = Token(usize::MAX);

/// The result of a load.
pub struct Outcome {
    /// The latency of every request with a reply, in nanoseconds.
    pub latency: Histogram<u64>,
    /// The 99.9th percentile of each `WINDOW`, in nanoseconds.
    pub windows: Vec<u64>,
    pub elapsed: Duration,
    /// Replies that were wrong, and connections that failed.
    pub errors: u64,
    /// Requests of an open loop without a reply at the end.
    pub unanswered: u64,
}

/// A connection, and its requests without replies.
struct Connection {
    stream: Stream,
    since: Instant,
    /// Bytes sent of the current requests, and bytes received of their replies.
    sent: usize,
    received: usize,
    is_busy: bool,
    /// The kind of client that it belongs to, and which of that client's requests is the current
    /// one.
    client: usize,
    turn: usize,
}

enum Step {
    Waits,
    Answered,
    Failed,
}

/// A running load.
pub struct Load<'a> {
    wire: &'a Wire,
    options: &'a Options,
    /// Each client's requests, pipelined.
    requests: Vec<Vec<Vec<u8>>>,
    poll: Poll,
    connections: Vec<Connection>,
    /// Free connections, used in turn, so that all are used.
    free: VecDeque<usize>,
    due: VecDeque<Instant>,
    buffer: Vec<u8>,
    /// The latencies of the current window.
    window: Histogram<u64>,
    window_end: Instant,
    outcome: Outcome,
}

impl<'a> Load<'a> {
    /// Opens the connections.
    pub fn new(wire: &'a Wire, options: &'a Options) -> Result<Self, Error> {
        let pipelined = |exchanges: &Vec<Exchange>| {
            exchanges.iter().map(|it| it.request.repeat(options.depth)).collect()
        };
        let latency = Histogram::new_with_max(LATENCY_MAX.as_nanos() as u64, 3)?;
        let mut load = Self {
            wire,
            options,
            requests: wire.clients.iter().map(pipelined).collect(),
            poll: Poll::new()?,
            connections: Vec::new(),
            free: (0..options.connections).collect(),
            due: VecDeque::new(),
            buffer: vec![0; READ_BYTES],
            window: latency.clone(),
            window_end: Instant::now(),
            outcome: Outcome {
                latency,
                windows: Vec::new(),
                elapsed: Duration::ZERO,
                errors: 0,
                unanswered: 0,
            },
        };
        for at in 0..options.connections {
            let connection = load.opened(at)?;
            load.connections.push(connection);
        }
        Ok(load)
    }

    /// Runs for the duration.
    pub fn run(mut self) -> Result<Outcome, Error> {
        let start = Instant::now();
        let end = start + self.options.duration;
        self.window_end = start + WINDOW;
        match &self.options.arrivals {
            None => self.closed_loop(end)?,
            Some(arrivals) => self.open_loop(start, end, arrivals)?,
        }
        self.outcome.elapsed = start.elapsed();
        if !self.window.is_empty() {
            self.end_window(Instant::now())?;
        }
        Ok(self.outcome)
    }

    /// Ends the window if its time is over. A window without replies goes on: its requests count
    /// when they are answered, with the time that they have waited.
    fn turn_window(&mut self, now: Instant) -> Result<(), Error> {
        if now >= self.window_end && !self.window.is_empty() {
            self.end_window(now)?;
        }
        Ok(())
    }

    fn end_window(&mut self, now: Instant) -> Result<(), Error> {
        self.outcome.windows.push(self.window.value_at_quantile(0.999));
        self.outcome.latency.add(&self.window)?;
        self.window.reset();
        self.window_end = now + WINDOW;
        Ok(())
    }

    fn closed_loop(&mut self, end: Instant) -> Result<(), Error> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let mut now = Instant::now();
        while now < end {
            while let Some(at) = self.free.pop_front() {
                self.ask(at, Instant::now())?;
            }
            self.poll.poll(&mut events, Some((end - now).min(TICK)))?;
            self.take(&events)?;
            now = Instant::now();
            self.turn_window(now)?;
        }
        Ok(())
    }

    /// Polls without sleeping, unless the options say so, because waking up adds to the latency.
    fn open_loop(
        &mut self,
        start: Instant,
        end: Instant,
        arrivals: &Arrivals,
    ) -> Result<(), Error> {
        let mut events = Events::with_capacity(EVENTS_MAX);
        let pace = Pace::new(self.poll.registry(), TIMER)?;
        let mut asked: u32 = 0;
        loop {
            let now = Instant::now();
            self.turn_window(now)?;
            let next = loop {
                match arrivals.due(asked).map(|due| start + due) {
                    Some(due) if due <= now && now < end => self.due.push_back(due),
                    next => break next,
                }
                asked += 1;
            };
            while !self.due.is_empty() && !self.free.is_empty() {
                let (Some(at), Some(since)) = (self.free.pop_front(), self.due.pop_front()) else {
                    break;
                };
                self.ask(at, since)?;
            }
            let is_over = self.due.is_empty() && self.connections.iter().all(|c| !c.is_busy);
            if now >= end && (is_over || now >= end + Duration::from_secs(1)) {
                break;
            }
            if self.options.sleep {
                // The wait for the last replies ends with the loop.
                pace.set(next.filter(|_| now < end).unwrap_or(now + TICK))?;
            }
            let timeout = if self.options.sleep { None } else { Some(Duration::ZERO) };
            self.poll.poll(&mut events, timeout)?;
            self.take(&events)?;
        }
        self.count_unanswered();
        Ok(())
    }

    /// Counts requests without a reply with the time that they have waited until now.
    fn count_unanswered(&mut self) {
        let busy = self.connections.iter().filter(|c| c.is_busy).map(|c| c.since);
        for since in self.due.iter().copied().chain(busy) {
            self.window.saturating_record(since.elapsed().as_nanos() as u64);
            self.outcome.unanswered += 1;
        }
    }

    fn take(&mut self, events: &Events) -> Result<(), Error> {
        for event in events {
            let Token(at) = event.token();
            if event.token() != TIMER && self.connections[at].is_busy {
                let step = self.step(at);
                self.conclude(at, step)?;
            }
        }
        Ok(())
    }

    fn opened(&self, at: usize) -> Result<Connection, Error> {
        let stream = if self.options.reconnect {
            Stream::Plain(self.wire.start_connecting()?)
        } else {
            self.wire.open()?
        };
        stream.socket().set_nonblocking(true)?;
        let both = Interest::READABLE | Interest::WRITABLE;
        let mut socket = SourceFd(&stream.socket().as_raw_fd());
        self.poll.registry().register(&mut socket, Token(at), both)?;
        let client = at % self.requests.len();
        // Connections start at different requests, so that the server does not get the same ones
        // in a row.
        let turn = at / self.requests.len() % self.requests[client].len();
        let since = Instant::now();
        Ok(Connection { stream, since, sent: 0, received: 0, is_busy: false, client, turn })
    }

    /// Sends the next requests on a free connection. `since` is when they should have been sent.
    fn ask(&mut self, at: usize, since: Instant) -> Result<(), Error> {
        let connection = &mut self.connections[at];
        (connection.since, connection.is_busy) = (since, true);
        (connection.sent, connection.received) = (0, 0);
        connection.turn = (connection.turn + 1) % self.requests[connection.client].len();
        let step = self.step(at);
        self.conclude(at, step)
    }

    fn conclude(&mut self, at: usize, step: Step) -> Result<(), Error> {
        match step {
            Step::Waits => return Ok(()),
            Step::Answered if !self.options.reconnect => {}
            Step::Answered => self.connections[at] = self.opened(at)?,
            Step::Failed => {
                self.outcome.errors += 1;
                if self.outcome.errors > ERRORS_MAX {
                    return Err(format!("more than {ERRORS_MAX} errors").into());
                }
                self.connections[at] = self.opened(at)?;
            }
        }
        self.connections[at].is_busy = false;
        self.free.push_back(at);
        Ok(())
    }

    /// Sends and receives as much as possible.
    fn step(&mut self, at: usize) -> Step {
        let sent = self.send(at);
        match sent.and_then(|()| self.receive(at)) {
            Ok(true) => Step::Answered,
            Ok(false) => Step::Waits,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Step::Waits,
            // Still connecting.
            Err(error) if error.kind() == ErrorKind::NotConnected => Step::Waits,
            Err(_) => Step::Failed,
        }
    }

    fn send(&mut self, at: usize) -> io::Result<()> {
        let connection = &mut self.connections[at];
        let requests = &self.requests[connection.client][connection.turn];
        while connection.sent < requests.len() {
            match connection.stream.write(&requests[connection.sent..]) {
                Ok(sent) => connection.sent += sent,
                // Bytes that have arrived are still read.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns whether all current requests have replies.
    fn receive(&mut self, at: usize) -> io::Result<bool> {
        let wire = self.wire;
        let connection = &self.connections[at];
        let exchange = &wire.clients[connection.client][connection.turn];
        let whole = exchange.reply_bytes * self.options.depth;
        loop {
            let connection = &mut self.connections[at];
            let received = connection.stream.read(&mut self.buffer)?;
            let from = connection.received;
            connection.received += received;
            if received == 0 || connection.received > whole {
                return Err(ErrorKind::InvalidData.into());
            }
            let since = connection.since;
            self.count(exchange, from, received, since)?;
            if from + received == whole {
                return Ok(true);
            }
        }
    }

    /// Compares received bytes, and counts the replies that end in them.
    fn count(
        &mut self,
        exchange: &Exchange,
        from: usize,
        received: usize,
        since: Instant,
    ) -> io::Result<()> {
        let (mut place, end) = (from, from + received);
        while place < end {
            let at = place % exchange.reply_bytes;
            let piece = (exchange.reply_bytes - at).min(end - place);
            let bytes = &self.buffer[place - from..place - from + piece];
            if !self.options.lengths && !exchange.is_expected(at, bytes) {
                return Err(ErrorKind::InvalidData.into());
            }
            place += piece;
            if place % exchange.reply_bytes == 0 {
                self.window.saturating_record(since.elapsed().as_nanos() as u64);
            }
        }
        Ok(())
    }
}
