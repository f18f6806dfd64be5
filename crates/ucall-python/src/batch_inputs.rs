//! Runs the calls of a batch where its function runs: in a thread, in a process or on the worker's
//! thread.
//!
//! The params of each call are read there; a call whose params cannot be read fails alone. Calls
//! whose arrays have the same shapes and dtypes, and whose scalar params have the same values, form
//! a group, for which the function is called once. The result of each call is written there, too,
//! so the worker only sends it.

use std::collections::VecDeque;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyList;
use smallvec::SmallVec;
use ucall_proto::arrays::Tensor;
use ucall_proto::{ResultFormat, ResultPart, RpcError};
use ucall_server::{Reservation, Token};

use crate::arguments::{self, Failure};
use crate::awaited_call::AwaitedCall;
use crate::batch_results;
use crate::batch_texts::{BatchTexts, PlacedText};
use crate::convert::{self, Scratch};
use crate::ffi::variables::in_own_variables;
use crate::ffi::{self, Slots};
use crate::interpreter_shutdown::run_untracked;
use crate::job_input::Contents;
use crate::log::Interrupted;
use crate::origin::{CallOrigin, FailedCalls};
use crate::outcomes::ResultText;
use crate::procedure::{Column, Procedure};
use crate::read_ahead::BatchInput;
use crate::report::Report;

/// The result of a call, written, or the error to reply with.
pub(crate) type Written = Result<ResultText, RpcError>;

/// The same while the texts of others are written.
type Placed = Result<(PlacedText, Vec<ResultPart>), RpcError>;

/// Writes the results and the errors of a batch's calls.
pub(crate) struct BatchWriter<'a> {
    report: &'a Report,
    pub(crate) procedure: &'a Procedure,
    reply_bytes_max: usize,
    /// Whether a Ctrl-C arrived while Python code ran.
    pub(crate) interrupted: Result<(), Interrupted>,
}

/// Calls that the function is called for at once.
pub(crate) struct Group<T> {
    pub(crate) calls: Vec<GroupCall<T>>,
    /// The argument of each parameter.
    arguments: Vec<Py<PyAny>>,
}

/// One call of a group.
pub(crate) struct GroupCall<T> {
    pub(crate) id: T,
    format: ResultFormat,
    /// Set if an async hook awaits it.
    awaited: Option<Arc<AwaitedCall>>,
    /// Who has made it, for the log.
    origin: Option<Arc<CallOrigin>>,
    /// The memory reserved for its params.
    pub(crate) reserved: Reservation,
}

/// Calls that the function has returned for.
pub(crate) struct Returned<T> {
    calls: Vec<GroupCall<T>>,
    result: PyResult<Py<PyAny>>,
}

impl<T> Returned<T> {
    /// Whether the function can run again before the results are written: it could change what it
    /// keeps, as a buffer for the results of every batch.
    pub(crate) fn is_unshared(&self, py: Python<'_>) -> bool {
        self.result.as_ref().is_ok_and(|result| convert::is_unshared(py, result))
    }
}

/// The calls of a batch that have been read.
pub(crate) struct Groups<T> {
    pub(crate) groups: VecDeque<Group<T>>,
    /// Calls whose params could not be read.
    pub(crate) failed: Vec<(T, Written)>,
}

/// The calls of a batch whose function is async: a task runs for some, and the others follow.
pub(crate) struct TaskGroups {
    pub(crate) running: Vec<GroupCall<Token>>,
    pub(crate) following: VecDeque<Group<Token>>,
}

