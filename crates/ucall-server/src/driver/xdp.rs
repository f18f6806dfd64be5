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
use super::datagrams::{TAKEN_PER_TURN, unix_time_s};
use crate::caller::Caller;
use crate::handler::Handler;

const READABLE: Readiness = Readiness { readable: true, writable: false };
/// How often the kernel is asked for its count of drops.
const DROPS_INTERVAL: Duration = Duration::from_secs(1);

/// The sockets of one interface.
pub(super) struct XdpServer {
    xdp: Xdp,
    /// The watch of each queue.
    watches: Vec<Id>,
    /// The ordinary socket.
    socket: Id,
    drops: u64,
    drops_due: Instant,
}

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Receives datagrams for `socket` at an interface.
    pub(super) fn listen_xdp(&mut self, name: &str, xdp: Xdp, socket: Id) -> io::Result<()> {
        let (count, mode) = (xdp.queues.len(), xdp.mode);
        let drops_due = self.now();
        let mut server = XdpServer { xdp, watches: Vec::new(), socket, drops: 0, drops_due };
        for queue in &server.xdp.queues {
            server.watches.push(self.engine.watch(queue.as_fd(), READABLE)?);
        }
        self.xdp = Some(Box::new(server));
        let queues = if count == 1 { "queue" } else { "queues" };
        self.context.handler().warn(&format!("xdp: {name}: {count} {queues} in {mode}"));
        Ok(())
    }

    /// Receives the datagrams of a queue, and answers the requests in them. `false` if the watch is
    /// of another descriptor.
    pub(crate) fn receive_xdp(&mut self, watch: Id) -> io::Result<bool> {
        let is_watch = |server: &XdpServer| server.watches.iter().position(|it| *it == watch);
        let Some(number) = self.xdp.as_deref().and_then(is_watch) else { return Ok(false) };
        if let Some(mut xdp) = self.xdp.take() {
            self.answer_xdp(&mut xdp, number);
            self.xdp = Some(xdp);
        }
        self.engine.rewatch(watch, READABLE)?;
        Ok(true)
    }

    fn answer_xdp(&mut self, xdp: &mut XdpServer, number: usize) {
        let socket = xdp.socket;
        let (Some(queue), Some(mut server)) =
            (xdp.xdp.queues.get_mut(number), self.datagrams.take())
        else {
            return;
        };
        let unix_time_s = unix_time_s();
        for _ in 0..TAKEN_PER_TURN {
            let Some(datagram) = queue.receive() else { break };
            let path = datagram.path();
            let caller = Caller { connection: socket, peer: Some(Peer::Address(path.peer)) };
            let is_rejecting = self.context.is_rejecting();
            let bytes = queue.bytes(&datagram);
            let reply = self.context.with_datagram(&caller, |environment| {
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
        xdp.count_drops(self.context.now());
        server.counts.dropped = xdp.drops + self.socket_drops(socket);
        self.publisher.set_datagrams(server.counts);
        self.datagrams = Some(server);
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
