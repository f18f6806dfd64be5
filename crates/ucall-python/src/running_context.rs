//! The context of a call while it runs on the worker's thread.
//!
//! Most such calls leave nothing that refers to their context. So its memory serves the next one,
//! and it copies the texts of the request only if code asks for one, or keeps the context.

use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use pyo3::prelude::*;
use ucall_proto::Call;
use ucall_server::{Caller, Transport};

use crate::context::{Context, ContextParts};
use crate::ffi::{self, ReusedObject};

/// The context of a call that runs on the worker's thread, and borrows the texts of its request.
pub(crate) struct RunningContext<'py, 'call> {
    object: ManuallyDrop<Bound<'py, Context>>,
    call: PhantomData<&'call ()>,
}

/// A context that nothing refers to any more.
static REUSED: ReusedObject<Context> = ReusedObject::none();

impl<'py, 'call> RunningContext<'py, 'call> {
    /// In the memory of an earlier context, if there is any.
    #[inline(always)]
    pub(crate) fn new(
        py: Python<'py>,
        call: &Call<'call>,
        caller: &Caller,
        parts: ContextParts,
    ) -> PyResult<Self> {
        let mut object = match REUSED.take(py) {
            Some(object) => object,
            None => Bound::new(py, Context::empty(Transport::Tcp))?,
        };
        if let Some(context) = ffi::sole_value(&mut object) {
            // SAFETY: the texts outlive the value that is returned. Its `drop` keeps them, and its
            // `end` does unless it clears them.
            unsafe { context.begin_borrowing(call, caller, parts) };
        }
        Ok(Self { object: ManuallyDrop::new(object), call: PhantomData })
    }

    pub(crate) fn object(&self) -> &Bound<'py, Context> {
        &self.object
    }

    /// Ends the call. Keeps the memory of the context for a later one, if nothing refers to the
    /// context any more and the call leaves nothing to do. Otherwise it returns the context.
    #[inline(always)]
    pub(crate) fn end(self) -> Option<Bound<'py, Context>> {
        let mut running = ManuallyDrop::new(self);
        // SAFETY: it is taken once, and `running` is not dropped.
        let mut object = unsafe { ManuallyDrop::take(&mut running.object) };
        if let Some(context) = ffi::sole_value(&mut object)
            && context.clear_unused()
        {
            REUSED.keep(object);
            return None;
        }
        object.get().keep(object.py());
        Some(object)
    }
}

impl Drop for RunningContext<'_, '_> {
    #[inline]
    fn drop(&mut self) {
        self.object.get().keep(self.object.py());
        // SAFETY: it is dropped once, as `end` does not drop `self`.
        unsafe { ManuallyDrop::drop(&mut self.object) };
    }
}