/// Runs the calls of a batch in a thread of a pool or in a process, within
/// [`run_tracked`](crate::interpreter_shutdown::run_tracked). Each call has its outcome under its
/// `T`, in any order. Calls `on_return` once the function has returned for the last time, which
/// has the last results written.
pub(crate) fn run_inputs<T: Copy>(
    py: Python<'_>,
    writer: &mut BatchWriter<'_>,
    inputs: impl IntoIterator<Item = (T, BatchInput)>,
    scratch: &mut Scratch,
    on_return: impl FnOnce(&mut BatchWriter<'_>, Option<Returned<T>>) -> Vec<(T, Written)>,
) -> Vec<(T, Written)> {
    let read = run_untracked(py, || Groups::read(py, writer, inputs, scratch));
    let Groups { mut groups, failed: mut outcomes } = read;
    let mut on_return = Some(on_return);
    while let Some(group) = groups.pop_front() {
        let call = || run_untracked(py, || group.call(py, writer.procedure));
        let result = in_own_variables(py, call).map(Bound::unbind);
        let Group { calls, arguments } = group;
        drop(arguments);
        let returned = Some(Returned { calls, result });
        outcomes.extend(match on_return.take_if(|_| groups.is_empty()) {
            Some(on_return) => on_return(writer, returned),
            None => writer.written_of(py, returned),
        });
    }
    if let Some(on_return) = on_return {
        outcomes.extend(on_return(writer, None));
    }
    outcomes
}

impl<'a> BatchWriter<'a> {
    pub(crate) fn new(
        report: &'a Report,
        procedure: &'a Procedure,
        reply_bytes_max: usize,
    ) -> Self {
        Self { report, procedure, reply_bytes_max, interrupted: Ok(()) }
    }

    /// The error to reply with.
    fn failed(
        &mut self,
        py: Python<'_>,
        calls: FailedCalls<'_>,
        failure: Failure,
        len_max: usize,
    ) -> RpcError {
        let (error, logged) = self.report.fail(py, self.procedure, calls, failure, len_max);
        if logged.is_err() {
            self.interrupted = logged;
        }
        error
    }

    /// The outcome of each call, if the function has returned for some.
    pub(crate) fn written_of<T>(
        &mut self,
        py: Python<'_>,
        returned: Option<Returned<T>>,
    ) -> Vec<(T, Written)> {
        let Some(Returned { calls, result }) = returned else { return Vec::new() };
        self.written(py, calls, result.map(|result| result.into_bound(py)))
    }

    /// The outcome of each call of a group: its item of the list that the function returned, or the
    /// exception that it raised.
    pub(crate) fn written<T>(
        &mut self,
        py: Python<'_>,
        calls: Vec<GroupCall<T>>,
        result: PyResult<Bound<'_, PyAny>>,
    ) -> Vec<(T, Written)> {
        let count = calls.len();
        let results = result.map_err(Failure::Raised);
        match results.and_then(|result| batch_results::as_list(&result, count)) {
            Ok(results) => {
                let mut texts = BatchTexts::default();
                let placed = |(call, item): (GroupCall<T>, Bound<'_, PyAny>)| {
                    let placed = match &call.awaited {
                        Some(awaited) => Ok(kept(awaited, item)),
                        None => self.write_item(&mut texts, count == 1, item, &call),
                    };
                    (call.id, placed)
                };
                let placed = calls.into_iter().zip(results.iter()).map(placed);
                let placed: Vec<_> = placed.collect();
                let text_of = texts.finish();
                let result = |(text, parts)| ResultText { text: text_of(text), parts };
                placed.into_iter().map(|(id, placed)| (id, placed.map(result))).collect()
            }
            Err(failure) => {
                // The exception is logged once, and each caller gets the error.
                let first = calls.first().and_then(|call| call.origin.as_ref());
                let failed = FailedCalls::of(first, calls.len());
                let error = self.failed(py, failed, failure, usize::MAX);
                calls.into_iter().map(|call| (call.id, Err(error.clone()))).collect()
            }
        }
    }

    /// Writes the result of a call.
    fn write_item<T>(
        &mut self,
        texts: &mut BatchTexts,
        is_only: bool,
        item: Bound<'_, PyAny>,
        call: &GroupCall<T>,
    ) -> Placed {
        let (py, len_max, format) = (item.py(), self.reply_bytes_max, call.format);
        let placed = batch_results::item_result(item).and_then(|item| {
            let write =
                |text: &mut Vec<u8>| self.procedure.write_formatted(text, len_max, &item, format);
            texts.write(is_only, write).map_err(Failure::Result)
        });
        let calls = FailedCalls::one(call.origin.as_deref());
        placed.map_err(|failure| self.failed(py, calls, failure, len_max))
    }
}

/// Keeps the result of a call for the hook that awaits it, which gets no text.
fn kept(awaited: &AwaitedCall, item: Bound<'_, PyAny>) -> (PlacedText, Vec<ResultPart>) {
    let py = item.py();
    let result = batch_results::item_result(item);
    awaited.keep(match result {
        Ok(item) => Ok(item.unbind()),
        Err(failure) => Err(failure.into_exception(py)),
    });
    (PlacedText::Own(Vec::new()), Vec::new())
}

impl<T: Copy> Groups<T> {
    /// Reads the params of calls, and groups the calls.
    pub(crate) fn read(
        py: Python<'_>,
        writer: &mut BatchWriter<'_>,
        inputs: impl IntoIterator<Item = (T, BatchInput)>,
        scratch: &mut Scratch,
    ) -> Self {
        let (mut unstacked, mut failed) = (Vec::<UnstackedGroup<'_, T>>::new(), Vec::new());
        for (id, input) in inputs {
            let origin = input.contents.origin.clone();
            match ReadCall::read(py, writer.procedure, id, input, scratch) {
                Ok(call) => add(&mut unstacked, call, writer.procedure),
                Err(failure) => {
                    let calls = FailedCalls::one(origin.as_deref());
                    let error = writer.failed(py, calls, failure, writer.reply_bytes_max);
                    failed.push((id, Err(error)));
                }
            }
        }
        let mut groups = VecDeque::with_capacity(unstacked.len());
        for group in unstacked {
            match group.arguments(py, writer.procedure) {
                Ok(arguments) => {
                    let calls = group.calls.into_iter().map(|call| call.call).collect();
                    groups.push_back(Group { calls, arguments });
                }
                Err(error) => {
                    let calls = group.calls.into_iter().map(|call| call.call).collect();
                    failed.extend(writer.written(py, calls, Err(error)));
                }
            }
        }
        Self { groups, failed }
    }
}

impl<T> Group<T> {
    /// Calls the function.
    pub(crate) fn call<'py>(
        &self,
        py: Python<'py>,
        procedure: &Procedure,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut slots = Slots::new();
        for (index, argument) in self.arguments.iter().enumerate() {
            slots.set(index, argument.bind(py).clone());
        }
        let names = procedure.signature.as_ref().and_then(|signature| signature.names.as_ref());
        let names = names.map(|names| names.bind(py));
        ffi::call_with_slots(procedure.callable.bind(py), &slots, names)
    }
}

/// A call whose params have been read.
struct ReadCall<'py, T> {
    call: GroupCall<T>,
    /// Most functions have one or two.
    arguments: SmallVec<[Bound<'py, PyAny>; 2]>,
    /// The shape and the dtype of each argument that is stacked; none if no argument is.
    tensors: Vec<Option<Tensor>>,
}

/// Calls that form a group.
struct UnstackedGroup<'py, T> {
    calls: Vec<ReadCall<'py, T>>,
}

