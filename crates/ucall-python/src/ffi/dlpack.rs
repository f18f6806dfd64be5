//! Tensors of other libraries, by the protocol DLPack.
//!
//! `__dlpack__` returns a capsule with a tensor, whose memory stays in place while the capsule is
//! alive. Its destructor releases the tensor, because no consumer renames the capsule.

use std::ffi::{CStr, c_void};

use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use ucall_proto::arrays::{DIMENSIONS_MAX, DType, Kind, Tensor};

use super::type_name;

/// The name of a capsule that no consumer has taken.
const CAPSULE: &CStr = c"dltensor";
/// The name of such a capsule since version 1.
const VERSIONED_CAPSULE: &CStr = c"dltensor_versioned";
const MAJOR_VERSION: u32 = 1;

/// The devices whose memory is that of the processor: itself, and memory that it pins for others.
const HOST_DEVICES: [i32; 3] = [1, 3, 11];

const ON_A_DEVICE: &str =
    "it is in the memory of a device: send it after .cpu(), in JAX numpy.asarray(…)";

/// A `DLTensor`, with which a `DLManagedTensor` begins.
#[repr(C)]
struct Fields {
    data: *mut c_void,
    device: i32,
    device_number: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    /// In items; null if the items lie one after another in the order of C.
    strides: *const i64,
    byte_offset: u64,
}

/// A `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    fields: Fields,
}

/// Whether objects of a class are tensors.
pub(crate) fn is_tensor(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    object.get_type().hasattr(intern!(object.py(), "__dlpack__"))
}

