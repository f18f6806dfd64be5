//! The engine on readiness polling: epoll or kqueue, through mio.
//!
//! Descriptors are registered once, edge-triggered, for both directions. Nothing is changed in the
//! kernel afterwards, so a turn costs one poll, and one read and one write per connection. The
//! engine reports an edge at once, and stores it in the source's `ReadReadiness` until a read
//! returns fewer bytes than requested. Sources that may hold more are in `ReadyList`, and are
//! reported again.

mod accept;
mod datagrams;
mod deadline_timer;
mod stream;
mod watch;

use std::io;
use std::mem;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Token};
use ucall_buffer::{Payload, Target};

use crate::shared::{self, Channel};
use crate::slab::Slab;
use crate::{
    Arrival, Completion, DatagramDrops, DatagramPath, Engine, Id, Listener, Peer, Readiness,
    SendState, Waker, datagram,
};

use datagrams::Datagrams;
use deadline_timer::DeadlineTimer;
use stream::Stream;
use watch::Watch;

/// The largest read. All sockets share the buffer, because received bytes are valid only until the
/// next call.
const BUFFER_BYTES: usize = 64 * 1024;
/// Events taken in one poll.
const EVENTS_MAX: usize = 1024;
/// Names the waker among the events.
const WAKER: Token = Token(usize::MAX);
/// Names the deadline timer.
const DEADLINE_TIMER: Token = Token(usize::MAX - 1);

/// The engine on epoll or kqueue.
pub struct Posix {
    poll: mio::Poll,
    events: mio::Events,
    sources: Slab<Source>,
    ready: ReadyList,
    /// What to report in the next turn.
    deferred: Vec<Completion>,
    buffer: Box<[u8]>,
    waker: Arc<mio::Waker>,
    deadline_timer: DeadlineTimer,
    /// The last poll returned several events, so more are likely.
    busy: bool,
    system_calls: u64,
}

struct Source {
    readiness: ReadReadiness,
    kind: SourceKind,
}

/// With a tag of its own: one in the niche of a stream's field costs more comparisons.
#[repr(u32)]
enum SourceKind {
    Listener(Listener),
    Stream(Stream),
    /// Boxed, so that a stream takes no more room in the table.
    Datagrams(Box<Datagrams>),
    Watch(Watch),
}

impl Posix {
    /// An engine with nothing in it.
    pub fn new() -> io::Result<Self> {
        let poll = mio::Poll::new()?;
        let waker = Arc::new(mio::Waker::new(poll.registry(), WAKER)?);
        let deadline_timer = DeadlineTimer::new(poll.registry(), DEADLINE_TIMER)?;
        Ok(Self {
            poll,
            events: mio::Events::with_capacity(EVENTS_MAX),
            sources: Slab::new(),
            ready: ReadyList::default(),
            deferred: Vec::new(),
            buffer: vec![0; BUFFER_BYTES].into_boxed_slice(),
            waker,
            deadline_timer,
            busy: false,
            // The poll, the waker and the timer: create each, register two.
            system_calls: 5,
        })
    }

    /// Adds a source and registers its descriptor; removes it again on failure.
    fn add(&mut self, kind: SourceKind, interest: Interest) -> io::Result<Id> {
        let id = self.sources.insert(Source { readiness: ReadReadiness::default(), kind });
        self.system_calls += 1;
        let Some((_, source)) = self.sources.at_mut(id.index) else { return Ok(id) };
        let (descriptor, token) = (source.kind.descriptor().as_raw_fd(), Token(id.index as usize));
        let registered = match &source.kind {
            SourceKind::Listener(listener) => accept::register(&self.poll, listener, token),
            _ => self.poll.registry().register(&mut SourceFd(&descriptor), token, interest),
        };
        match registered {
            Ok(()) => Ok(id),
            Err(error) => {
                self.sources.remove(id);
                Err(error)
            }
        }
    }

    /// Schedules a source for the next turn if it may hold something.
    fn list_if_ready(&mut self, id: Id) {
        if let Some(source) = self.sources.get_mut(id)
            && source.may_have_input()
        {
            self.ready.add(id, &mut source.readiness);
        }
    }

    /// Polls sources again that were reported before, and may still hold something.
    #[cold]
    fn report_listed(&mut self, completions: &mut Vec<Completion>) {
        for id in self.ready.prune(&mut self.sources) {
            self.report_source(id, completions);
        }
    }

    /// Reports the contents of a source, or receives them into its target.
    fn report_source(&mut self, id: Id, completions: &mut Vec<Completion>) {
        let Some(source) = self.sources.get_mut(id) else { return };
        match &mut source.kind {
            SourceKind::Listener(_) => self.accept(id, completions),
            SourceKind::Stream(stream) => {
                let calls = &mut self.system_calls;
                if stream.may_have_input(&source.readiness) {
                    stream.report(id, &mut source.readiness, calls, completions);
                }
            }
            SourceKind::Datagrams(_) => completions.push(Completion::Datagrams(id)),
            SourceKind::Watch(_) => {}
        }
    }