impl<'py, T> ReadCall<'py, T> {
    fn read(
        py: Python<'py>,
        procedure: &Procedure,
        id: T,
        BatchInput { mut contents, read }: BatchInput,
        scratch: &mut Scratch,
    ) -> Result<Self, Failure> {
        let reserved = std::mem::take(&mut contents._reserved);
        let Contents { params, binary, context, awaited, origin, waiting, permit, .. } = contents;
        drop((waiting, permit));
        let format = binary.as_ref().map(|binary| binary.results).unwrap_or_default();
        let context = context.map(|context| context.into_object(py)).transpose()?;
        let arguments: SmallVec<_> = match read {
            Some(read) => read.into_inner(py).into_iter().map(|it| it.into_bound(py)).collect(),
            None => {
                scratch.parts = binary.and_then(|binary| binary.parts);
                let taken = arguments::take(py, procedure, params.as_deref(), context, scratch);
                scratch.parts = None;
                taken?
            }
        };
        let tensors = match procedure.columns().any(|column| column == Column::Stacked) {
            true => tensors_of(procedure, &arguments)?,
            false => Vec::new(),
        };
        let call = GroupCall { id, format, awaited, origin, reserved };
        Ok(Self { call, arguments, tensors })
    }

    /// Whether the function can be called for both at once.
    fn fits(&self, other: &Self, procedure: &Procedure) -> bool {
        let scalars = self.arguments.iter().zip(&other.arguments).zip(procedure.columns());
        let mut scalars = scalars.filter(|(_, column)| *column == Column::Scalar);
        self.tensors == other.tensors && scalars.all(|((value, other), _)| are_same(value, other))
    }
}

fn tensors_of(
    procedure: &Procedure,
    arguments: &[Bound<'_, PyAny>],
) -> PyResult<Vec<Option<Tensor>>> {
    let tensors = arguments.iter().zip(procedure.columns()).map(|(argument, column)| {
        (column == Column::Stacked).then(|| convert::tensor_of(argument)).transpose()
    });
    tensors.collect()
}

/// Whether two scalar params have the same value. Values that cannot be compared differ.
fn are_same(value: &Bound<'_, PyAny>, other: &Bound<'_, PyAny>) -> bool {
    let is_equal = || value.eq(other).unwrap_or(false);
    value.is(other) || value.get_type().is(other.get_type()) && is_equal()
}

fn add<'py, T>(
    groups: &mut Vec<UnstackedGroup<'py, T>>,
    call: ReadCall<'py, T>,
    procedure: &Procedure,
) {
    let fits = |group: &&mut UnstackedGroup<'py, T>| {
        group.calls.first().is_some_and(|first| first.fits(&call, procedure))
    };
    match groups.iter_mut().find(fits) {
        Some(group) => group.calls.push(call),
        None => groups.push(UnstackedGroup { calls: vec![call] }),
    }
}

impl<'py, T> UnstackedGroup<'py, T> {
    /// The argument of each parameter. Each array is copied once, to its place in the group's.
    fn arguments(&self, py: Python<'py>, procedure: &Procedure) -> PyResult<Vec<Py<PyAny>>> {
        let tensor_of = |index: usize| self.calls.first()?.tensors.get(index)?.as_ref();
        let argument = |(index, column): (usize, Column)| {
            let items = || self.calls.iter().filter_map(|call| call.arguments.get(index));
            let argument = match column {
                Column::List => PyList::new(py, items().collect::<Vec<_>>())?.into_any(),
                Column::Scalar => items().next().map_or(py.None().into_bound(py), Bound::clone),
                Column::Stacked => {
                    convert::stack(py, tensor_of(index), &items().cloned().collect::<Vec<_>>())?
                }
            };
            Ok(argument.unbind())
        };
        procedure.columns().enumerate().map(argument).collect()
    }
}
