//! The arrays of a batch's calls as one array.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use ucall_proto::arrays::Tensor;

use super::array_results::contiguous;
use crate::ffi::{self, Array, NumPy};

/// Calls whose arrays have the same shapes and dtypes: their positions in the batch, and an
/// argument for each parameter.
type Group<'py> = (Vec<usize>, Vec<Bound<'py, PyAny>>);

/// Groups the calls of a batch by the shapes and dtypes of their arrays, which are in the columns
/// of the indices `stacked`. Each array is copied once, to its place in the group's array.
#[pyfunction]
pub(crate) fn stacked_groups<'py>(
    py: Python<'py>,
    columns: Vec<Bound<'py, PyList>>,
    stacked: Vec<usize>,
) -> PyResult<Vec<Group<'py>>> {
    let numpy = NumPy::get(py)?;
    let mut groups: Vec<(Vec<Tensor>, Vec<usize>)> = Vec::new();
    for position in 0..columns.first().map_or(0, |column| column.len()) {
        let of_column = |index: &usize| -> PyResult<Tensor> {
            let item = column(&columns, *index)?.get_item(position)?;
            let array = array_of(numpy, &item)?;
            let dtype =
                array.dtype()?.ok_or_else(|| PyTypeError::new_err("no array of numbers"))?;
            Ok(Tensor { dtype, shape: array.shape().to_vec(), is_fortran: false })
        };
        let tensors = stacked.iter().map(of_column).collect::<PyResult<Vec<_>>>()?;
        match groups.iter_mut().find(|(known, _)| *known == tensors) {
            Some((_, positions)) => positions.push(position),
            None => groups.push((tensors, vec![position])),
        }
    }
    let argument = |index: usize, tensors: &[Tensor], positions: &[usize]| {
        let items = positions.iter().map(|at| column(&columns, index)?.get_item(*at));
        let items = items.collect::<PyResult<Vec<_>>>()?;
        match stacked.iter().position(|it| *it == index).and_then(|at| tensors.get(at)) {
            Some(tensor) => stack(py, numpy, tensor, &items),
            None => Ok(PyList::new(py, items)?.into_any()),
        }
    };
    let group = |(tensors, positions): (Vec<Tensor>, Vec<usize>)| {
        let arguments = (0..columns.len()).map(|index| argument(index, &tensors, &positions));
        let arguments = arguments.collect::<PyResult<Vec<_>>>()?;
        Ok((positions, arguments))
    };
    groups.into_iter().map(group).collect()
}

fn column<'a, 'py>(
    columns: &'a [Bound<'py, PyList>],
    index: usize,
) -> PyResult<&'a Bound<'py, PyList>> {
    columns.get(index).ok_or_else(|| PyTypeError::new_err("a batch has no such parameter"))
}

fn array_of<'a, 'py>(
    numpy: &'static NumPy,
    item: &'a Bound<'py, PyAny>,
) -> PyResult<Array<'a, 'py>> {
    numpy.array(item).ok_or_else(|| PyTypeError::new_err("expected an array"))
}

/// An array of these, along a new first dimension.
fn stack<'py>(
    py: Python<'py>,
    numpy: &'static NumPy,
    tensor: &Tensor,
    items: &[Bound<'py, PyAny>],
) -> PyResult<Bound<'py, PyAny>> {
    let mut kept = Vec::with_capacity(items.len());
    for item in items {
        // Only rows of the order of C are copied as they are.
        let is_plain = array_of(numpy, item)?.fortran_order() == Some(false);
        kept.push(if is_plain { item.clone() } else { contiguous(item)? });
    }
    let shape = std::iter::once(items.len()).chain(tensor.shape.iter().copied()).collect();
    let whole = Tensor { dtype: tensor.dtype, shape, is_fortran: false };
    let row_bytes = tensor.bytes().unwrap_or(0);
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
