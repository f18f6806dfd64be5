//! The memo, and what may be recalled before it is complete.
//!
//! What refers to an object that is incomplete cannot know how high that object will be. When it is
//! recalled later its facts are taken up to then. A pickle of CPython's puts whatever it makes in
//! the meantime into that object, so that the levels of both are the object's own. A pickle that
//! drops such a value instead could hide levels and values by that; so what was dropped meanwhile
//! is added.

use crate::error::Error;
use crate::reader::{OPERATIONS_WITHOUT_PAUSE, Reader, Step};
use crate::schedule::Forecast;
use crate::stack::{Dropped, Entry, Facts, Kind, NOWHERE, Open, Remembered};
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
            if self.schedule.is_some() {
                self.open.push(Open { at, dropped: Dropped::default() });
            }
        }
        let (kind, facts) = (entry.kind, entry.facts);
        let object = self.objects.last().ok_or(Error::Stack)?.clone();
        self.memo.push(Remembered { object, kind, facts, is_open });
        Ok(())
    }

    #[inline]
    pub(crate) fn recall(&mut self, place: u32) -> Step<B> {
        let mut remembered = self.memo.get(place as usize).ok_or(Error::Memo)?;
        if remembered.is_open && self.schedule.is_none() {
            self.look_ahead()?;
            remembered = self.memo.get(place as usize).ok_or(Error::Memo)?;
        }
        let (object, kind, mut facts) =
            (remembered.object.clone(), remembered.kind, remembered.facts);
        if matches!(kind, Kind::Pending(_)) {
            return Err(Error::Incomplete.into());
        }
        if remembered.is_open {
            facts = Facts { height: 0, open: place, values: 1, ..facts };
            if !facts.is_weight_fixed {
                facts = Facts { weight: 1, ..facts.without_hash() };
            }
        } else if facts.open != NOWHERE {
            facts = self.resolved(place, facts)?;
        }
        self.push(object, Entry { kind, ..Entry::new(facts) });
        Ok(())
    }

    /// The facts of a value that refers to objects which were incomplete, now that they may be
    /// complete.
    #[cold]
    fn resolved(&mut self, place: u32, mut facts: Facts) -> Step<B, Facts> {
        while let Some(referred) = self.memo.get(facts.open as usize) {
            if referred.is_open {
                break;
            }
            let part = referred.facts;
            facts.height = match self.dropped.get(&facts.open) {
                None => facts.height.max(part.height.saturating_add(1)),
                Some(dropped) => {
                    let values = part.values.saturating_add(dropped.values).saturating_add(1);
                    facts.values = facts.values.saturating_mul(values);
                    facts.height.saturating_add(part.height).saturating_add(dropped.height)
                }
            };
            // Outwards: what it lies in itself cannot have been complete before it.
            facts.open = if part.open < facts.open { part.open } else { NOWHERE };
        }
        self.check_depth(&facts)?;
        if let Some(remembered) = self.memo.get_mut(place as usize) {
            remembered.facts = facts;
        }
        Ok(facts)
    }

    /// Finds out which objects on the stack change no more, and when the others do for the last
    /// time.
    #[cold]
    fn look_ahead(&mut self) -> Step<B> {
        let mut forecast = Forecast::new(self.bytes, self.stack.len(), &self.marks);
        while forecast.run(OPERATIONS_WITHOUT_PAUSE) {
            self.builder.pause()?;
        }
        let (schedule, last_changes) = forecast.finish();
        self.schedule = Some(schedule);
        for (at, (entry, &last_change)) in self.stack.iter_mut().zip(&last_changes).enumerate() {
            entry.last_change = last_change;
            let remembered = self.memo.get_mut(entry.memo as usize);
            if last_change > 0 {
                if entry.accepts != Accepts::NOTHING && entry.memo != NOWHERE {
                    self.open.push(Open { at, dropped: Dropped::default() });
                }
                continue;
            }
            entry.accepts = Accepts::NOTHING;
            if let Some(remembered) = remembered {
                remembered.facts = entry.facts;
                remembered.is_open = false;
            }
        }
        let is_changed = |at: usize| last_changes.get(at).is_some_and(|&last| last > 0);
        self.hash_counts.retain(|counts| is_changed(counts.container));
        Ok(())
    }

    /// What an object that is made now accepts: nothing, if the schedule knows that it changes no
    /// more.
    #[inline]
    pub(crate) fn scheduled(&mut self, accepts: Accepts) -> (Accepts, u32) {
        match &mut self.schedule {
            None => (accepts, 0),
            Some(schedule) => match schedule.next_object() {
                0 => (Accepts::NOTHING, 0),
                last_change => (accepts, last_change),
            },
        }
    }

    /// Notes a change of the value at `at`, the last on the stack: it may be complete with that.
    #[inline]
    pub(crate) fn changed(&mut self, at: usize) -> Step<B> {
        let Some(schedule) = &mut self.schedule else { return Ok(()) };
        let change = schedule.next_change();
        match self.stack.get(at) {
            Some(entry) if entry.last_change == change => self.close_open(at).map(drop),
            _ => Ok(()),
        }
    }

    /// Notes that the object at `at`, which has a place in the memo, is complete.
    #[cold]
    pub(crate) fn close_remembered(&mut self, at: usize, place: u32) {
        let Some(open) = self.open.pop_if(|open| open.at == at) else { return };
        if open.dropped.values > 0 {
            self.dropped.insert(place, open.dropped);
            if let Some(outer) = self.open.last_mut() {
                outer.dropped.join(open.dropped);
            }
        }
    }

    /// Notes that a value is dropped, which had this place in the memo while it could change.
    pub(crate) fn note_dropped(&mut self, facts: &Facts, place: u32) {
        if facts.open == NOWHERE && place == NOWHERE {
            return;
        }
        if let Some(outer) = self.open.last_mut() {
            let height = facts.height.saturating_add(1);
            outer.dropped.join(Dropped { height, values: facts.values });
        }
    }
}
