//! NumPy arrays as params: from `.npy` files in base64, and from lists of numbers.
//!
//! The memory of an array is filled straight from the text of the request, once its shape has been
//! checked against the bytes that are there. NumPy allocates that of small arrays; that of large
//! ones is kept for later calls.

use std::fmt::Write;
use std::mem::MaybeUninit;
use std::sync::Arc;

use bytes::Bytes;
use pyo3::exceptions::{PyImportError, PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyList, PyString};
use ucall_proto::arrays::npy::{self, NpyError};
use ucall_proto::arrays::{DType, ItemFault, Kind, NestedLists, Tensor};
use ucall_proto::json::{Reader, ValueKind};
use ucall_proto::{FRAME_ALIGNMENT, MemoryBudget, Parts};

use super::array_results::unsupported;
use super::parts::PartMemory;
use super::{ConversionFault, Input, base64, write};
use crate::ffi::{self, NumPy};

type Built<'py> = Result<Bound<'py, PyAny>, ConversionFault>;

/// The arrays of one annotation.
///
/// A `.npy` of another dtype than the annotation has is converted where NumPy's casting is safe
/// (`int32` to `float64`), else refused (`float64` to `float32`). A list has no dtype: its ints fit
/// every integer dtype with their range, and its numbers every float and complex dtype with their
/// range. Bools fit only bool.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Debug)]
pub(crate) struct ArrayType {
    /// The number of dimensions; `None` for any.
    dimensions: Option<usize>,
    /// The first that fits is used. Empty for any dtype.
    wanted: Vec<Wanted>,
    /// Its name in messages.
    type_name: String,
}

/// A dtype of an annotation, or several.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Exactly(DType),
    /// Those of these kinds, as of `numpy.floating`.
    Kinds {
        kinds: &'static [Kind],
        name: &'static str,
    },
}

/// NumPy's abstract types.
const ABSTRACT: [(&str, &[Kind]); 7] = [
    ("number", &[Kind::Int, Kind::UInt, Kind::Float, Kind::Complex]),
    ("integer", &[Kind::Int, Kind::UInt]),
    ("signedinteger", &[Kind::Int]),
    ("unsignedinteger", &[Kind::UInt]),
    ("inexact", &[Kind::Float, Kind::Complex]),
    ("floating", &[Kind::Float]),
    ("complexfloating", &[Kind::Complex]),
];

/// Items up to this length are copied out of the memory of a document's parts.
const COPIED_BYTES_MAX: usize = 4096;

/// What a list becomes when no dtype is wanted and it has no integers.
const DOUBLE: DType = DType::native(Kind::Float, 8);
const BOOL: DType = DType::native(Kind::Bool, 1);

#[pymethods]
impl ArrayType {
    /// `wanted` has dtypes, and the names of NumPy's abstract types.
    #[new]
    #[pyo3(signature = (dimensions=None, wanted=Vec::new()))]
    fn new(dimensions: Option<usize>, wanted: Vec<Bound<'_, PyAny>>) -> PyResult<Self> {
        let wanted = wanted.iter().map(Wanted::from_object).collect::<PyResult<Vec<_>>>()?;
        let mut type_name = dimensions.map_or_else(String::new, |count| format!("{count}-d "));
        type_name.push_str("array");
        for (index, wanted) in wanted.iter().enumerate() {
            let separator = if index == 0 { " of " } else { " or " };
            let _ = write!(type_name, "{separator}{}", wanted.name());
        }
        type_name.push_str(" (.npy in base64, or nested lists)");
        Ok(Self { dimensions, wanted, type_name })
    }

    /// Its name in messages.
    #[getter]
    pub(super) fn type_name(&self) -> &str {
        &self.type_name
    }

    /// The names of the dtypes, and of the abstract types.
    #[getter]
    fn dtypes(&self) -> Vec<String> {
        self.wanted.iter().map(|wanted| wanted.name()).collect()
    }

    /// The number of dimensions; `None` for any.
    #[getter]
    fn dimensions(&self) -> Option<usize> {
        self.dimensions
    }

