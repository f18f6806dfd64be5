//! Passes datagrams from the engine to the [`DatagramServer`], and its replies back.

use std::io;
use std::net::UdpSocket;

use ucall_engine::xdp::Xdp;
use ucall_engine::{Engine, Id, Peer};
use ucall_proto::RpcError;

use super::ConnectionDriver;
use crate::caller::{CallId, Caller, Transport};
use crate::config::XdpConfig;
use crate::datagrams::DatagramServer;
use crate::handler::Handler;

/// Datagrams that a turn takes of one socket. Connections get their turn before the others. During
/// a flood of new addresses each takes 7 µs, so connections wait for up to 0.2 ms.
const TAKEN_PER_TURN: usize = 32;

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Starts to receive datagrams at `socket`.
    pub(crate) fn listen_datagrams(&mut self, socket: UdpSocket) -> io::Result<Id> {
        if self.context.config.tls.is_some() {
            let message = "UDP: calls in datagrams cannot be encrypted by TLS";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let mut server = match self.datagrams.take() {
            Some(server) => server,
            None => {
                let config = (*self.context.config.datagrams).clone();
                let server = DatagramServer::new(config, self.now());
                Box::new(server.ok_or_else(|| io::Error::other("the system has no randomness"))?)
            }
        };
        let xdp = match &self.context.config.datagrams.xdp {
            Some(XdpConfig { interface, busy_poll, shared: None }) => {
                Some(Xdp::attach(interface, &socket, *busy_poll)?)
            }
            Some(XdpConfig { busy_poll, shared: Some((program, share)), .. }) => {
                Some(Xdp::share(program.clone(), *share, *busy_poll)?)
            }
            None => None,
        };
        let bound = self.engine.bind_datagrams(socket);
        server.sockets.extend(bound.as_ref().ok());
        self.datagrams = Some(server);
        if let (Some(xdp), Ok(socket)) = (xdp, &bound) {
            self.listen_xdp(xdp, *socket)?;
        }
        bound
    }

    /// Receives the datagrams of a socket, and answers the requests in them.
    #[inline(never)]
    pub(crate) fn receive_datagrams(&mut self, socket: Id) {
        let Some(mut server) = self.datagrams.take() else { return };
        let unix_time_s = self.unix_time_s();
        let mut taken = 0;
        while taken < TAKEN_PER_TURN {
            let (bytes, path) = match self.engine.receive_from(socket) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.engine.resume(socket);
                    break;
                }
            };
            taken += 1;
            let peer = Some(Peer::Address(path.peer));
            let caller = Caller { connection: socket, peer, transport: Transport::Udp };
            let is_rejecting = self.context.is_rejecting();
            let reply = self.context.with_datagram(&caller, &mut self.text, |environment| {
                server.handle(bytes, path, unix_time_s, is_rejecting, environment)
            });
            if let Some(reply) = reply {
                self.engine.send_to(socket, reply, path);
                server.counts.sent += 1;
            }
        }
        self.engine.flush_datagrams(socket);
        if taken == TAKEN_PER_TURN {
            self.engine.resume(socket);
        }
        server.counts.dropped = self.socket_drops(socket) + self.xdp_drops();
        self.publisher.set_datagrams(server.counts);
        self.datagrams = Some(server);
    }

    pub(super) fn socket_drops(&self, socket: Id) -> u64 {
        let drops = self.engine.datagram_drops(socket);
        drops.received + drops.sent
    }

    /// Takes the outcome of a call that came in a datagram.
    #[cold]
    #[inline(never)]
    pub(super) fn complete_datagram(&mut self, call: CallId, outcome: Result<(), &RpcError>) {
        let unix_time_s = self.unix_time_s();
        let Some(server) = &mut self.datagrams else { return };
        let (limits, now) = (&self.context.config.limits, self.context.now);
        let outcome = outcome.map(|()| self.text.as_slice());
        let reply = server.complete(call.number, outcome, limits, now, unix_time_s);
        if let Some((reply, path)) = reply {
            self.engine.send_to(call.connection, reply, path);
            self.engine.flush_datagrams(call.connection);
            server.counts.sent += 1;
            self.publisher.set_datagrams(server.counts);
        }
    }

    /// Closes the sockets, which ends the calls of datagrams.
    pub(super) fn close_datagrams(&mut self) {
        self.close_xdp();
        let sockets = self.datagrams.as_mut().map(|server| std::mem::take(&mut server.sockets));
        for socket in sockets.unwrap_or_default() {
            self.engine.close(socket);
            self.context.dispatcher.cancel(socket);
        }
    }
}
