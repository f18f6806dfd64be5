//! Arrays as results: what is sent of them, and the objects that stand for them between the
//! encoders in Python and the writer.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};
use ucall_proto::arrays::Tensor;
use ucall_proto::arrays::npy::{self, NpyError};

use super::ConversionFault;
use crate::ffi::{self, Array, Imported, NumPy};

/// The encoder of a function that returns arrays: a NumPy scalar as its result is one of no
/// dimensions.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Debug)]
pub(crate) struct ArrayResults {
    encode: Py<PyAny>,
}

#[pymethods]
impl ArrayResults {
    #[new]
    fn new(encode: Py<PyAny>) -> Self {
        Self { encode }
    }

    fn __call__<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        ffi::call(self.encode.bind(object.py()), [object])
    }
}

/// An object that the encoders leave to the core: an array, a tensor or a buffer.
#[pyclass(frozen, module = "ucall._core")]
#[derive(Debug)]
pub(crate) struct ArrayLike {
    pub(super) object: Py<PyAny>,
}

/// Whether a class of arrays was registered, in any registry: then encoders come first.
static ARE_ARRAYS_REGISTERED: AtomicBool = AtomicBool::new(false);

/// Whether a class of arrays was registered.
pub(super) fn are_registered() -> bool {
    ARE_ARRAYS_REGISTERED.load(Ordering::Relaxed)
}

#[pymethods]
impl ArrayLike {
    #[new]
    fn new(object: Py<PyAny>) -> Self {
        Self { object }
    }

    /// Whether an object is a tensor of another library, or a buffer.
    #[staticmethod]
    fn accepts(object: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(ffi::has_buffer(object) || ffi::is_tensor(object)?)
    }

    /// Has encoders called with arrays too from now on.
    #[staticmethod]
    fn are_registered() {
        ARE_ARRAYS_REGISTERED.store(true, Ordering::Relaxed);
    }
}

/// The `.npy` file of an array.
///
/// Raises:
///     TypeError: The dtype is neither bool nor a number, or the array is masked.
#[pyfunction]
pub(crate) fn encode_array<'py>(array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let py = array.py();
    let refused = |fault: ConversionFault| match fault.describe("array") {
        Ok(message) => PyTypeError::new_err(message),
        Err(error) => *error,
    };
    let Some(found) = NumPy::get(py)?.array(array) else {
        return Err(PyTypeError::new_err("expected an array"));
    };
    let Some(tensor) = tensor_of(found).map_err(refused)? else {
        return encode_array(&contiguous(array)?);
    };
    let mut file = Vec::new();
    npy::write_header(&mut file, &tensor);
    file.extend_from_slice(found.bytes(&tensor));
    Ok(PyBytes::new(py, &file))
}

/// What an array is, if its items lie one after another.
///
/// # Errors
/// Arrays of its dtype are not sent, or it is masked.
pub(super) fn tensor_of(array: Array<'_, '_>) -> Result<Option<Tensor>, ConversionFault> {
    let Some(dtype) = array.dtype()? else {
        let dtype = array.object().getattr(intern!(array.object().py(), "dtype"))?;
        return Err(ConversionFault::value(unsupported(&dtype.str()?.to_string())));
    };
    if !array.is_plain() && is_masked(array.object())? {
        let advice = "a masked array cannot be sent: fill it (array.filled())";
        return Err(ConversionFault::value(advice));
    }
    let order = array.fortran_order();
    Ok(order.map(|is_fortran| Tensor { dtype, shape: array.shape().to_vec(), is_fortran }))
}

/// The message about a dtype whose arrays are not sent.
pub(super) fn unsupported(dtype: &str) -> String {
    NpyError::UnsupportedDType(dtype.to_owned()).to_string()
}

#[cold]
fn is_masked(array: &Bound<'_, PyAny>) -> PyResult<bool> {
    static CLASS: Imported<PyType> = Imported::new("numpy.ma", "MaskedArray");
    array.is_instance(CLASS.get(array.py())?)
}

/// A copy whose items lie one after another.
#[cold]
pub(super) fn contiguous<'py>(array: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static FUNCTION: Imported<PyAny> = Imported::new("numpy", "ascontiguousarray");
    let py = array.py();
    let copy = ffi::call(FUNCTION.get(py)?, [array])?;
    // It makes an array of one dimension of a scalar, which always is contiguous.
    Ok(copy)
}
