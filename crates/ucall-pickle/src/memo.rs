//! The memo, and references to incomplete objects.
//!
//! A value that refers to an incomplete object has no final height. The reader computes its height
//! again when the pickle reads the value from the memo. CPython's pickler puts every such value
//! into the incomplete object itself, which then counts its levels. A hostile pickle can pop the
//! value instead and so hide levels and values; the reader adds the extent of popped values.

use crate::error::Error;
use crate::last_changes::LookAhead;
use crate::reader::{OPERATIONS_WITHOUT_PAUSE, Reader, Step};
use crate::stack::{Dropped, Entry, Extent, Kind, MemoEntry, NOWHERE, Open};
use crate::{Accepts, Builder};

impl<B: Builder> Reader<'_, B> {
    #[inline]
    pub(crate) fn memoize(&mut self) -> Step<B> {
        let place = u32::try_from(self.memo.len()).map_err(|_| Error::Memo)?;
        let at = self.below_top(1)?;
        let entry = self.stack.get_mut(at).ok_or(Error::Stack)?;
        let is_open = entry.accepts != Accepts::NOTHING;
        if is_open {
            if entry.memo != NOWHERE {
                return Err(Error::Memo.into());
            }
            entry.memo = place;
            if self.last_changes.is_some() {
                self.open.push(Open { at, dropped: Dropped::default() });
            }
        }
        let (kind, extent) = (entry.kind, entry.extent);
        let object = self.objects.last().ok_or(Error::Stack)?.clone();
        self.memo.push(MemoEntry { object, kind, extent, is_open });
        Ok(())
    }

    #[inline]
    pub(crate) fn get_memoized(&mut self, place: u32) -> Step<B> {
        let mut memoized = self.memo.get(place as usize).ok_or(Error::Memo)?;
        if memoized.is_open && self.last_changes.is_none() {
            self.look_ahead()?;
            memoized = self.memo.get(place as usize).ok_or(Error::Memo)?;
        }
        let (object, kind, mut extent) = (memoized.object.clone(), memoized.kind, memoized.extent);
        if matches!(kind, Kind::Pending(_)) {
            return Err(Error::Incomplete.into());
        }
        if memoized.is_open {
            extent = Extent { height: 0, open: place, values: 1, ..extent };
            if !extent.is_weight_fixed {
                extent = Extent { weight: 1, ..extent.without_hash() };
            }
        } else if extent.open != NOWHERE {
            extent = self.resolved(place, extent)?;
        }
        self.push(object, Entry { kind, ..Entry::new(extent) });
        Ok(())
    }

    /// Updates the extent of a value that referred to incomplete objects, from those that are
    /// complete now.
    #[cold]
    fn resolved(&mut self, place: u32, mut extent: Extent) -> Step<B, Extent> {
        while let Some(referred) = self.memo.get(extent.open as usize) {
            if referred.is_open {
                break;
            }
            let part = referred.extent;
            extent.height = match self.dropped.get(&extent.open) {
                None => extent.height.max(part.height.saturating_add(1)),
                Some(dropped) => {
                    let values = part.values.saturating_add(dropped.values).saturating_add(1);
                    extent.values = extent.values.saturating_mul(values);
                    extent.height.saturating_add(part.height).saturating_add(dropped.height)
                }
            };
            // Go outwards: an enclosing object cannot be complete before this one.
            extent.open = if part.open < extent.open { part.open } else { NOWHERE };
        }
        self.check_depth(&extent)?;
        if let Some(memoized) = self.memo.get_mut(place as usize) {
            memoized.extent = extent;
        }
        Ok(extent)
    }

    /// Closes the objects on the stack that no later operation changes, and finds the last change
    /// of the others.
    #[cold]
    fn look_ahead(&mut self) -> Step<B> {
        let mut look_ahead = LookAhead::new(self.bytes, self.stack.len(), &self.marks);
        while look_ahead.run(OPERATIONS_WITHOUT_PAUSE) {
            self.builder.pause()?;
        }
        let (later, present) = look_ahead.finish();
        self.last_changes = Some(later);
        for (at, (entry, &last_change)) in self.stack.iter_mut().zip(&present).enumerate() {
            entry.last_change = last_change;
            let memoized = self.memo.get_mut(entry.memo as usize);
            if last_change > 0 {
                if entry.accepts != Accepts::NOTHING && entry.memo != NOWHERE {
                    self.open.push(Open { at, dropped: Dropped::default() });
                }
                continue;
            }
            entry.accepts = Accepts::NOTHING;
            if let Some(memoized) = memoized {
                memoized.extent = entry.extent;
                memoized.is_open = false;
            }
        }
        let is_changed = |at: usize| present.get(at).is_some_and(|&last| last > 0);
        self.hash_counts.retain(|counts| is_changed(counts.container));
        Ok(())
    }

    /// What a new object accepts, and its last change. After a look-ahead, an object without a
    /// change accepts nothing.
    #[inline]
    pub(crate) fn until_last_change(&mut self, accepts: Accepts) -> (Accepts, u32) {
        match &mut self.last_changes {
            None => (accepts, 0),
            Some(last_changes) => match last_changes.next_object() {
                0 => (Accepts::NOTHING, 0),
                last_change => (accepts, last_change),
            },
        }
    }

    /// Counts a change of the top value, which is at `at`, and closes it after its last one.
    #[inline]
    pub(crate) fn changed(&mut self, at: usize) -> Step<B> {
        let Some(last_changes) = &mut self.last_changes else { return Ok(()) };
        let change = last_changes.next_change();
        match self.stack.get(at) {
            Some(entry) if entry.last_change == change => self.close_open(at).map(drop),
            _ => Ok(()),
        }
    }

    /// Closes the memo entry of the object at `at`.
    #[cold]
    pub(crate) fn close_memoized(&mut self, at: usize, place: u32) {
        let Some(open) = self.open.pop_if(|open| open.at == at) else { return };
        if open.dropped.values > 0 {
            self.dropped.insert(place, open.dropped);
            if let Some(outer) = self.open.last_mut() {
                outer.dropped.join(open.dropped);
            }
        }
    }

    /// Adds a popped value to the incomplete object below it. `place` is the memo index that the
    /// value had while it could change.
    pub(crate) fn note_dropped(&mut self, extent: &Extent, place: u32) {
        if extent.open == NOWHERE && place == NOWHERE {
            return;
        }
        if let Some(outer) = self.open.last_mut() {
            let height = extent.height.saturating_add(1);
            outer.dropped.join(Dropped { height, values: extent.values });
        }
    }
}