    /// Handles the events of the poll.
    #[inline(always)]
    fn handle_events(&mut self, completions: &mut Vec<Completion>) {
        let events = mem::replace(&mut self.events, mio::Events::with_capacity(0));
        for event in &events {
            match self.sources.at_mut(event.token().0 as u32) {
                Some((id, Source { readiness, kind: SourceKind::Stream(stream) })) => {
                    let calls = &mut self.system_calls;
                    stream.handle_event(id, event, readiness, calls, completions);
                    if stream.may_have_input(readiness) && self.ready.add(id, readiness) {
                        stream.report(id, readiness, calls, completions);
                    }
                }
                _ => self.handle_other_event(event, completions),
            }
        }
        self.events = events;
    }

    /// Handles an event that is not of a stream.
    #[cold]
    fn handle_other_event(&mut self, event: &mio::event::Event, completions: &mut Vec<Completion>) {
        match event.token() {
            WAKER => return completions.push(Completion::Woken),
            DEADLINE_TIMER => return self.deadline_timer.mark_expired(),
            _ => {}
        }
        let Some((id, source)) = self.sources.at_mut(event.token().0 as u32) else { return };
        let failed = event.is_error();
        let readable = event.is_readable() || event.is_read_closed() || failed;
        let writable = event.is_writable() || event.is_write_closed() || failed;
        if let SourceKind::Watch(watch) = &mut source.kind {
            return completions.extend(watch.fire(id, readable, writable));
        }
        source.readiness.readable |= readable;
        if source.may_have_input() && self.ready.add(id, &mut source.readiness) {
            self.report_source(id, completions);
        }
    }
}

impl Source {
    /// Whether it holds something that may be taken from it.
    fn may_have_input(&self) -> bool {
        match &self.kind {
            SourceKind::Stream(stream) => stream.may_have_input(&self.readiness),
            SourceKind::Datagrams(datagrams) if datagrams.has_received() => !self.readiness.paused,
            _ => self.readiness.readable && !self.readiness.paused,
        }
    }
}

impl SourceKind {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match self {
            SourceKind::Listener(listener) => listener.as_fd(),
            SourceKind::Stream(stream) => stream.socket.as_fd(),
            SourceKind::Datagrams(datagrams) => datagrams.socket.as_fd(),
            SourceKind::Watch(watch) => watch.descriptor(),
        }
    }
}

impl Engine for Posix {
    const NAME: &'static str = "posix";
    const SENDS_AT_ONCE: bool = true;

    fn listen(&mut self, listener: impl Into<Listener>) -> io::Result<Id> {
        let listener = listener.into();
        listener.set_nonblocking()?;
        self.add(SourceKind::Listener(listener), Interest::READABLE)
    }

    fn adopt(&mut self, stream: OwnedFd) -> io::Result<Id> {
        let stream = Stream::adopted(stream)?;
        self.add(SourceKind::Stream(stream), Interest::READABLE | Interest::WRITABLE)
    }

    fn bind_datagrams(&mut self, socket: UdpSocket) -> io::Result<Id> {
        socket.set_nonblocking(true)?;
        datagram::prepare(&socket)?;
        self.add(SourceKind::Datagrams(Box::new(Datagrams::new(socket))), Interest::READABLE)
    }

    fn watch(&mut self, descriptor: BorrowedFd<'_>, interest: Readiness) -> io::Result<Id> {
        self.add(SourceKind::Watch(Watch::new(descriptor, interest)), watch::interest(interest))
    }

    fn rewatch(&mut self, watch: Id, interest: Readiness) -> io::Result<()> {
        let Some(Source { kind: SourceKind::Watch(found), .. }) = self.sources.get_mut(watch)
        else {
            return Ok(());
        };
        self.system_calls += 1;
        found.rearm(self.poll.registry(), Token(watch.index as usize), interest)
    }

    fn pause(&mut self, id: Id) {
        self.pause_source(id);
    }

    fn resume(&mut self, id: Id) {
        self.resume_source(id);
    }

    #[inline(always)]
    fn receive(&mut self, arrival: Arrival) -> io::Result<&mut [u8]> {
        let Some(Source { readiness, kind: SourceKind::Stream(stream) }) =
            self.sources.get_mut(arrival.socket)
        else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let read = stream.read(readiness, &mut self.buffer, &mut self.system_calls);
        if !readiness.readable {
            self.ready.remove(readiness);
        }
        Ok(&mut self.buffer[..read?])
    }

