//! Passes datagrams from the sockets of AF_XDP to the [`DatagramServer`], and its replies back.
//!
//! The ordinary socket at the same port sends what these cannot: replies of deferred calls, whose
//! frames are returned meanwhile, and replies that fit into no frame.
//!
//! [`DatagramServer`]: crate::datagrams::DatagramServer

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ucall_engine::xdp::Xdp;
use ucall_engine::{Engine, Id, Peer, Readiness};

use super::ConnectionDriver;
use crate::caller::{Caller, Transport};
use crate::handler::Handler;

const READABLE: Readiness = Readiness { readable: true, writable: false };
/// Datagrams that a turn takes of one queue.
const TAKEN_PER_TURN: usize = 64;
/// How often the kernel's count of drops is read.
const DROPS_INTERVAL: Duration = Duration::from_secs(1);

/// After this time without a datagram the queues are waited for.
const BUSY_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// How long busy polling may delay all other work.
const BUSY_POLL_MAX: Duration = Duration::from_millis(1);

/// The sockets of one interface.
pub(super) struct XdpServer {
    xdp: Xdp,
    /// The watch of each queue.
    watches: Vec<Id>,
    /// The ordinary socket.
    socket: Id,
    busy_poll: bool,
    drops: u64,
    drops_due: Instant,
}

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Receives datagrams for `socket` at an interface.
    pub(super) fn listen_xdp(&mut self, xdp: Xdp, socket: Id) -> io::Result<()> {
        let drops_due = self.now();
        let busy_poll = self.context.config.datagrams.xdp.as_ref().is_some_and(|it| it.busy_poll);
        let mut xdp = Box::new(XdpServer {
            xdp,
            watches: Vec::new(),
            socket,
            busy_poll,
            drops: 0,
            drops_due,
        });
        self.watch_xdp(&mut xdp)?;
        self.xdp = Some(xdp);
        Ok(())
    }

    /// Watches the queues that are not watched yet.
    fn watch_xdp(&mut self, server: &mut XdpServer) -> io::Result<()> {
        let program = server.xdp.program();
        let (name, all, count) = (program.interface(), program.queues(), server.xdp.queues.len());
        if server.watches.len() < count {
            let queues = match all as usize {
                1 => "1 queue".into(),
                all if all == count => format!("{all} queues"),
                all => format!("{count} of {all} queues"),
            };
            let mode = server.xdp.mode();
            let why = program.why_generic().map(|why| format!(" ({why})")).unwrap_or_default();
            self.context.dispatcher.handler.warn(&format!("xdp: {name}: {queues} in {mode}{why}"));
        }
        for queue in server.xdp.queues.iter().skip(server.watches.len()) {
            server.watches.push(self.engine.watch(queue.as_fd(), READABLE)?);
        }
        Ok(())
    }

    /// Whether queues are left that another process had.
    pub(super) fn has_busy_xdp(&self) -> bool {
        self.xdp.as_ref().is_some_and(|server| server.xdp.has_busy())
    }

    /// Takes the queues that a worker before this one had, if it has ended.
    pub(super) fn bind_xdp(&mut self) {
        let Some(mut server) = self.xdp.take_if(|server| server.xdp.has_busy()) else { return };
        let bound = server.xdp.bind_more().and_then(|_| self.watch_xdp(&mut server));
        if let Err(error) = bound {
            self.context.dispatcher.handler.warn(&error.to_string());
        }
        self.xdp = Some(server);
    }

    /// Receives the datagrams of a queue, and answers the requests in them. `false` if the watch is
    /// of another descriptor.
    pub(crate) fn receive_xdp(&mut self, watch: Id) -> io::Result<bool> {
        let is_watch = |server: &XdpServer| server.watches.iter().position(|it| *it == watch);
        let Some(number) = self.xdp.as_deref().and_then(is_watch) else { return Ok(false) };
        if let Some(mut xdp) = self.xdp.take() {
            self.answer_xdp(&mut xdp, number);
            if xdp.busy_poll {
                self.busy_poll_xdp(&mut xdp);
            }
            self.xdp = Some(xdp);
        }
        self.engine.rewatch(watch, READABLE)?;
        Ok(true)
    }

    /// Polls the queues for as long as datagrams arrive in short intervals.
    fn busy_poll_xdp(&mut self, xdp: &mut XdpServer) {
        let began = self.engine.clock().now();
        let (mut now, mut last) = (began, began);
        while now - last < BUSY_POLL_INTERVAL && now - began < BUSY_POLL_MAX {
            for number in 0..xdp.xdp.queues.len() {
                if let Some(queue) = xdp.xdp.queues.get_mut(number) {
                    queue.poll();
                }
                if self.answer_xdp(xdp, number) > 0 {
                    last = now;
                }
            }
            now = self.engine.clock().now();
        }
    }

    /// Answers the datagrams that wait at a queue; returns their number.
    fn answer_xdp(&mut self, xdp: &mut XdpServer, number: usize) -> usize {
        let socket = xdp.socket;
        let (Some(queue), Some(mut server)) =
            (xdp.xdp.queues.get_mut(number), self.datagrams.take())
        else {
            return 0;
        };
        let (unix_time_s, mut taken) = (self.engine.clock().unix_time().as_secs(), 0);
        while taken < TAKEN_PER_TURN
            && let Some(datagram) = queue.receive()
        {
            taken += 1;
            let path = datagram.path();
            let peer = Some(Peer::Address(path.peer));
            let caller = Caller { connection: socket, peer, transport: Transport::Udp };
            let is_rejecting = self.context.is_rejecting();
            let bytes = queue.bytes(&datagram);
            let reply = self.context.with_datagram(&caller, &mut self.text, |environment| {
                server.handle(bytes, path, unix_time_s, is_rejecting, environment)
            });
            let Some(reply) = reply else {
                queue.release(datagram);
                continue;
            };
            if !queue.reply(datagram, reply) {
                self.engine.send_to(socket, reply, path);
            }
            server.counts.sent += 1;
        }
        queue.flush();
        self.engine.flush_datagrams(socket);
        xdp.count_drops(self.context.now);
        server.counts.dropped = xdp.drops + self.socket_drops(socket);
        self.publisher.set_datagrams(server.counts);
        self.datagrams = Some(server);
        taken
    }

    /// Datagrams that the sockets of AF_XDP have dropped.
    pub(super) fn xdp_drops(&self) -> u64 {
        self.xdp.as_ref().map_or(0, |xdp| xdp.drops)
    }

    /// Detaches the program from its interface.
    pub(super) fn close_xdp(&mut self) {
        if let Some(xdp) = self.xdp.take() {
            xdp.watches.iter().for_each(|watch| self.engine.close(*watch));
        }
    }
}

impl XdpServer {
    fn count_drops(&mut self, now: Instant) {
        if now >= self.drops_due {
            self.drops_due = now + DROPS_INTERVAL;
            self.drops = self.xdp.queues.iter().map(|queue| queue.drops()).sum();
        }
    }
}
