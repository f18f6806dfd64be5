//! Messages by their peers, which take turns: one that sends many does not hold up the others.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};

use crate::identity::Identity;
use crate::message::Incoming;

/// The messages of each peer, in the order of their arrival.
#[derive(Default)]
pub(crate) struct Turns {
    queues: HashMap<Identity, VecDeque<Incoming>>,
    /// The peers that have messages, the next one first.
    order: VecDeque<Identity>,
    /// An empty queue, whose memory the next peer uses.
    cached: VecDeque<Incoming>,
}

impl Turns {
    pub(crate) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Adds messages, which it takes out of `added`.
    pub(crate) fn append(&mut self, added: &mut VecDeque<Incoming>) {
        while let Some(first) = added.pop_front() {
            let peer = first.peer;
            let queue = self.queues.entry(peer).or_insert_with(|| {
                self.order.push_back(peer);
                std::mem::take(&mut self.cached)
            });
            queue.push_back(first);
            // Most follow others of their peer.
            while added.front().is_some_and(|next| next.peer == peer) {
                queue.extend(added.pop_front());
            }
        }
    }

    /// The oldest message of the peer whose turn it is, of these unless that is empty.
    pub(crate) fn pop(&mut self, peers: &[Identity]) -> Option<Incoming> {
        let position = match peers {
            [] => 0,
            _ => self.order.iter().position(|peer| peers.contains(peer))?,
        };
        let peer = self.order.remove(position)?;
        let queue = self.queues.get_mut(&peer)?;
        let message = queue.pop_front();
        if queue.is_empty() {
            self.cached = self.queues.remove(&peer).unwrap_or_default();
        } else {
            self.order.push_back(peer);
        }
        message
    }
}
