//! Passes calls that came through a broker to their procedures, and their replies back.

use std::sync::Arc;

use hashbrown::HashMap;
use ucall_engine::{Engine, Id, Peer};
use ucall_proto::{BrokeredCalls, RpcError};

use super::ConnectionDriver;
use crate::brokered_call::{BrokeredCall, BrokeredReplies};
use crate::caller::{CallId, Caller, Transport};
use crate::handler::Handler;

/// What all calls through brokers have in place of a connection. The index is small, as those of
/// connections are, and no socket has this generation.
const BROKERS: Id = Id { index: 0, generation: u32::MAX };

/// The deferred calls of brokers.
#[derive(Debug, Default)]
pub(super) struct Brokers {
    calls: BrokeredCalls,
    /// What takes their replies, by their numbers.
    pending: HashMap<u64, Arc<dyn BrokeredReplies>>,
    /// The reply that was written last.
    text: Vec<u8>,
}

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Runs a call.
    #[cold]
    pub(crate) fn run_brokered(&mut self, call: BrokeredCall) {
        let mut brokers = self.brokers.take().unwrap_or_default();
        let BrokeredCall { number, method, params, head, transport, replies } = call;
        let has_reply = replies.is_some();
        let call = ucall_proto::BrokeredCall {
            number,
            method: &method,
            params: &params,
            head: &head,
            has_reply,
        };
        let Brokers { calls, text, .. } = &mut *brokers;
        text.clear();
        let is_deferred = self
            .context
            .with_datagram(&caller(transport), |environment| calls.run(&call, environment, text));
        match replies {
            Some(replies) if is_deferred => drop(brokers.pending.insert(number, replies)),
            Some(replies) => replies.reply(number, &brokers.text),
            None => {}
        }
        self.brokers = Some(brokers);
    }

    /// Cancels a call, which gets no reply.
    #[cold]
    pub(crate) fn cancel_brokered(&mut self, number: u64) {
        if let Some(brokers) = &mut self.brokers
            && brokers.pending.remove(&number).is_some()
        {
            let calls = &mut brokers.calls;
            self.context.with_datagram(&caller(Transport::Nats), |environment| {
                calls.cancel(number, environment);
            });
        }
    }

    /// Whether it is what calls through brokers have in place of a connection.
    #[inline]
    pub(super) fn is_brokers(id: Id) -> bool {
        id == BROKERS
    }

    /// Takes the outcome of a call.
    #[cold]
    #[inline(never)]
    pub(super) fn complete_brokered(&mut self, call: CallId, outcome: Result<(), &RpcError>) {
        let Some(brokers) = &mut self.brokers else { return };
        let limits = &self.context.config().limits;
        let outcome = outcome.map(|()| self.text.as_slice());
        brokers.text.clear();
        if brokers.calls.complete(call.number, outcome, limits, &mut brokers.text) {
            let replies = brokers.pending.remove(&call.number.request);
            replies.inspect(|it| it.reply(call.number.request, &brokers.text));
        }
    }

    /// Cancels all calls.
    pub(super) fn cancel_all_brokered(&mut self) {
        if self.brokers.take().is_some() {
            self.context.cancel(BROKERS);
        }
    }
}

/// A caller's address is not known: that of the broker says nothing of it.
fn caller(transport: Transport) -> Caller {
    Caller { connection: BROKERS, peer: Some(Peer::Unknown), transport }
}