    /// Builds the array of a `.npy`, in a bytearray, or of a list.
    ///
    /// Raises:
    ///     ValueError: Its dtype or its dimensions do not fit.
    fn decode<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        let built = if value.is_instance_of::<PyByteArray>() {
            ffi::with_buffer(value, |file| self.of_file(py, file))?
        } else if value.is_instance_of::<PyList>() {
            let mut text = Vec::new();
            write(&mut text, usize::MAX, value)
                .and_then(|()| self.of_list(py, &mut Reader::new(&text)))
        } else {
            let kind = py.import("ucall.types.messages")?.getattr("kind_of")?.call1((value,))?;
            Err(self.mismatch(kind.cast::<PyString>()?.to_str()?))
        };
        built.map_err(|fault| match fault.describe("") {
            Ok(message) => PyValueError::new_err(message.trim_start_matches(": ").to_owned()),
            Err(error) => *error,
        })
    }
}

/// The array of a `.npy` file, in memory of its own.
///
/// Raises:
///     ValueError: The data is not a `.npy`, is pickled, has another dtype than bool or a number,
///         or its length does not match its shape.
#[pyfunction]
pub(crate) fn decode_array<'py>(data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = data.py();
    ffi::with_buffer(data, |file| {
        let (tensor, items) = npy::split(file).map_err(invalid)?;
        copied(py, &tensor, items)
    })?
}

/// The array of a `.npy` that is a part. Its readers share its memory, unless it is small.
pub(crate) fn part_array<'py>(
    py: Python<'py>,
    parts: &Arc<Parts>,
    index: usize,
) -> PyResult<Bound<'py, PyAny>> {
    let bytes = parts.get(index).map_or(&[][..], |part| part.bytes);
    let (tensor, items) = npy::split(bytes).map_err(invalid)?;
    let memory = || PartMemory::new(py, parts.clone(), index);
    in_place(py, &tensor, items, COPIED_BYTES_MAX, memory)
}

/// What an array of this dtype and shape is.
///
/// # Errors
/// Arrays of that dtype are not sent, or there is no such shape.
pub(crate) fn tensor_like(dtype: &Bound<'_, PyAny>, shape: Vec<usize>) -> PyResult<Tensor> {
    let found = dtype_of(dtype)?;
    let dtype = found.ok_or_else(|| PyTypeError::new_err(unsupported(&dtype.to_string())))?;
    let tensor = Tensor { dtype, shape, is_fortran: false };
    match tensor.bytes() {
        Some(_) => Ok(tensor),
        None => Err(PyValueError::new_err("expected the shape of an array that fits into memory")),
    }
}

/// An array over memory for its items, whatever that has.
pub(crate) fn array_in<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    memory: Bytes,
) -> PyResult<Bound<'py, PyAny>> {
    let (start, len) = (memory.as_ptr().cast_mut(), memory.len());
    let parts = Arc::new(Parts::new(memory, vec![(0..len, None)]));
    let owner = PartMemory::new(py, parts, 0)?.into_any();
    // SAFETY: the owner holds the memory, which has that length and was made for this array.
    unsafe { NumPy::get(py)?.array_over(tensor, start, owner) }
}

/// An array over the memory of a part, or a copy of one of at most `copied_max` bytes, whose memory
/// is aligned and does not keep that of the others. The length of the items is that of the tensor.
fn in_place<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    items: &[u8],
    copied_max: usize,
    memory: impl FnOnce() -> PyResult<Bound<'py, PartMemory>>,
) -> PyResult<Bound<'py, PyAny>> {
    if items.len() <= copied_max {
        return copied(py, tensor, items);
    }
    let owner = memory()?.into_any();
    // SAFETY: the owner holds the memory of the parts, in which the items are. A part of a request
    // was taken, so nothing else has a use for it; one of a reply is read by Python code and by the
    // client while it is attached.
    unsafe { NumPy::get(py)?.array_over(tensor, items.as_ptr().cast_mut(), owner) }
}

