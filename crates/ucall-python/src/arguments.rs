//! Fills the arguments of a call: params into their slots, then the defaults.

use pyo3::exceptions::PySystemError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::{ConversionFault, Input, Scratch};
use crate::errors;
use crate::ffi::{self, Slots};
use crate::invalid_params::{self, missing, named, too_many};
use crate::procedure::{Param, Procedure, Signature};

/// Why there is no result.
pub(crate) enum Failure {
    /// The params do not match the signature.
    Params(ConversionFault),
    /// The result cannot be written as JSON.
    Result(ConversionFault),
    /// An item cannot be written as JSON.
    Item(ConversionFault),
    /// The function raised.
    Raised(PyErr),
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

impl Failure {
    /// What code that calls the function gets.
    #[cold]
    pub(crate) fn into_exception(self, py: Python<'_>) -> PyErr {
        match self {
            Self::Raised(error) => error,
            Self::Params(ConversionFault::Raised(error))
            | Self::Result(ConversionFault::Raised(error))
            | Self::Item(ConversionFault::Raised(error)) => *error,
            Self::Params(fault) => errors::rpc_exception(py, &errors::invalid_params(fault)),
            Self::Result(fault) => errors::unwritable(fault, "result"),
            Self::Item(fault) => errors::unwritable(fault, "item"),
        }
    }
}

type Filled = Result<(), ConversionFault>;

/// Calls `procedure` with `params`, the text of an array or an object. A function that takes a
/// `ucall.Context` gets `context`.
#[inline(always)]
pub(crate) fn call<'py>(
    py: Python<'py>,
    procedure: &Procedure,
    params: Option<&[u8]>,
    context: Option<Bound<'py, PyAny>>,
    scratch: &mut Scratch,
) -> Result<Bound<'py, PyAny>, Failure> {
    let callable = procedure.callable.bind(py);
    match &procedure.signature {
        Some(signature) => {
            let input = Input::new(py, params.unwrap_or(b"[]"), scratch);
            call_by_signature(callable, signature, context, input)
        }
        None => call_without_signature(callable, procedure, params, context, scratch),
    }
}

/// Returns the arguments that `procedure` would be called with, all by position.
pub(crate) fn take<'py, T: FromIterator<Bound<'py, PyAny>>>(
    py: Python<'py>,
    procedure: &Procedure,
    params: Option<&[u8]>,
    context: Option<Bound<'py, PyAny>>,
    scratch: &mut Scratch,
) -> Result<T, Failure> {
    let mut input = Input::new(py, params.unwrap_or(b"[]"), scratch);
    let signature = procedure.signature.as_ref().ok_or_else(|| {
        Failure::Params(ConversionFault::value("unexpected, the function has no signature"))
    })?;
    let mut arguments = Arguments::new(signature, context);
    if let Err(fault) = arguments.fill(signature, &mut input) {
        drop(arguments);
        return Err(Failure::Params(invalid_params::all_faults(signature, input, fault)));
    }
    Ok(arguments.slots.split_off(0))
}

#[inline(always)]
fn call_by_signature<'py>(
    callable: &Bound<'py, PyAny>,
    signature: &Signature,
    context: Option<Bound<'py, PyAny>>,
    mut input: Input<'_, '_, 'py>,
) -> Result<Bound<'py, PyAny>, Failure> {
    let mut arguments = Arguments::new(signature, context);
    if let Err(fault) = arguments.fill(signature, &mut input) {
        drop(arguments);
        return Err(Failure::Params(invalid_params::all_faults(signature, input, fault)));
    }
    arguments.call(callable, signature).map_err(Failure::Raised)
}

/// The arguments of one call, while they are read.
struct Arguments<'py> {
    slots: Slots<'py>,
    /// For `*args`.
    rest: Vec<Bound<'py, PyAny>>,
    /// For `**kwargs`.
    extra: Option<Bound<'py, PyDict>>,
}

