//! The listening sockets of a worker, and whether they accept.
//!
//! Accepting pauses at the limit on connections, after a failure, and for good when a drain begins.
//! A drain of all workers of a socket has the kernel refuse further connections. A process that
//! shares a socket does so only when it was told that all processes stop.

use std::io;
use std::mem;

use ucall_engine::{Engine, Id, Listener, Sharing};

/// The listeners of one worker.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    ids: Vec<Id>,
    /// The same sockets: a drain accepts the connections that still wait in their backlogs.
    listener_sockets: Vec<Listener>,
    is_paused: bool,
    is_shut_down: bool,
    /// All processes that share the sockets stop.
    all_stop: bool,
    /// Why accepting has failed in this turn.
    error: Option<io::Error>,
    /// Whether a failure was logged since the last sweep.
    is_failure_logged: bool,
    /// The same of a network with too many connections.
    is_full_network_logged: bool,
}

impl Listeners {
    /// Starts to accept connections at `listener`.
    pub(crate) fn listen(
        &mut self,
        listener: Listener,
        engine: &mut impl Engine,
    ) -> io::Result<()> {
        listener.set_nonblocking()?;
        let socket = listener.try_clone()?;
        self.ids.push(engine.listen(listener)?);
        self.listener_sockets.push(socket);
        Ok(())
    }

    #[inline]
    pub(crate) fn is_paused(&self) -> bool {
        self.is_paused
    }

    #[inline(never)]
    pub(crate) fn pause(&mut self, engine: &mut impl Engine) {
        self.is_paused = true;
        for &id in &self.ids {
            engine.pause(id);
        }
    }

    /// Accepts again, unless the listeners are shut down.
    pub(crate) fn resume(&mut self, engine: &mut impl Engine) {
        if !self.is_shut_down && mem::take(&mut self.is_paused) {
            for &id in &self.ids {
                engine.resume(id);
            }
        }
    }

    /// Whether other workers accept connections at the same sockets.
    pub(crate) fn are_shared(&self) -> bool {
        self.listener_sockets.iter().any(Listener::is_shared)
    }

    /// Accepts the next connection of a shared socket, which the engine has paused after the last
    /// one; not if accepting is paused for another reason.
    pub(crate) fn resume_shared(&mut self, engine: &mut impl Engine) {
        if !self.is_paused {
            for &id in &self.ids {
                engine.resume(id);
            }
        }
    }

    /// Stops accepting for good.
    pub(crate) fn shut_down(&mut self, engine: &mut impl Engine) {
        self.is_shut_down = true;
        self.pause(engine);
    }

    /// Records that all processes that share the sockets stop.
    pub(crate) fn set_all_stop(&mut self) {
        self.all_stop = true;
    }

    /// Whether no other process accepts connections after this one.
    pub(crate) fn may_refuse(&self) -> bool {
        let is_left = |socket: &Listener| socket.sharing() == Sharing::Processes;
        self.all_stop || !self.listener_sockets.iter().any(is_left)
    }

    /// Accepts the connections that wait in the backlogs, for the last time: the kernel refuses
    /// further ones. A socket of another program keeps them for its next server. The engine may
    /// still report some that it has accepted before.
    pub(crate) fn refuse(&mut self, engine: &mut impl Engine) -> Vec<Id> {
        if self.listener_sockets.iter().any(Listener::is_inherited) {
            return Vec::new();
        }
        self.listener_sockets.iter().for_each(Listener::stop_queueing);
        let adopted = self.adopt_waiting(engine);
        self.listener_sockets.iter().for_each(Listener::shut_down);
        adopted
    }

    /// Accepts the connections that wait in the backlogs, until [`Listeners::close`]; none if other
    /// processes accept them, which the engine has woken.
    pub(crate) fn adopt_waiting(&mut self, engine: &mut impl Engine) -> Vec<Id> {
        if self.may_refuse() { self.adopt(usize::MAX, engine) } else { Vec::new() }
    }

    /// Accepts up to `max` of them.
    pub(crate) fn adopt(&mut self, max: usize, engine: &mut impl Engine) -> Vec<Id> {
        let accept = |socket| std::iter::from_fn(move || Listener::accept(socket).ok());
        let accepted = self.listener_sockets.iter().flat_map(accept).take(max);
        // A connection that fails at once is no loss.
        accepted.filter_map(|stream| engine.adopt(stream).ok()).collect()
    }

    /// Closes the sockets, unless another process has them, too.
    pub(crate) fn close(&mut self, engine: &mut impl Engine) {
        self.listener_sockets.clear();
        for id in self.ids.drain(..) {
            engine.close(id);
        }
    }

    pub(crate) fn are_closed(&self) -> bool {
        self.listener_sockets.is_empty()
    }