/// As [`NumPy::new_array`], in memory of earlier messages, which is kept for later ones.
#[cold]
fn in_kept_memory<'py>(
    py: Python<'py>,
    budget: &MemoryBudget,
    tensor: &Tensor,
    fill: impl FnOnce(&mut [MaybeUninit<u8>]) -> bool,
) -> PyResult<Option<Bound<'py, PyAny>>> {
    let len = tensor.bytes().unwrap_or(0);
    let memory = budget.pool().allocate(len.saturating_add(FRAME_ALIGNMENT));
    let mut memory = memory.map_err(|error| PyMemoryError::new_err(error.to_string()))?;
    memory.resize(memory.as_ptr().align_offset(FRAME_ALIGNMENT), 0);
    let range = memory.len()..memory.len() + len;
    let Some(target) = memory.spare_capacity_mut().get_mut(..len) else { return Ok(None) };
    if !fill(target) {
        return Ok(None);
    }
    // SAFETY: there is room for them, and `fill` has written all of them.
    unsafe { memory.set_len(range.end) };
    let parts = Arc::new(Parts::new(budget.pool().share(memory), vec![(range, None)]));
    let items = parts.get(0).map_or(&[][..], |part| part.bytes);
    let memory = || PartMemory::taken(py, parts.clone(), 0);
    in_place(py, tensor, items, COPIED_BYTES_MAX, memory).map(Some)
}

fn invalid(error: NpyError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// An array of these items.
fn copied<'py>(py: Python<'py>, tensor: &Tensor, items: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    let made = NumPy::get(py)?.new_array(py, tensor, |target| ffi::copy_to(target, items))?;
    made.ok_or_else(|| PyValueError::new_err("the .npy has another length than its items"))
}

impl Wanted {
    fn from_object(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(name) = object.cast::<PyString>() {
            let name = name.to_str()?;
            let found = ABSTRACT.iter().find(|(abstract_name, _)| *abstract_name == name);
            let (name, kinds) =
                found.ok_or_else(|| PyTypeError::new_err(format!("unknown dtypes {name:?}")))?;
            return Ok(Self::Kinds { kinds, name });
        }
        dtype_of(object)?
            .map(Self::Exactly)
            .ok_or_else(|| PyTypeError::new_err(unsupported(&object.to_string())))
    }

    fn name(self) -> String {
        match self {
            Self::Exactly(dtype) => dtype.name(),
            Self::Kinds { name, .. } => name.to_owned(),
        }
    }

    fn is_exactly(self, dtype: DType) -> bool {
        match self {
            Self::Exactly(wanted) => dtype == wanted,
            Self::Kinds { kinds, .. } => kinds.contains(&dtype.kind),
        }
    }

    fn exact(self) -> Option<DType> {
        match self {
            Self::Exactly(dtype) => Some(dtype),
            Self::Kinds { .. } => None,
        }
    }
}

/// What a dtype object is, if arrays of it are sent.
fn dtype_of(dtype: &Bound<'_, PyAny>) -> PyResult<Option<DType>> {
    let descr: String = dtype.getattr("str")?.extract()?;
    match ffi::is_bfloat(dtype)? {
        true => Ok(Some(DType::native(Kind::BFloat, 2))),
        false => Ok(DType::of_descr(&descr)),
    }
}

