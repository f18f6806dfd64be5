//! Globals, calls and object state.

use crate::error::Error;
use crate::reader::{HEADER, Reader, Step};
use crate::stack::{Entry, Extent, Kind, NOWHERE};
use crate::{Accepts, Builder, Made, Product};

impl<B: Builder> Reader<'_, B> {
    pub(crate) fn global(&mut self) -> Step<B> {
        self.budget.allocate(HEADER)?;
        let (name, _) = self.pop_value()?;
        let (module, _) = self.pop_value()?;
        let global = self.builder.global(&module, &name)?;
        self.push_global(global)
    }

    fn push_global(&mut self, global: B::Global) -> Step<B> {
        let number = u32::try_from(self.globals.len()).map_err(|_| Error::Stack)?;
        self.globals.push(global);
        let object = self.builder.none();
        self.push(object, Entry { kind: Kind::Global(number), ..Entry::new(Extent::LEAF) });
        Ok(())
    }

    /// Pops the global to call.
    fn pop_global(&mut self) -> Step<B, B::Global> {
        let at = self.below_top(1)?;
        let entry = self.stack.get(at).ok_or(Error::Stack)?;
        let Kind::Global(number) = entry.kind else { return Err(Error::NotCallable.into()) };
        self.truncate(at);
        Ok(self.globals.get(number as usize).ok_or(Error::Stack)?.clone())
    }

    pub(crate) fn reduce(&mut self) -> Step<B> {
        self.budget.allocate(HEADER)?;
        let (arguments, extent, has_globals) = self.pop_arguments()?;
        let global = self.pop_global()?;
        if has_globals && !self.builder.takes_globals(&global) {
            return Err(Error::NotValue.into());
        }
        let made = self.builder.call(&global, &arguments, extent.values, &mut self.budget)?;
        self.push_made(made, &extent)
    }

    /// Pops the arguments of a call. The flag is set if they include globals that are not values.
    fn pop_arguments(&mut self) -> Step<B, (B::Object, Extent, bool)> {
        let at = self.below_top(1)?;
        match self.stack.get(at) {
            Some(entry) if entry.kind == Kind::Arguments => {
                let (object, entry) = self.pop()?;
                Ok((object, entry.extent, true))
            }
            _ => self.pop_value().map(|(object, extent)| (object, extent, false)),
        }
    }

    pub(crate) fn new_object(&mut self, has_keywords: bool) -> Step<B> {
        self.budget.allocate(HEADER)?;
        let keywords = if has_keywords { Some(self.pop_value()?) } else { None };
        let (arguments, mut extent) = self.pop_value()?;
        if let Some((_, keywords)) = &keywords {
            extent.include(keywords);
        }
        let keywords = keywords.as_ref().map(|(object, _)| object);
        let global = self.pop_global()?;
        let made = self.builder.instance(&global, &arguments, keywords, &mut self.budget)?;
        self.push_made(made, &extent)
    }

    fn push_made(&mut self, made: Made<B>, arguments: &Extent) -> Step<B> {
        let extent = Extent::of_call(made.weight, arguments);
        self.check_depth(&extent)?;
        let (accepts, last_change) = self.until_last_change(match made.product {
            Product::Object(_) => made.accepts,
            Product::Pending(_) => Accepts::STATE,
            Product::Global(_) => Accepts::NOTHING,
        });
        match made.product {
            Product::Object(object) => {
                self.push(object, Entry { accepts, last_change, ..Entry::new(extent) });
            }
            Product::Global(global) => {
                self.note_dropped(arguments, NOWHERE);
                self.push_global(global)?;
            }
            Product::Pending(pending) => {
                let number = u32::try_from(self.pending.len()).map_err(|_| Error::Stack)?;
                self.pending.push(Some(pending));
                let (object, kind) = (self.builder.none(), Kind::Pending(number));
                self.push(object, Entry { kind, accepts, last_change, ..Entry::new(extent) });
            }
        }
        Ok(())
    }

    pub(crate) fn build(&mut self) -> Step<B> {
        let (state, part) = self.pop_value()?;
        let at = self.below_top(1)?;
        let entry = self.stack.get_mut(at).ok_or(Error::Stack)?;
        if !entry.accepts.includes(Accepts::STATE) {
            return Err(Error::Unchangeable.into());
        }
        entry.extent.include(&part);
        let (extent, kind) = (entry.extent, entry.kind);
        let object = self.object(at)?;
        self.check_depth(&extent)?;
        if let Kind::Pending(number) = kind {
            self.complete(at, number, &state, extent)?;
        } else {
            self.builder.set_state(&object, &state, &mut self.budget)?;
        }
        // CPython's pickler writes the state last, so the object is complete.
        self.close_open(at)?;
        self.changed(at)
    }

    /// Replaces a pending object by the object made from its state.
    fn complete(&mut self, at: usize, number: u32, state: &B::Object, extent: Extent) -> Step<B> {
        let pending = self.pending.get_mut(number as usize).and_then(Option::take);
        let pending = pending.ok_or(Error::Unchangeable)?;
        let made = self.builder.complete(pending, state, extent.values, &mut self.budget)?;
        let Product::Object(object) = made.product else { return Err(Error::NotValue.into()) };
        let extent = Extent::of_call(made.weight, &extent);
        let entry = self.stack.get_mut(at).ok_or(Error::Stack)?;
        *entry = Entry { memo: entry.memo, ..Entry::new(extent) };
        if let Some(memoized) = self.memo.get_mut(entry.memo as usize) {
            memoized.object = object.clone();
            memoized.kind = Kind::Object;
        }
        *self.objects.get_mut(at).ok_or(Error::Stack)? = object;
        Ok(())
    }

    pub(crate) fn persistent(&mut self) -> Step<B> {
        let at = self.below_top(1)?;
        let extent = self.close(at)?;
        let (id, entry) = self.pop()?;
        self.note_dropped(&extent, entry.memo);
        let object = self.builder.persistent(&id)?;
        self.push(object, Entry::new(Extent::LEAF));
        Ok(())
    }
}
