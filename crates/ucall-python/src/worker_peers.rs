//! What other threads use of a worker, and the other worker processes of its server.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use ucall_engine::WorkerSockets;
use ucall_server::{Counters, Mailbox, Publisher, ServerMessage};

use crate::shared_counters::SharedCounters;

/// What other threads use of a worker.
pub(crate) struct RunningWorker {
    pub(crate) mailbox: Mailbox,
    pub(crate) counters: Arc<Counters>,
    pub(crate) publisher: Arc<Publisher>,
}

/// The other worker processes.
pub(crate) struct WorkerPeers {
    sockets: Arc<WorkerSockets>,
    /// The page of this process in the shared counters.
    own_page: Option<usize>,
}

impl WorkerPeers {
    /// Takes over descriptors. Each sender leads to the worker with the next page, from 1.
    pub(crate) fn new(
        receiver: Option<RawFd>,
        senders: Vec<RawFd>,
        own_page: Option<usize>,
    ) -> Self {
        // SAFETY: the caller gives the descriptors away.
        let owned = |descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) };
        let senders = senders.into_iter().map(owned).collect();
        let sockets = WorkerSockets::new(receiver.map(owned), senders);
        Self { sockets: Arc::new(sockets), own_page }
    }

    pub(crate) fn sockets(&self) -> Arc<WorkerSockets> {
        self.sockets.clone()
    }

    /// Sends a message to the workers with subscriptions. One that does not take it loses it.
    pub(crate) fn send(&self, counters: &SharedCounters, message: &ServerMessage) {
        for index in (1..=self.sockets.len()).filter(|index| Some(*index) != self.own_page) {
            let Some(page) = counters.page(index) else { return };
            if page.subscriptions() > 0 && self.sockets.send(index - 1, message.bytes()).is_err() {
                page.add_dropped(1);
            }
        }
    }
}