impl ArrayType {
    /// Reads the next value.
    pub(super) fn read<'py>(&self, input: &mut Input<'_, '_, 'py>) -> Built<'py> {
        match input.reader.kind() {
            ValueKind::String => {
                let (py, text) = (input.py, input.reader.string());
                let budget = input.scratch.budget_for(text.raw().len());
                self.of_base64(py, input.unescaped(text), budget.as_ref())
            }
            ValueKind::Array => self.of_list(input.py, &mut input.reader),
            kind => match input.part_index() {
                Some(index) => self.of_part(input, index),
                None => Err(self.mismatch(input.kind_name(kind))),
            },
        }
    }

    /// Decodes a file straight into the memory of its array.
    fn of_base64<'py>(
        &self,
        py: Python<'py>,
        text: &[u8],
        budget: Option<&MemoryBudget>,
    ) -> Built<'py> {
        let no_base64 = || self.mismatch("a str that is no base64");
        let bytes = base64::decoded_len(text).ok_or_else(no_base64)?;
        let start = base64::Start::decode(text, base64::START_BYTES).ok_or_else(no_base64)?;
        let header_bytes = npy::header_bytes(start.bytes()).map_err(|error| self.no_file(error))?;
        let start = match header_bytes > start.bytes().len() {
            true => base64::Start::decode(text, header_bytes).ok_or_else(no_base64)?,
            false => start,
        };
        let (header, items) = match start.bytes().split_at_checked(header_bytes) {
            Some(parts) => parts,
            None => (start.bytes(), &[][..]),
        };
        let tensor = npy::parse(header).map_err(|error| self.no_file(error))?;
        let have = bytes.saturating_sub(header_bytes);
        npy::check_length(&tensor, have).map_err(|error| self.no_file(error))?;
        let target_dtype = self.fit(&tensor)?;
        let fill = |target: &mut [MaybeUninit<u8>]| {
            let Some((first, rest)) = target.split_at_mut_checked(items.len()) else {
                return false;
            };
            ffi::copy_to(first, items) && base64::decode_into(start.rest(text), rest)
        };
        let array = match budget {
            Some(budget) => in_kept_memory(py, budget, &tensor, fill),
            None => NumPy::get(py)?.new_array(py, &tensor, fill),
        };
        let array = array.map_err(|error| self.not_made(py, error))?;
        self.converted(array.ok_or_else(no_base64)?, target_dtype)
    }

    /// An array over the memory of a part, or a copy of a small one, whose memory is aligned and
    /// does not keep that of the others.
    fn of_part<'py>(&self, input: &mut Input<'_, '_, 'py>, index: usize) -> Built<'py> {
        input.take_part(index, |py, parts, part| {
            let (tensor, items) = match part.tensor {
                Some(tensor) => {
                    npy::check_length(tensor, part.bytes.len())
                        .map_err(|error| self.no_file(error))?;
                    (tensor.clone(), part.bytes)
                }
                None => npy::split(part.bytes).map_err(|error| self.no_file(error))?,
            };
            let target_dtype = self.fit(&tensor)?;
            let memory = || PartMemory::taken(py, parts.clone(), index);
            let copied_max = if parts.is_of_batch() { 0 } else { COPIED_BYTES_MAX };
            let array = in_place(py, &tensor, items, copied_max, memory);
            let array = array.map_err(|error| self.not_made(py, error))?;
            self.converted(array, target_dtype)
        })
    }

    fn of_file<'py>(&self, py: Python<'py>, file: &[u8]) -> Built<'py> {
        let (tensor, items) = npy::split(file).map_err(|error| self.no_file(error))?;
        let target_dtype = self.fit(&tensor)?;
        let array = copied(py, &tensor, items);
        let array = array.map_err(|error| self.not_made(py, error))?;
        self.converted(array, target_dtype)
    }

    /// Whether arrays with this dtype and shape are taken: the dtype to convert them to, if that is
    /// another one.
    fn fit(&self, tensor: &Tensor) -> Result<Option<DType>, ConversionFault> {
        let dtype = tensor.dtype;
        let target = if self.wanted.is_empty() || self.wanted.iter().any(|it| it.is_exactly(dtype))
        {
            None
        } else {
            let mut exact = self.wanted.iter().filter_map(|wanted| wanted.exact());
            Some(
                exact
                    .find(|wanted| dtype.fits_in(*wanted))
                    .ok_or_else(|| self.unsafe_cast(dtype))?,
            )
        };
        self.check_dimensions(tensor.shape.len())?;
        Ok(target)
    }

    fn check_dimensions(&self, count: usize) -> Result<(), ConversionFault> {
        match self.dimensions.is_none_or(|wanted| wanted == count) {
            true => Ok(()),
            false => Err(self.mismatch(&format!("one of {count} dimensions"))),
        }
    }

    fn converted<'py>(&self, array: Bound<'py, PyAny>, target: Option<DType>) -> Built<'py> {
        let Some(target) = target else { return Ok(array) };
        let py = array.py();
        let dtype = NumPy::get(py)?.dtype(py, target)?;
        Ok(array.call_method1(pyo3::intern!(py, "astype"), (dtype,))?)
    }

    fn of_list<'py>(&self, py: Python<'py>, reader: &mut Reader<'_>) -> Built<'py> {
        let lists = NestedLists::outline(reader);
        if let Some(other) = lists.other {
            return Err(self.mismatch(&format!("a list with {other} in it")));
        }
        let Some(dtype) = self.dtype_of_list(&lists)? else {
            let has =
                [(lists.has_bools, "bool"), (lists.has_floats, "float"), (lists.has_ints, "int")];
            let found = has.iter().filter(|(is_there, _)| *is_there).map(|(_, name)| *name);
            let found = found.collect::<Vec<_>>().join(" and ");
            return Err(self.mismatch(&format!("a list of {found}")));
        };
        let Some(shape) = lists.shape.clone() else {
            return Err(self.fault("the lists have an inhomogeneous shape: some differ in length"));
        };
        let is_written = dtype.item_bytes <= 8 || dtype.kind == Kind::Complex;
        let written = if is_written && dtype.item_bytes <= 16 { dtype } else { DOUBLE };
        let count = shape.len();
        let tensor = Tensor { dtype: written, shape, is_fortran: false };
        let fill = |target: &mut [u8]| lists.write_items(written, target);
        let (array, filled) =
            NumPy::get(py)?.zeros(py, &tensor, fill).map_err(|error| self.not_made(py, error))?;
        filled.unwrap_or(Err(ItemFault::Unsupported)).map_err(|fault| self.fault(fault))?;
        self.check_dimensions(count)?;
        self.converted(array, (written != dtype).then_some(dtype))
    }

    /// The first wanted dtype that the items of a list fit.
    fn dtype_of_list(&self, lists: &NestedLists<'_>) -> Result<Option<DType>, ConversionFault> {
        if lists.has_bools && (lists.has_ints || lists.has_floats) {
            return Ok(None);
        }
        let is_empty = !lists.has_bools && !lists.has_ints && !lists.has_floats;
        let own = || match (lists.has_bools, lists.has_ints && !lists.has_floats) {
            (true, _) => Ok(BOOL),
            (_, true) => lists.integer_dtype().map_err(|fault| self.fault(fault)),
            _ => Ok(DOUBLE),
        };
        if self.wanted.is_empty() {
            return own().map(Some);
        }
        for wanted in &self.wanted {
            match *wanted {
                Wanted::Exactly(dtype) => {
                    let fits = is_empty
                        || match dtype.kind {
                            Kind::Bool => lists.has_bools,
                            Kind::Int | Kind::UInt => !lists.has_bools && !lists.has_floats,
                            Kind::Float | Kind::Complex | Kind::BFloat => !lists.has_bools,
                        };
                    if fits {
                        return Ok(Some(dtype));
                    }
                }
                Wanted::Kinds { kinds, name } => {
                    if is_empty && matches!(name, "integer" | "signedinteger") {
                        return Ok(Some(DType::native(Kind::Int, 8)));
                    }
                    let dtype = own()?;
                    if kinds.contains(&dtype.kind) {
                        return Ok(Some(dtype));
                    }
                }
            }
        }
        Ok(None)
    }

    #[cold]
    fn mismatch(&self, got: &str) -> ConversionFault {
        ConversionFault::value(format!("expected {}, got {got}", self.type_name))
    }

    #[cold]
    fn fault(&self, problem: impl std::fmt::Display) -> ConversionFault {
        ConversionFault::value(format!("expected {}: {problem}", self.type_name))
    }

    #[cold]
    fn no_file(&self, error: NpyError) -> ConversionFault {
        self.fault(error)
    }

    /// Why NumPy makes no such array: before 2.0 it has 32 dimensions at most, and a dtype may be
    /// that of a package which is not installed.
    #[cold]
    fn not_made(&self, py: Python<'_>, error: PyErr) -> ConversionFault {
        if error.is_instance_of::<PyValueError>(py) {
            return self.fault(NpyError::TooLarge(error.value(py).to_string()));
        }
        let missing = error.value(py).getattr_opt("name").ok().flatten();
        match missing.and_then(|name| name.extract::<String>().ok()) {
            Some(name) if name == "ml_dtypes" && error.is_instance_of::<PyImportError>(py) => self
                .fault("bfloat16 needs ml_dtypes, which the server lacks: pip install ml-dtypes"),
            _ => error.into(),
        }
    }

    /// What the caller and what the function can do about an array of another dtype.
    #[cold]
    fn unsafe_cast(&self, dtype: DType) -> ConversionFault {
        let mut got = format!("one of {}; ", dtype.name());
        if let Some(exact) = self.wanted.iter().find_map(|wanted| wanted.exact()) {
            let _ = write!(got, "send it after .astype('{}'), or ", exact.name());
        }
        got.push_str("annotate the parameter as numpy.ndarray, which takes any dtype");
        self.mismatch(&got)
    }
}
