//! Accepting connections.
//!
//! At a shared socket Linux wakes one process for each connection (`EPOLLEXCLUSIVE`): the first in
//! its queue of those that wait for events. One that has accepted a connection, or is paused for
//! another reason, leaves the queue. One that resumes goes to its end, so that connections are
//! spread evenly.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::io::Errno;

use super::{Posix, Source, SourceKind, Stream};
use crate::{Completion, Id, Listener};

/// Connections accepted from one listener in one turn, so that a flood of them does not delay open
/// connections.
const ACCEPTED_PER_TURN: usize = 16;

impl Posix {
    /// Accepts pending connections. Leaves the listener `readable` while there may be more.
    pub(super) fn accept(&mut self, listener: Id, completions: &mut Vec<Completion>) {
        for _ in 0..ACCEPTED_PER_TURN {
            let Some(Source { readiness, kind: SourceKind::Listener(found) }) =
                self.sources.get_mut(listener)
            else {
                return;
            };
            let is_shared = found.is_shared();
            self.system_calls += 1;
            let accepted = match accept_one(found) {
                Err(Errno::AGAIN) => {
                    readiness.readable = false;
                    if is_shared {
                        self.queue_last(listener);
                    }
                    return;
                }
                // A drain has ended the socket, of this process or of another one.
                Err(_) if found.is_shut_down() => {
                    readiness.readable = false;
                    return;
                }
                // The peer closed the connection before it was accepted, or a signal arrived.
                Err(Errno::CONNABORTED | Errno::INTR) => continue,
                accepted => accepted.map_err(io::Error::from),
            };
            match accepted.and_then(|socket| self.add_accepted(socket)) {
                Ok(socket) => completions.push(Completion::Accepted { listener, socket }),
                Err(error) => {
                    self.pause_source(listener);
                    completions.push(Completion::AcceptFailed { listener, error });
                    return;
                }
            }
            if is_shared {
                return self.leave_queue(listener);
            }
        }
    }

    fn add_accepted(&mut self, socket: OwnedFd) -> io::Result<Id> {
        let stream = Stream::new(socket);
        self.add(SourceKind::Stream(stream), Interest::READABLE | Interest::WRITABLE)
    }

    /// Pauses, and takes the listener out of the queue of a shared socket.
    fn leave_queue(&mut self, id: Id) {
        let Some(Source { readiness, kind: SourceKind::Listener(listener) }) =
            self.sources.get_mut(id)
        else {
            return;
        };
        self.system_calls += 1;
        (readiness.paused, readiness.readable) = (true, false);
        // It may have left already.
        deregister(self.poll.registry(), listener).unwrap_or(());
    }

    /// Puts the listener at the end of the queue of a shared socket. What has arrived meanwhile is
    /// an event.
    fn queue_last(&mut self, id: Id) {
        self.leave_queue(id);
        let Some(Source { readiness, kind: SourceKind::Listener(listener) }) =
            self.sources.get_mut(id)
        else {
            return;
        };
        self.system_calls += 1;
        readiness.paused = false;
        if let Err(error) = register(&self.poll, listener, Token(id.index as usize)) {
            self.pause_source(id);
            self.deferred.push(Completion::AcceptFailed { listener: id, error });
        }
    }

    /// Stops accepting or receiving. The other waiters of a shared socket get the connections that
    /// wait.
    pub(super) fn pause_source(&mut self, id: Id) {
        match self.sources.get_mut(id) {
            Some(Source { kind: SourceKind::Listener(listener), .. }) if listener.is_shared() => {
                self.system_calls += 1;
                self.leave_queue(id);
            }
            Some(source) => return source.readiness.paused = true,
            None => return,
        }
        if let Some(Source { kind: SourceKind::Listener(listener), .. }) = self.sources.get(id) {
            listener.wake_all();
        }
    }

    /// Accepts or receives again after a pause.
    pub(super) fn resume_source(&mut self, id: Id) {
        match self.sources.get_mut(id) {
            Some(Source { kind: SourceKind::Listener(listener), .. }) if listener.is_shared() => {
                self.queue_last(id);
            }
            Some(source) => {
                source.readiness.paused = false;
                self.list_if_ready(id);
            }
            None => {}
        }
    }
}

/// Registers a listener. Of the processes that wait at a shared one, a connection wakes one.
#[cfg(target_os = "linux")]
pub(super) fn register(poll: &mio::Poll, listener: &Listener, token: Token) -> io::Result<()> {
    use rustix::event::epoll::{self, EventData, EventFlags};
    use std::os::fd::BorrowedFd;
    // SAFETY: the poll owns its descriptor and is borrowed for as long as this call.
    let descriptor = unsafe { BorrowedFd::borrow_raw(poll.as_raw_fd()) };
    let exclusive = if listener.is_shared() { EventFlags::EXCLUSIVE } else { EventFlags::empty() };
    let flags = EventFlags::IN | EventFlags::ET | exclusive;
    epoll::add(descriptor, listener, EventData::new_u64(token.0 as u64), flags)?;
    Ok(())
}

/// Other systems wake all processes.
#[cfg(not(target_os = "linux"))]
pub(super) fn register(poll: &mio::Poll, listener: &Listener, token: Token) -> io::Result<()> {
    let descriptor = listener.as_fd().as_raw_fd();
    poll.registry().register(&mut SourceFd(&descriptor), token, Interest::READABLE)
}

/// Another process may have the socket, so closing it here would leave it registered.
pub(super) fn deregister(registry: &Registry, listener: &Listener) -> io::Result<()> {
    registry.deregister(&mut SourceFd(&listener.as_fd().as_raw_fd()))
}

#[cfg(target_os = "linux")]
fn accept_one(listener: &Listener) -> Result<OwnedFd, Errno> {
    use rustix::net::SocketFlags;
    rustix::net::accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC)
}

/// On other systems each accepted socket needs its options set.
#[cfg(not(target_os = "linux"))]
fn accept_one(listener: &Listener) -> Result<OwnedFd, Errno> {
    let socket = rustix::net::accept(listener)?;
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::INVAL);
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
    super::stream::prepare(&socket).map_err(errno)?;
    // A Unix socket lacks this option, and does not need it.
    socket2::SockRef::from(&socket).set_tcp_nodelay(true).unwrap_or(());
    Ok(socket)
}
