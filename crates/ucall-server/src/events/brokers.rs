//! Passes calls that came through a broker to their procedures, and their replies back.

use std::collections::VecDeque;
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

/// Calls of one turn. The others wait, since they delay all other callers.
const CALLS_PER_TURN: usize = 32;

/// The calls of brokers.
#[derive(Debug, Default)]
pub(super) struct Brokers {
    /// Those that have not begun.
    waiting: VecDeque<BrokeredCall>,
    /// Those that are deferred.
    calls: BrokeredCalls,
    /// What takes their replies, by their numbers.
    pending: HashMap<u64, Arc<dyn BrokeredReplies>>,
    /// The reply that was written last.
    text: Vec<u8>,
}

impl<E: Engine, H: Handler> ConnectionDriver<E, H> {
    /// Takes a call, which [`Self::run_brokered`] runs.
    #[cold]
    pub(crate) fn enqueue_brokered(&mut self, call: BrokeredCall) {
        self.brokers.get_or_insert_default().waiting.push_back(call);
    }

    /// Whether calls wait.
    #[cold]
    pub(crate) fn has_waiting_brokered(&self) -> bool {
        self.brokers.as_ref().is_some_and(|brokers| !brokers.waiting.is_empty())
    }

    /// Runs the calls of a turn.
    #[cold]
    pub(crate) fn run_brokered(&mut self) {
        for _ in 0..CALLS_PER_TURN {
            let waiting = self.brokers.as_mut().map(|brokers| &mut brokers.waiting);
            let Some(call) = waiting.and_then(VecDeque::pop_front) else { break };
            self.begin_brokered(call);
        }
        self.context.update_load();
    }

    fn begin_brokered(&mut self, call: BrokeredCall) {
        let mut brokers = self.brokers.take().unwrap_or_default();
        let BrokeredCall { number, method, params, head, transport, has_reply, replies } = call;
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
            .with_datagram(&caller(transport), text, |environment| calls.run(&call, environment));
        if is_deferred {
            brokers.pending.insert(number, replies);
        } else {
            let reserved = self.context.budget().reserve_large(brokers.text.len());
            replies.reply(number, &brokers.text, reserved);
        }
        self.brokers = Some(brokers);
    }

    /// Cancels a call, which gets no reply.
    #[cold]
    pub(crate) fn cancel_brokered(&mut self, number: u64) {
        let Some(brokers) = &mut self.brokers else { return };
        if let Ok(index) = brokers.waiting.binary_search_by_key(&number, |call| call.number) {
            brokers.waiting.remove(index);
        } else if brokers.pending.remove(&number).is_some() {
            let Brokers { calls, text, .. } = &mut **brokers;
            self.context.with_datagram(&caller(Transport::Nats), text, |environment| {
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
        let limits = &self.context.config.limits;
        let outcome = outcome.map(|()| self.text.as_slice());
        brokers.text.clear();
        if brokers.calls.complete(call.number, outcome, limits, &mut brokers.text) {
            let reserved = self.context.budget().reserve_large(brokers.text.len());
            let replies = brokers.pending.remove(&call.number.request);
            replies.inspect(|it| it.reply(call.number.request, &brokers.text, reserved));
        }
    }

    /// Cancels all calls.
    pub(super) fn cancel_all_brokered(&mut self) {
        if self.brokers.take().is_some() {
            self.context.dispatcher.cancel(BROKERS);
        }
    }
}

/// A caller's address is not known: that of the broker says nothing of it.
fn caller(transport: Transport) -> Caller {
    Caller { connection: BROKERS, peer: Some(Peer::Unknown), transport }
}