    /// Records that accepting has failed, which pauses it.
    pub(crate) fn fail(&mut self, error: io::Error) {
        self.error = Some(error);
    }

    /// Whether there is a failure to take.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    /// The failure of this turn, once.
    pub(crate) fn take_failure(&mut self) -> Option<io::Error> {
        let error = self.error.take()?;
        self.is_paused = true;
        Some(error)
    }

    /// Whether to log a failure: always if accepting stays paused, otherwise once a sweep.
    pub(crate) fn should_log_failure(&mut self, stays_paused: bool) -> bool {
        stays_paused || !mem::replace(&mut self.is_failure_logged, true)
    }

    /// Whether to log that a network has too many connections: once a sweep.
    pub(crate) fn should_log_full_network(&mut self) -> bool {
        !mem::replace(&mut self.is_full_network_logged, true)
    }

    /// Allows one more line of each, when a sweep begins.
    pub(crate) fn allow_log(&mut self) {
        (self.is_failure_logged, self.is_full_network_logged) = (false, false);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use ucall_engine::fake::{Fake, Network};

    use super::*;

    fn listening() -> (Listeners, Fake, Network) {
        let ((mut engine, network), mut listeners) = (Fake::new(), Listeners::default());
        let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
        listeners.listen(socket.into(), &mut engine).expect("the fake engine listens");
        (listeners, engine, network)
    }

    fn accepts(engine: &mut Fake) -> bool {
        let mut completions = Vec::new();
        engine.wait(Some(Instant::now()), &mut completions).expect("the fake engine waits");
        !completions.is_empty()
    }

    #[test]
    fn paused_listeners_accept_when_they_resume() {
        let (mut listeners, mut engine, network) = listening();
        listeners.pause(&mut engine);
        let _peer = network.connect();
        assert!(listeners.is_paused() && !accepts(&mut engine));
        listeners.resume(&mut engine);
        assert!(!listeners.is_paused() && accepts(&mut engine));
    }

    #[test]
    fn listeners_that_are_shut_down_do_not_resume() {
        let (mut listeners, mut engine, network) = listening();
        listeners.shut_down(&mut engine);
        listeners.resume(&mut engine);
        let _peer = network.connect();
        assert!(!accepts(&mut engine));
        assert!(!listeners.are_closed());
        listeners.close(&mut engine);
        assert!(listeners.are_closed() && listeners.adopt_waiting(&mut engine).is_empty());
    }

    #[test]
    fn only_the_last_of_several_processes_refuses_connections() {
        let ((mut engine, _network), mut listeners) = (Fake::new(), Listeners::default());
        let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = socket.local_addr().expect("an address");
        let shared = Listener::from(socket).shared(Sharing::Processes);
        let elsewhere = shared.try_clone().expect("a descriptor");
        listeners.listen(shared, &mut engine).expect("the fake engine listens");
        assert!(listeners.are_shared() && !listeners.may_refuse());
        let _waiting = TcpStream::connect(address).expect("a connection");
        assert!(listeners.adopt_waiting(&mut engine).is_empty());
        listeners.set_all_stop();
        assert!(listeners.may_refuse());
        assert_eq!(listeners.refuse(&mut engine).len(), 1);
        assert!(TcpStream::connect(address).is_err() && elsewhere.is_shut_down());
    }

    #[test]
    fn what_waits_at_an_inherited_socket_is_for_the_next_server() {
        let ((mut engine, _network), mut listeners) = (Fake::new(), Listeners::default());
        let socket = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = socket.local_addr().expect("an address");
        let inherited = Listener::from(socket).inherited().shared(Sharing::Processes);
        let elsewhere = inherited.try_clone().expect("a descriptor");
        listeners.listen(inherited, &mut engine).expect("the fake engine listens");
        listeners.set_all_stop();
        let _waiting = TcpStream::connect(address).expect("a connection");
        assert!(listeners.may_refuse() && listeners.refuse(&mut engine).is_empty());
        assert!(!elsewhere.is_shut_down() && elsewhere.accept().is_ok());
    }

    #[test]
    fn a_failure_is_reported_once_and_pauses() {
        let (mut listeners, _engine, _network) = listening();
        listeners.fail(io::ErrorKind::OutOfMemory.into());
        assert!(listeners.take_failure().is_some() && listeners.is_paused());
        assert!(listeners.take_failure().is_none());
    }

    #[test]
    fn failures_that_are_resolved_are_logged_once_a_sweep() {
        let mut listeners = Listeners::default();
        let logged = [false, false, true, true].map(|stays| listeners.should_log_failure(stays));
        assert_eq!(logged, [true, false, true, true]);
        listeners.allow_log();
        assert!(listeners.should_log_failure(false));
    }
}