    fn receive_from(&mut self, socket: Id) -> io::Result<(&mut [u8], DatagramPath)> {
        let Some(Source { readiness, kind: SourceKind::Datagrams(datagrams) }) =
            self.sources.get_mut(socket)
        else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let received = datagrams.next(readiness, &mut self.system_calls);
        if received.is_err() && !readiness.readable {
            self.ready.remove(readiness);
        }
        received
    }

    fn receive_into(&mut self, socket: Id, target: Target) {
        let refused = match self.sources.get_mut(socket) {
            Some(Source { kind: SourceKind::Stream(stream), .. }) => {
                stream.fill_next(socket, target)
            }
            _ => Some(stream::filled(socket, target, Err(io::ErrorKind::NotConnected.into()))),
        };
        self.deferred.extend(refused);
        self.list_if_ready(socket);
    }

    fn filled_bytes(&self, socket: Id) -> usize {
        match self.sources.get(socket) {
            Some(Source { kind: SourceKind::Stream(stream), .. }) => stream.filled_bytes(),
            _ => 0,
        }
    }

    #[inline(always)]
    fn send(&mut self, socket: Id, payload: Payload) -> SendState {
        let outcome = match self.sources.get_mut(socket) {
            Some(Source { kind: SourceKind::Stream(stream), .. }) => {
                stream.send(payload, &mut self.system_calls)
            }
            _ => stream::SendOutcome::Failed(payload, io::ErrorKind::NotConnected.into()),
        };
        self.finish_send(socket, outcome)
    }

    fn sent_bytes(&self, socket: Id) -> usize {
        match self.sources.get(socket) {
            Some(Source { kind: SourceKind::Stream(stream), .. }) => stream.sent_bytes(),
            _ => 0,
        }
    }

    fn send_to(&mut self, socket: Id, bytes: &[u8], path: DatagramPath) {
        if let Some(Source { kind: SourceKind::Datagrams(datagrams), .. }) =
            self.sources.get_mut(socket)
        {
            datagrams.send(bytes, path, &mut self.system_calls);
        }
    }

    fn flush_datagrams(&mut self, socket: Id) {
        if let Some(Source { kind: SourceKind::Datagrams(datagrams), .. }) =
            self.sources.get_mut(socket)
        {
            datagrams.flush(&mut self.system_calls);
        }
    }

    fn datagram_drops(&self, socket: Id) -> DatagramDrops {
        match self.sources.get(socket) {
            Some(Source { kind: SourceKind::Datagrams(datagrams), .. }) => datagrams.drops,
            _ => DatagramDrops::default(),
        }
    }

    fn shutdown(&mut self, socket: Id) {
        if let Some(Source { kind: SourceKind::Stream(stream), .. }) = self.sources.get_mut(socket)
        {
            stream.shut_down(&mut self.system_calls);
        }
    }

    fn close(&mut self, id: Id) {
        let Some(source) = self.sources.remove(id) else { return };
        self.system_calls += 1;
        match source.kind {
            SourceKind::Listener(listener) => {
                accept::deregister(self.poll.registry(), &listener).unwrap_or(());
            }
            SourceKind::Datagrams(mut datagrams) => datagrams.flush(&mut self.system_calls),
            SourceKind::Stream(stream) => stream.release(id, &mut self.deferred),
            // A watched descriptor stays open, so it is deregistered. If the owner closed it too
            // early, that fails and is ignored.
            SourceKind::Watch(watch) => watch.deregister(self.poll.registry()).unwrap_or(()),
        }
    }

    fn peer(&mut self, socket: Id) -> io::Result<Peer> {
        let Some(Source { kind: SourceKind::Stream(stream), .. }) = self.sources.get(socket) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        self.system_calls += 1;
        crate::peer::peer_of(stream.socket.as_fd())
    }

    fn share_memory(&mut self, socket: Id, preamble: &[u8]) -> io::Result<Option<Channel>> {
        let Some(Source { kind: SourceKind::Stream(stream), .. }) = self.sources.get(socket) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        self.system_calls += 1;
        shared::send_server_preamble(stream.socket.as_fd(), preamble)
    }

    fn limit_unsent(&mut self, socket: Id, bytes_max: u32) {
        if let Some(Source { kind: SourceKind::Stream(stream), .. }) = self.sources.get(socket) {
            self.system_calls += 1;
            crate::peer::limit_unsent(stream.socket.as_fd(), bytes_max);
        }
    }

    fn has_peer_left(&mut self, socket: Id) -> bool {
        let Some(Source { kind: SourceKind::Stream(stream), .. }) = self.sources.get(socket) else {
            return true;
        };
        self.system_calls += 1;
        crate::peer::has_left(stream.socket.as_fd())
    }

