//! The arrays of a batch's calls as one array.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use ucall_proto::arrays::Tensor;

use super::array_results::contiguous;
use super::parts::PartMemory;
use crate::ffi::{self, Array, NumPy};

/// The shape and the dtype of an array.
pub(crate) fn tensor_of(item: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let array = array_of(NumPy::get(item.py())?, item)?;
    let dtype = array.dtype()?.ok_or_else(|| PyTypeError::new_err("no array of numbers"))?;
    Ok(Tensor { dtype, shape: array.shape().to_vec(), is_fortran: false })
}

fn array_of<'a, 'py>(
    numpy: &'static NumPy,
    item: &'a Bound<'py, PyAny>,
) -> PyResult<Array<'a, 'py>> {
    numpy.array(item).ok_or_else(|| PyTypeError::new_err("expected an array"))
}

/// An array of these, all of which are like `tensor`, along a new first dimension.
pub(crate) fn stack<'py>(
    py: Python<'py>,
    tensor: Option<&Tensor>,
    items: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    let tensor = tensor.ok_or_else(|| PyTypeError::new_err("a batch has no such array"))?;
    let numpy = NumPy::get(py)?;
    let mut kept = Vec::with_capacity(items.len());
    for item in items {
        // Only rows of the order of C are copied as they are.
        let is_plain = array_of(numpy, item)?.fortran_order() == Some(false);
        kept.push(if is_plain { item.clone() } else { contiguous(item)? });
    }
    let shape = std::iter::once(items.len()).chain(tensor.shape.iter().copied()).collect();
    let whole = Tensor { dtype: tensor.dtype, shape, is_fortran: false };
    let row_bytes = tensor.bytes().unwrap_or(0);
    if let Some(rows) = rows_in_place(numpy, &whole, row_bytes, &kept) {
        return rows;
    }
    let made = numpy.new_array(py, &whole, |target| {
        let mut rows = target.chunks_exact_mut(row_bytes.max(1));
        kept.iter().all(|item| {
            let Some(array) = numpy.array(item) else { return false };
            let items = array.bytes(tensor);
            row_bytes == 0 || rows.next().is_some_and(|row| ffi::copy_to(row, items))
        })
    })?;
    made.ok_or_else(|| PyTypeError::new_err("the arrays of a batch differ"))
}

/// The array of rows that lie one after another in the memory of a batch, where they are.
fn rows_in_place<'py>(
    numpy: &'static NumPy,
    whole: &Tensor,
    row_bytes: usize,
    rows: &[Bound<'py, PyAny>],
) -> Option<PyResult<Bound<'py, PyAny>>> {
    let owner = numpy.array(rows.first()?)?.base()?;
    let memory = owner.cast::<PartMemory>().ok()?.get().memory().as_ptr_range();
    let start = numpy.array(rows.first()?)?.data();
    let mut next = start;
    for row in rows {
        if numpy.array(row)?.data() != next {
            return None;
        }
        next = next.wrapping_add(row_bytes);
    }
    let is_within = memory.start <= start && start <= next && next <= memory.end;
    // SAFETY: the owner holds the memory, in which the rows are. They were taken from it, and are
    // dropped when the function is called.
    is_within.then(|| unsafe { numpy.array_over(whole, start.cast_mut(), owner.to_owned()) })
}
