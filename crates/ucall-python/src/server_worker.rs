//! Makes the worker of a server's next run.

use pyo3::prelude::*;
use ucall_engine::EngineClock;
use ucall_server::{AnyWorker, sockets_allowed};

use crate::asyncio::loop_driver::Sockets;
use crate::asyncio::runner::WorkerRunner;
use crate::engine;
use crate::handler::Interpreter;
use crate::keys::Keys;
use crate::report::Report;
use crate::server::Server;
use crate::worker_peers::WorkerPeers;

impl Server {
    /// The sockets of the next worker, bound if that is due.
    fn take_sockets(&self, py: Python<'_>) -> PyResult<Option<Sockets>> {
        if !self.state().binds {
            return Ok(Some(Sockets::Unbound));
        }
        self.bind(py)?;
        let mut state = self.state();
        let (address, has_tls) = (state.address.known().cloned(), state.has_tls());
        let datagrams = match (&mut state.udp, address) {
            (Some(udp), Some(address)) => {
                let has_auth = self.auth.is_some() || !self.own_auth.is_empty();
                udp.check(&address, has_auth, has_tls)?;
                udp.bind(&address)?;
                udp.socket.take()
            }
            _ => None,
        };
        Ok(state.listener.take().map(|listener| Sockets::Bound { listener, datagrams }))
    }

    /// Whether a function of the program identifies callers, rather than keys.
    pub(crate) fn has_auth_function(&self, py: Python<'_>) -> bool {
        self.auth.as_ref().is_some_and(|auth| Keys::table_of(auth.bind(py)).is_none())
    }

    /// Makes a worker for this thread. Returns the sockets that it will serve, too.
    pub(crate) fn runner(
        &self,
        py: Python<'_>,
        is_embedded: bool,
    ) -> PyResult<(WorkerRunner, Option<Sockets>)> {
        let sockets = self.take_sockets(py)?;
        let is_plaintext = matches!(sockets, Some(Sockets::Unbound));
        let (engine, tls, page, peers, metrics, access_log) = {
            let state = self.state();
            let page = state.shared.as_ref().and_then(|(_, page)| page.clone());
            let peers = state.peers.as_ref().map(WorkerPeers::sockets);
            let (engine, tls, metrics) = (state.engine, state.tls.clone(), state.metrics.clone());
            let access_log = state.access_log.clone();
            (engine, tls, page, peers, metrics, access_log)
        };
        let unix_time = EngineClock::SYSTEM.unix_time();
        metrics.as_ref().inspect(|metrics| metrics.count_worker(unix_time));
        let engine = if is_embedded { engine.for_embedded_loop() } else { engine };
        let (limits, sizes) = (&self.call_limits, self.batch_sizes.clone());
        let auth = self.auth.as_ref().map(|auth| auth.clone_ref(py));
        let find_error = self.state().find_error.as_ref().map(|find| find.clone_ref(py));
        let report = Report::import(py, self.debug, find_error)?;
        let mut interpreter =
            Interpreter::new(py, self.number, report, auth, limits, sizes, metrics)?;
        interpreter.callbacks = self.state().callbacks.clone_ref(py);
        let (procedures, mut config) = (self.procedures.clone(), self.config.clone());
        config.access.bind(self.state().address.is_loopback());
        config.tls = tls.filter(|_| !is_plaintext);
        if let Some((shared, _)) = &self.state().shared {
            config.call_rates = config.call_rates.map(|rates| rates.shared(shared.get().rates()));
        }
        if let Some(xdp) = &mut config.datagrams.xdp {
            xdp.shared.clone_from(&self.state().xdp);
        }
        config.access_log.clone_from(&access_log);
        config.sockets_max = sockets_allowed();
        config.connections_max = config.connections_max.min(config.sockets_max);
        let mut worker = <dyn AnyWorker<_>>::new(engine, interpreter, procedures, config, None)
            .map_err(|error| engine::failure(py, error))?;
        if let Some(page) = page {
            worker.set_counters(page);
        }
        if let Some(access_log) = access_log {
            self.procedures.want_peers();
            access_log.start(worker.counters())?;
        }
        if let Some(peers) = peers {
            worker.publisher().set_sockets(peers);
        }
        Ok((WorkerRunner::new(worker)?, sockets))
    }
}
