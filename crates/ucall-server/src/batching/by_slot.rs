//! Values of calls, found by the small numbers of their slots.
//!
//! A call costs no hash, and the values of calls that arrive together are close to each other.

/// Names a call by a small number.
pub trait HasSlot: Copy + Eq {
    /// That of no other call at the same time.
    fn slot(self) -> usize;
}

/// A `V` for each of some calls, which are named by `T`s.
#[derive(Debug)]
pub struct BySlot<T, V>(Vec<Option<(T, V)>>);

impl<T, V> Default for BySlot<T, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: HasSlot, V> BySlot<T, V> {
    /// Adds the value of a call, in place of that of the last call in its slot.
    pub fn insert(&mut self, call: T, value: V) {
        let slot = call.slot();
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        self.0[slot] = Some((call, value));
    }

    /// The value of a call.
    pub fn find_mut(&mut self, call: T) -> Option<&mut V> {
        let (it, value) = self.0.get_mut(call.slot())?.as_mut()?;
        (*it == call).then_some(value)
    }

    /// Removes the value of a call.
    pub fn remove(&mut self, call: T) -> Option<V> {
        let place = self.0.get_mut(call.slot())?;
        place.take_if(|(it, _)| *it == call).map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call, and how many were in its slot before.
    type Call = (usize, u32);

    impl HasSlot for Call {
        fn slot(self) -> usize {
            self.0
        }
    }

    #[test]
    fn a_later_call_in_a_slot_is_another_one() {
        let mut values = BySlot::<Call, &str>::default();
        values.insert((3, 0), "a");
        assert_eq!(values.remove((3, 1)), None);
        assert_eq!(values.remove((4, 0)), None);
        assert_eq!(values.remove((3, 0)), Some("a"));
        assert_eq!(values.remove((3, 0)), None);
        values.insert((3, 1), "b");
        assert_eq!((values.remove((3, 0)), values.remove((3, 1))), (None, Some("b")));
    }
}
