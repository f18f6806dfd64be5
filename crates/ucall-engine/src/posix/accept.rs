//! Accepting connections.

use std::io;
use std::os::fd::OwnedFd;

use mio::Interest;
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
            self.system_calls += 1;
            let accepted = match accept_one(found) {
                Err(Errno::AGAIN) => {
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
                    self.pause_listener(listener);
                    completions.push(Completion::AcceptFailed { listener, error });
                    return;
                }
            }
        }
    }

    fn add_accepted(&mut self, socket: OwnedFd) -> io::Result<Id> {
        let stream = Stream::new(socket);
        self.add(SourceKind::Stream(stream), Interest::READABLE | Interest::WRITABLE)
    }

    fn pause_listener(&mut self, listener: Id) {
        if let Some(source) = self.sources.get_mut(listener) {
            source.readiness.paused = true;
        }
    }
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
