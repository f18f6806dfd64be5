//! Which connection gives way to a new one past the limit.
//!
//! | first | then |
//! |---|---|
//! | idle connections | open WebSockets, then connections that have subscribed, then new ones |
//! | those of the network with the most of them | those of others |
//! | that quiet for longest | the others |
//!
//! So a peer with many connections displaces its own before those of others. A connection with a
//! request or a call in flight does not give way, nor does one with output that is not sent.
//!
//! A scan of all connections for each new one would let a flood of new connections slow the others
//! down, so one scan finds many. The found ones are checked again before they are evicted. Those
//! that are open for messages serve one turn alone: in the next one others may be idle.

use std::cmp::Reverse;
use std::time::Instant;

use ucall_engine::Id;
use ucall_proto::EvictionClass;

use crate::network::PeerNetwork;

/// How many connections a scan finds.
const FOUND_MAX: usize = 256;

/// A connection that may give way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) id: Id,
    pub(crate) network: Option<PeerNetwork>,
    /// Since when it has been quiet.
    pub(crate) since: Instant,
}

/// The connections that give way next, all of one class.
#[derive(Debug, Default)]
pub(crate) struct EvictionOrder {
    /// The next one is the last.
    found: Vec<Candidate>,
    /// The class, and the bound of the scan.
    scan: Option<(EvictionClass, Instant)>,
}

impl EvictionOrder {
    /// The next connection that the last scan has found, and its class. `bound` is that of this
    /// turn.
    pub(crate) fn next(&mut self, bound: Instant) -> Option<(EvictionClass, Candidate)> {
        let (class, scanned) = self.scan?;
        if class != EvictionClass::Idle && scanned != bound {
            return None;
        }
        Some((class, self.found.pop()?))
    }

    /// Sets what a scan with this bound has found.
    pub(crate) fn set(
        &mut self,
        class: EvictionClass,
        bound: Instant,
        mut candidates: Vec<Candidate>,
    ) {
        // The rank of a connection is the number of those in its network, without those that have
        // been quiet for longer: they are gone when its turn comes.
        candidates.sort_unstable_by_key(|it| (it.network, Reverse(it.since)));
        let mut ranked: Vec<(usize, Candidate)> = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let before = ranked.last().filter(|(_, last)| last.network == candidate.network);
            let rank = before.map_or(1, |(rank, _)| rank + 1);
            ranked.push((rank, candidate));
        }
        ranked.sort_unstable_by_key(|(rank, it)| (*rank, Reverse(it.since)));
        let spare = ranked.len().saturating_sub(FOUND_MAX);
        self.found = ranked.split_off(spare).into_iter().map(|(_, candidate)| candidate).collect();
        self.scan = Some((class, bound));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The order of connections with these networks, which have been quiet since these seconds.
    fn order(given: &[(u8, u64)]) -> Vec<u32> {
        let now = Instant::now();
        let candidates = (0..).zip(given).map(|(index, (network, since))| Candidate {
            id: Id { index, generation: 1 },
            network: Some(PeerNetwork::new([127, 0, 0, *network].into())),
            since: now + Duration::from_secs(*since),
        });
        let mut order = EvictionOrder::default();
        order.set(EvictionClass::Idle, now, candidates.collect());
        std::iter::from_fn(|| order.next(now)).map(|(_, it)| it.id.index).collect()
    }

    #[test]
    fn of_one_network_the_longest_quiet_goes_first() {
        assert_eq!(order(&[(1, 3), (1, 1), (1, 2)]), [1, 2, 0]);
        assert_eq!(order(&[(1, 3), (2, 1), (3, 2)]), [1, 2, 0]);
    }

    #[test]
    fn the_network_with_the_most_goes_first_until_it_has_no_more_than_others() {
        assert_eq!(order(&[(1, 1), (2, 5), (2, 6), (2, 7), (3, 2), (3, 3)]), [1, 4, 2, 0, 5, 3]);
    }

    #[test]
    fn what_is_open_for_messages_is_found_for_one_turn() {
        let now = Instant::now();
        let id = Id { index: 0, generation: 1 };
        let candidate = Candidate { id, network: None, since: now };
        let later = now + Duration::from_secs(1);
        for (class, is_kept) in [(EvictionClass::Idle, true), (EvictionClass::WebSocket, false)] {
            let mut order = EvictionOrder::default();
            order.set(class, now, vec![candidate]);
            assert_eq!(order.next(later).is_some(), is_kept);
        }
    }
}