    #[inline(always)]
    fn wait(
        &mut self,
        deadline: Option<Instant>,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        let before = completions.len();
        if !self.deferred.is_empty() {
            completions.append(&mut self.deferred);
        }
        match self.wait_once(deadline, before, completions)? {
            true => Ok(()),
            false => self.wait_on(deadline, before, completions),
        }
    }

    /// Operations are started at once.
    fn submit(&mut self) -> io::Result<bool> {
        Ok(!self.deferred.is_empty() || !self.ready.is_empty())
    }

    fn waker(&self) -> Waker {
        let waker = self.waker.clone();
        Waker(Arc::new(move || waker.wake()))
    }

    fn poll_descriptor(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the poll owns its descriptor and is borrowed for as long as the result.
        Some(unsafe { BorrowedFd::borrow_raw(self.poll.as_raw_fd()) })
    }

    fn system_calls(&self) -> u64 {
        self.system_calls
    }
}

impl Posix {
    /// One poll; `false` when that has led to nothing, and the wait is not over.
    #[inline(always)]
    fn wait_once(
        &mut self,
        deadline: Option<Instant>,
        before: usize,
        completions: &mut Vec<Completion>,
    ) -> io::Result<bool> {
        if !self.ready.clear_if_done() {
            self.report_listed(completions);
        }
        let idle = completions.len() == before && self.ready.is_empty();
        // A poll that is likely to return events needs no timeout, and so no clock.
        let polls_only = mem::take(&mut self.busy) || !idle;
        let timeout = match polls_only {
            true => Some(Duration::ZERO),
            false => self.deadline_timer.timeout(deadline, &mut self.system_calls)?,
        };
        self.system_calls += 1;
        match self.poll.poll(&mut self.events, timeout) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(true),
            polled => polled?,
        }
        self.handle_events(completions);
        self.busy = completions.len() > before + 1;
        let passed = || deadline.is_some_and(|deadline| deadline <= Instant::now());
        Ok(completions.len() > before || passed())
    }

    /// Polls until there is something.
    #[inline(never)]
    fn wait_on(
        &mut self,
        deadline: Option<Instant>,
        before: usize,
        completions: &mut Vec<Completion>,
    ) -> io::Result<()> {
        while !self.wait_once(deadline, before, completions)? {}
        Ok(())
    }

    #[inline(always)]
    fn finish_send(&mut self, socket: Id, outcome: stream::SendOutcome) -> SendState {
        match outcome {
            stream::SendOutcome::Done(payload) => SendState::Done(payload),
            stream::SendOutcome::Queued => SendState::Pending,
            stream::SendOutcome::Failed(payload, error) => self.fail_send(socket, payload, error),
        }
    }

    #[cold]
    fn fail_send(&mut self, socket: Id, payload: Payload, error: io::Error) -> SendState {
        self.deferred.push(Completion::Sent { socket, payload, result: Err(error) });
        SendState::Pending
    }
}

/// The readiness of a source's incoming side.
#[derive(Default)]
struct ReadReadiness {
    /// The kernel may hold something that no event will announce again.
    readable: bool,
    paused: bool,
    /// On the list.
    listed: bool,
}

/// Sources that may hold more than the last edge announced.
///
/// Most sources are announced, read until empty and removed before the next turn. So the list only
/// counts removed entries, and is walked only while it has others.
#[derive(Default)]
struct ReadyList {
    /// Each source at most once, removed ones included.
    ids: Vec<Id>,
    /// The number of sources that are not removed, closed ones included.
    remaining: usize,
}

impl ReadyList {
    /// Puts a source on the list; `false` when it is there already.
    #[inline(always)]
    fn add(&mut self, id: Id, readiness: &mut ReadReadiness) -> bool {
        let is_new = !mem::replace(&mut readiness.listed, true);
        if is_new {
            self.ids.push(id);
            self.remaining += 1;
        }
        is_new
    }

    /// Lets a source leave of which nothing is left to read.
    #[inline(always)]
    fn remove(&mut self, readiness: &mut ReadReadiness) {
        if mem::take(&mut readiness.listed) {
            self.remaining -= 1;
        }
    }

    fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Whether all have left, which makes it empty.
    #[inline(always)]
    fn clear_if_done(&mut self) -> bool {
        if self.remaining == 0 {
            self.ids.clear();
        }
        self.remaining == 0
    }

    /// Drops the removed sources; returns the others.
    fn prune(&mut self, sources: &mut Slab<Source>) -> Vec<Id> {
        self.ids.retain(|&id| {
            let Some(source) = sources.get_mut(id) else { return false };
            source.readiness.listed &= source.may_have_input();
            source.readiness.listed
        });
        self.remaining = self.ids.len();
        self.ids.clone()
    }
}