impl<'py> Arguments<'py> {
    /// No arguments but the context.
    #[inline]
    fn new(signature: &Signature, context: Option<Bound<'py, PyAny>>) -> Self {
        let mut arguments = Self { slots: Slots::new(), rest: Vec::new(), extra: None };
        if let (Some(index), Some(context)) = (signature.context, context) {
            arguments.slots.set(index, context);
        }
        arguments
    }

    #[inline]
    fn fill(&mut self, signature: &Signature, input: &mut Input<'_, '_, 'py>) -> Filled {
        match input.reader.enter_object() {
            true => self.fill_by_name(signature, input)?,
            false => self.fill_by_position(signature, input)?,
        }
        match self.slots.are_set(signature.params.len()) {
            true => Ok(()),
            false => self.fill_defaults(input.py, signature),
        }
    }

    #[inline(never)]
    fn fill_defaults(&mut self, py: Python<'py>, signature: &Signature) -> Filled {
        for (index, param) in signature.params.iter().enumerate() {
            if !self.slots.is_set(index) {
                let default = param.default.as_ref().ok_or_else(|| missing(param))?;
                self.slots.set(index, default.clone_ref(py).into_bound(py));
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn fill_by_name(&mut self, signature: &Signature, input: &mut Input<'_, '_, 'py>) -> Filled {
        let mut index = 0;
        // Callers mostly keep to the signature's order.
        while let Some(param) = signature.params.get(index)
            && param.by_name
            && input.reader.skip_text(&param.key)
        {
            let value = input.read(&param.convert).map_err(|fault| named(fault, param))?;
            self.slots.set(index, value);
            index += 1;
            if !input.reader.skip_text(b",") {
                break;
            }
            input.reader.skip_text(b" ");
        }
        match input.reader.skip_text(b"}") {
            true => Ok(()),
            false => self.fill_by_any_name(signature, index, input),
        }
    }

    /// Fills in the members that are left, in any order.
    #[inline(never)]
    fn fill_by_any_name(
        &mut self,
        signature: &Signature,
        mut next: usize,
        input: &mut Input<'_, '_, 'py>,
    ) -> Filled {
        while let Some(key) = input.reader.next_key() {
            let Some(index) = signature.find(input.unescaped(key), next) else {
                self.take_extra(signature, &key.unescaped(), input)?;
                continue;
            };
            next = index + 1;
            let Some(param) = signature.params.get(index) else { continue };
            let value = input.read(&param.convert).map_err(|fault| named(fault, param))?;
            // Of two equal keys the last value counts.
            self.slots.set(index, value);
        }
        Ok(())
    }

    #[inline(never)]
    fn fill_by_position(
        &mut self,
        signature: &Signature,
        input: &mut Input<'_, '_, 'py>,
    ) -> Filled {
        let mut index = 0;
        input.reader.enter();
        while input.reader.next_item() {
            let position = signature.position_of(index);
            match signature.params.get(position).filter(|_| position < signature.positional) {
                Some(param) => {
                    let value = input.read(&param.convert).map_err(|fault| named(fault, param))?;
                    self.slots.set(position, value);
                }
                None => self.take_rest(signature, index, input)?,
            }
            index += 1;
        }
        Ok(())
    }

    /// Takes a surplus positional param into `*args`.
    fn take_rest(
        &mut self,
        signature: &Signature,
        index: usize,
        input: &mut Input<'_, '_, 'py>,
    ) -> Filled {
        let Some(convert) = &signature.rest else {
            return Err(too_many(signature.positional_params()).at_index(index));
        };
        self.rest.push(input.read(convert).map_err(|fault| fault.at_index(index))?);
        Ok(())
    }

    /// Takes a param of an unknown name into `**kwargs`.
    fn take_extra(
        &mut self,
        signature: &Signature,
        key: &[u8],
        input: &mut Input<'_, '_, 'py>,
    ) -> Filled {
        let Some(convert) = signature.extra.as_ref().and_then(|extra| extra.of(key)) else {
            return Err(signature.unexpected(key).at_key(key));
        };
        let py = input.py;
        let extra = self.extra.get_or_insert_with(|| PyDict::new(py));
        let value = input.read(convert).map_err(|fault| fault.at_key(key))?;
        Ok(extra.set_item(ffi::text(py, key)?, value)?)
    }

    #[inline(always)]
    fn call(
        &mut self,
        callable: &Bound<'py, PyAny>,
        signature: &Signature,
    ) -> PyResult<Bound<'py, PyAny>> {
        if !self.rest.is_empty() || self.extra.is_some() {
            return self.call_with_surplus(callable, signature);
        }
        let names = signature.names.as_ref().map(|names| names.bind(callable.py()));
        ffi::call_with_slots(callable, &self.slots, names)
    }

    #[inline(never)]
    fn call_with_surplus(
        &mut self,
        callable: &Bound<'py, PyAny>,
        signature: &Signature,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.slots.insert_many(signature.positional, std::mem::take(&mut self.rest));
        let names = signature.names.as_ref().map(|names| names.bind(callable.py()));
        let Some(extra) = self.extra.take() else {
            return ffi::call_with_slots(callable, &self.slots, names);
        };
        // Named params leave nothing for `*args`, so keyword-only slots are the last ones.
        let named: Vec<_> = self.slots.split_off(signature.positional);
        for (name, value) in names.into_iter().flatten().zip(named) {
            extra.set_item(name, value)?;
        }
        ffi::call_with_keywords(callable, &self.slots, &extra)
    }
}

impl Signature {
    /// The slot of a param that is given by position. The context is no param, so the params after
    /// it move up by one slot.
    #[inline(always)]
    pub(crate) fn position_of(&self, index: usize) -> usize {
        index + usize::from(self.context.is_some_and(|it| it <= index))
    }

    /// Finds a parameter by name, at place `hint` first: callers mostly keep to the signature's
    /// order.
    #[inline]
    pub(crate) fn find(&self, name: &[u8], hint: usize) -> Option<usize> {
        let is_it = |param: &Param| param.by_name && param.name.as_bytes() == name;
        if self.params.get(hint).is_some_and(is_it) {
            return Some(hint);
        }
        self.params.iter().position(is_it)
    }
}

/// Calls a hook, or a callable without a signature: an array by position, an object by name.
#[inline(never)]
fn call_without_signature<'py>(
    callable: &Bound<'py, PyAny>,
    procedure: &Procedure,
    params: Option<&[u8]>,
    context: Option<Bound<'py, PyAny>>,
    scratch: &mut Scratch,
) -> Result<Bound<'py, PyAny>, Failure> {
    if let Some(hooked) = &procedure.hooked {
        let no_context = || PySystemError::new_err("a call with hooks has no context");
        let (context, parts) = (context.ok_or_else(no_context)?, scratch.parts.as_ref());
        return Ok((hooked.call)(callable, hooked, context, parts)?);
    }
    call_with_any(callable, params, scratch)
}

#[cold]
fn call_with_any<'py>(
    callable: &Bound<'py, PyAny>,
    params: Option<&[u8]>,
    scratch: &mut Scratch,
) -> Result<Bound<'py, PyAny>, Failure> {
    let mut input = Input::new(callable.py(), params.unwrap_or(b"[]"), scratch);
    let signature = Signature {
        rest: Some(crate::convert::Convert::Any),
        extra: Some(crate::procedure::Extra::Any(crate::convert::Convert::Any)),
        ..Signature::default()
    };
    let mut arguments = Arguments::new(&signature, None);
    arguments.fill(&signature, &mut input).map_err(Failure::Params)?;
    arguments.call(callable, &signature).map_err(Failure::Raised)
}
