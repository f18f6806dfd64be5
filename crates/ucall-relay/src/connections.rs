//! The connections to one upstream, by their keys.
//!
//! No call and no event scans all of them, because there may be thousands. One list has those that
//! take another call. Another has those that an event has changed, which the end of the turn
//! advances. A heap has the times at which the others are due.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::mem;
use std::time::Instant;

use crate::connection::Connection;
use crate::ends::EndedConnection;

/// All connections to one upstream.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    entries: Vec<Option<Entry>>,
    free_keys: Vec<u32>,
    /// Those that take another call. The one that was used last is the last.
    available: Vec<u32>,
    /// Those to advance at the end of the turn.
    changed: Vec<u32>,
    /// The times of [`Entry::timer`], and some that are not needed any more.
    timers: BinaryHeap<Reverse<(Instant, u32)>>,
    outstanding: usize,
    private: usize,
}

#[derive(Debug)]
struct Entry {
    connection: Connection,
    /// What the sums have of it.
    outstanding: usize,
    is_private: bool,
    /// Where it is in `available`.
    position: Option<usize>,
    is_changed: bool,
    /// When it is advanced even if nothing happens.
    timer: Option<Instant>,
}

impl Connections {
    /// Calls that the upstream has not answered.
    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Connections that calls share.
    pub(crate) fn shared(&self) -> usize {
        self.entries.len() - self.free_keys.len() - self.private
    }

    /// Connections that a call has for itself.
    pub(crate) fn private(&self) -> usize {
        self.private
    }

    /// Adds a connection, which is advanced at the end of this turn.
    pub(crate) fn insert(&mut self, connection: Connection) -> u32 {
        let entry = Entry {
            connection,
            outstanding: 0,
            is_private: false,
            position: None,
            is_changed: false,
            timer: None,
        };
        let key = match self.free_keys.pop() {
            Some(key) => {
                self.entries[key as usize] = Some(entry);
                key
            }
            None => {
                self.entries.push(Some(entry));
                (self.entries.len() - 1) as u32
            }
        };
        self.change(key, |_| ());
        key
    }

    /// The connection with this key, if there is one.
    pub(crate) fn get(&self, key: u32) -> Option<&Connection> {
        Some(&self.entries.get(key as usize)?.as_ref()?.connection)
    }

    /// The first that takes another call and satisfies `is_wanted`; the one that was used last
    /// comes first.
    pub(crate) fn find_available(&self, is_wanted: impl Fn(&Connection) -> bool) -> Option<u32> {
        let mut keys = self.available.iter().rev();
        keys.find(|key| self.get(**key).is_some_and(&is_wanted)).copied()
    }

    /// Runs an event of a connection, which is advanced at the end of this turn.
    pub(crate) fn change<T>(
        &mut self,
        key: u32,
        change: impl FnOnce(&mut Connection) -> T,
    ) -> Option<T> {
        let entry = self.entries.get_mut(key as usize)?.as_mut()?;
        let result = change(&mut entry.connection);
        if !mem::replace(&mut entry.is_changed, true) {
            self.changed.push(key);
        }
        self.update(key);
        Some(result)
    }

    /// The same for all connections.
    pub(crate) fn change_all(&mut self, change: impl Fn(&mut Connection)) {
        for key in 0..self.entries.len() {
            self.change(key as u32, &change);
        }
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.len() == self.free_keys.len()
    }

    /// Advances the connections that something has happened to, and those that are due. Removes
    /// those that end, and passes them to `ended`.
    pub(crate) fn advance(
        &mut self,
        now: Instant,
        mut advance: impl FnMut(u32, &mut Connection) -> Option<EndedConnection>,
        mut ended: impl FnMut(EndedConnection),
    ) {
        while let Some(Reverse((_, key))) = self.timers.peek().filter(|it| it.0.0 <= now).copied() {
            self.timers.pop();
            if let Some(Some(entry)) = self.entries.get_mut(key as usize) {
                entry.timer = entry.timer.filter(|timer| *timer > now);
                if !mem::replace(&mut entry.is_changed, true) {
                    self.changed.push(key);
                }
            }
        }
        let mut changed = mem::take(&mut self.changed);
        for key in changed.drain(..) {
            let Some(Some(entry)) = self.entries.get_mut(key as usize) else { continue };
            entry.is_changed = false;
            let end = advance(key, &mut entry.connection);
            match end {
                Some(end) => {
                    self.remove(key);
                    ended(end);
                }
                None => {
                    self.update(key);
                    self.set_timer(key);
                    self.keep_if_sending(key);
                }
            }
        }
        changed.append(&mut self.changed);
        self.changed = changed;
    }

    /// The next turn sends again what this one could not, so that the worker polls for the end of
    /// the send before it.
    fn keep_if_sending(&mut self, key: u32) {
        if let Some(Some(entry)) = self.entries.get_mut(key as usize)
            && entry.connection.has_output()
        {
            entry.is_changed = true;
            self.changed.push(key);
        }
    }

    /// When [`Connections::advance`] is due, even without events.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Sets the timer of a connection, after the last change of a turn.
    fn set_timer(&mut self, key: u32) {
        let Some(Some(Entry { connection, timer, .. })) = self.entries.get_mut(key as usize) else {
            return;
        };
        if let Some(at) = connection.deadline()
            && timer.is_none_or(|timer| at < timer)
        {
            *timer = Some(at);
            self.timers.push(Reverse((at, key)));
        }
    }

    /// Brings the sums and the list of those that take calls up to date.
    fn update(&mut self, key: u32) {
        let Some(Some(entry)) = self.entries.get_mut(key as usize) else { return };
        let Entry { connection, outstanding, is_private, .. } = entry;
        let before = mem::replace(outstanding, connection.outstanding());
        self.outstanding = self.outstanding - before + *outstanding;
        let before = mem::replace(is_private, connection.is_private());
        self.private = self.private - usize::from(before) + usize::from(*is_private);
        match (connection.has_room(), entry.position) {
            (true, None) => {
                entry.position = Some(self.available.len());
                self.available.push(key);
            }
            (false, Some(_)) => self.withdraw(key),
            _ => {}
        }
    }

    /// Takes a connection out of the list of those that take calls.
    fn withdraw(&mut self, key: u32) {
        let Some(Some(entry)) = self.entries.get_mut(key as usize) else { return };
        let Some(position) = entry.position.take() else { return };
        self.available.swap_remove(position);
        if let Some(moved) = self.available.get(position)
            && let Some(Some(entry)) = self.entries.get_mut(*moved as usize)
        {
            entry.position = Some(position);
        }
    }

    fn remove(&mut self, key: u32) {
        self.withdraw(key);
        if let Some(entry) = self.entries.get_mut(key as usize).and_then(Option::take) {
            self.outstanding -= entry.outstanding;
            self.private -= usize::from(entry.is_private);
            self.free_keys.push(key);
        }
    }
}