/// Calls `read` with a tensor and the bytes of its items in the order of C, and with what keeps
/// them in place unless they are a copy. Others raise `TypeError`.
pub(crate) fn with_dlpack<T>(
    object: &Bound<'_, PyAny>,
    read: impl FnOnce(Tensor, &[u8], Option<&Bound<'_, PyAny>>) -> T,
) -> PyResult<T> {
    let capsule = export(object).map_err(|error| with_name(error, object))?;
    let fields = fields_of(&capsule)?;
    let tensor = fields.tensor().ok_or_else(|| {
        let Fields { code, bits, lanes, .. } = fields;
        let name = type_name(object);
        let dtype = format!("items of code {code}, {bits} bits and {lanes} lanes");
        PyTypeError::new_err(format!("{name} has {dtype}: only bool and numbers can be sent"))
    })?;
    let len = tensor.bytes().filter(|len| *len == 0 || !fields.data.is_null());
    let Some(len) = len else { return Err(PyTypeError::new_err("a tensor without memory")) };
    if len == 0 {
        return Ok(read(tensor, &[], None));
    }
    // SAFETY: a tensor that is not empty has its first item there.
    let start = unsafe { fields.data.cast::<u8>().add(fields.byte_offset as usize) };
    Ok(match fields.strides() {
        Some(strides) if !is_contiguous(&tensor, strides) => {
            let mut items = Vec::with_capacity(len);
            // SAFETY: the tensor says where each of its items is.
            unsafe {
                copy_strided(&mut items, start, &tensor.shape, strides, tensor.dtype.item_bytes)
            };
            read(tensor, &items, None)
        }
        _ => {
            // SAFETY: the items lie one after another. No Python code runs while they are
            // borrowed.
            let items = unsafe { std::slice::from_raw_parts(start, len) };
            read(tensor, items, Some(capsule.as_any()))
        }
    })
}

/// The capsule of a tensor in the memory of the processor.
fn export<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCapsule>> {
    let (py, method) = (object.py(), intern!(object.py(), "__dlpack__"));
    let (device, _): (i32, i32) =
        object.call_method0(intern!(py, "__dlpack_device__"))?.extract()?;
    if !HOST_DEVICES.contains(&device) {
        return Err(PyTypeError::new_err(ON_A_DEVICE));
    }
    // Some libraries export nothing to consumers that name no version, others know no versions.
    let options = PyDict::new(py);
    options.set_item(intern!(py, "max_version"), (MAJOR_VERSION, 0))?;
    let capsule = match object.call_method(method, (), Some(&options)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0(method)?,
        exported => exported?,
    };
    Ok(capsule.cast_into()?)
}

/// Why a tensor was not exported, with its class.
#[cold]
fn with_name(error: PyErr, object: &Bound<'_, PyAny>) -> PyErr {
    let py = object.py();
    match error.is_instance_of::<PyException>(py) {
        true => PyTypeError::new_err(format!("{}: {}", type_name(object), error.value(py))),
        false => error,
    }
}

/// The tensor in a capsule.
fn fields_of<'a>(capsule: &'a Bound<'_, PyCapsule>) -> PyResult<&'a Fields> {
    let Ok(versioned) = capsule.pointer_checked(Some(VERSIONED_CAPSULE)) else {
        let fields = capsule.pointer_checked(Some(CAPSULE))?.cast::<Fields>();
        // SAFETY: a capsule of that name has a tensor, which lives as long as it.
        return Ok(unsafe { fields.as_ref() });
    };
    // SAFETY: likewise; every version begins with its number.
    let major = unsafe { versioned.cast::<u32>().read() };
    if major != MAJOR_VERSION {
        let problem = format!("a tensor of version {major} of DLPack; expected {MAJOR_VERSION}");
        return Err(PyTypeError::new_err(problem));
    }
    // SAFETY: it is of that version.
    Ok(&unsafe { versioned.cast::<Versioned>().as_ref() }.fields)
}

impl Fields {
    fn tensor(&self) -> Option<Tensor> {
        let kind = match self.code {
            0 => Kind::Int,
            1 => Kind::UInt,
            2 => Kind::Float,
            4 => Kind::BFloat,
            5 => Kind::Complex,
            6 => Kind::Bool,
            _ => return None,
        };
        let item_bytes = self.bits.checked_div(8).filter(|_| self.lanes == 1)?;
        let is_known = match kind {
            Kind::Bool => item_bytes == 1,
            Kind::BFloat => item_bytes == 2,
            _ => DType::of_descr(&DType::native(kind, item_bytes).to_string()).is_some(),
        };
        let dimensions = usize::try_from(self.dimensions).ok()?;
        if !is_known || dimensions > DIMENSIONS_MAX || !self.bits.is_multiple_of(8) {
            return None;
        }
        let sides = (0..dimensions).map(|at| {
            // SAFETY: a tensor has a side for each dimension.
            usize::try_from(unsafe { *self.shape.add(at) }).ok()
        });
        let (shape, dtype) = (sides.collect::<Option<_>>()?, DType::native(kind, item_bytes));
        Some(Tensor { dtype, shape, is_fortran: false })
    }

    fn strides(&self) -> Option<&[i64]> {
        let dimensions = usize::try_from(self.dimensions).ok()?;
        // SAFETY: a tensor has a stride for each dimension, or none.
        (!self.strides.is_null() && dimensions > 0)
            .then(|| unsafe { std::slice::from_raw_parts(self.strides, dimensions) })
    }
}

/// Whether items lie one after another in the order of C.
fn is_contiguous(tensor: &Tensor, strides: &[i64]) -> bool {
    let mut next = 1_i64;
    tensor.shape.iter().zip(strides).rev().all(|(side, stride)| {
        let fits = *side == 1 || *stride == next;
        next = next.saturating_mul(*side as i64);
        fits
    })
}

/// Appends items in the order of C.
///
/// # Safety
/// Each item of the shape is at its place from `start` on.
unsafe fn copy_strided(
    out: &mut Vec<u8>,
    start: *const u8,
    shape: &[usize],
    strides: &[i64],
    item_bytes: u8,
) {
    let item_bytes = usize::from(item_bytes);
    let (Some((side, shape)), Some((stride, strides))) =
        (shape.split_first(), strides.split_first())
    else {
        // SAFETY: the caller's.
        return out.extend_from_slice(unsafe { std::slice::from_raw_parts(start, item_bytes) });
    };
    for index in 0..*side {
        let offset = (index as i64).wrapping_mul(*stride).wrapping_mul(item_bytes as i64);
        // SAFETY: the caller's.
        unsafe {
            copy_strided(out, start.offset(offset as isize), shape, strides, item_bytes as u8)
        };
    }
}
