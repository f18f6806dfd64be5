//! How many calls each connection has, of those that a limit counts.
//!
//! A call keeps its connection's [`Share`] as long as the limit counts it, whatever becomes of the
//! connection meanwhile, so the number of holders is that of calls. Connections have small indices,
//! so a call costs no hash.

use std::sync::Arc;

use ucall_engine::Id;

/// One call of a connection, until it is dropped, on any thread.
#[derive(Debug)]
pub struct Share(#[expect(dead_code, reason = "counted by its clones")] Arc<()>);

/// The shares of all connections.
#[derive(Debug, Default)]
pub struct Shares {
    /// By the index of the connection. A later one at its index has a count of its own.
    counts: Vec<Count>,
}

#[derive(Clone, Debug, Default)]
struct Count {
    generation: u32,
    /// Its clones are the shares.
    calls: Option<Arc<()>>,
}

impl Shares {
    /// Calls of a connection.
    #[inline]
    pub fn calls(&self, caller: Id) -> usize {
        self.find(caller).map_or(0, |calls| Arc::strong_count(calls) - 1)
    }

    /// Counts another call of a connection.
    #[inline]
    pub fn take(&mut self, caller: Id) -> Share {
        match self.find(caller) {
            Some(calls) => Share(calls.clone()),
            None => self.take_first(caller),
        }
    }

    #[inline]
    fn find(&self, caller: Id) -> Option<&Arc<()>> {
        let count = self.counts.get(caller.index as usize)?;
        count.calls.as_ref().filter(|_| count.generation == caller.generation)
    }

    #[cold]
    fn take_first(&mut self, Id { index, generation }: Id) -> Share {
        let index = index as usize;
        if self.counts.len() <= index {
            self.counts.resize_with(index + 1, Count::default);
        }
        let calls = Arc::default();
        self.counts[index] = Count { generation, calls: Some(Arc::clone(&calls)) };
        Share(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32, generation: u32) -> Id {
        Id { index, generation }
    }

    #[test]
    fn calls_are_counted_until_they_end() {
        let mut shares = Shares::default();
        let calls: Vec<Share> = (0..3).map(|_| shares.take(id(7, 1))).collect();
        assert_eq!((shares.calls(id(7, 1)), shares.calls(id(6, 0))), (3, 0));
        let other = shares.take(id(7, 2));
        assert_eq!(shares.calls(id(7, 2)), 1, "a new connection in the place of another");
        drop(calls);
        assert_eq!(shares.calls(id(7, 2)), 1);
        drop(other);
        assert_eq!(shares.calls(id(7, 2)), 0);
    }
}
